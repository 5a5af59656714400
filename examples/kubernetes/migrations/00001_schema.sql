-- +goose Up

-- Apps of teams, and the clusters that they run in.
CREATE SCHEMA kubernetes;
COMMENT ON SCHEMA kubernetes IS 'Apps in several clusters: an example for reconciler.';

CREATE DOMAIN kubernetes.name AS text CHECK (VALUE ~ '^[a-z]([-a-z0-9]{0,51}[a-z0-9])?$');
COMMENT ON DOMAIN kubernetes.name IS 'What Kubernetes takes for the name of a namespace and of a Service.';

CREATE TABLE kubernetes.clusters (
    name    kubernetes.name PRIMARY KEY,
    env     jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(env) = 'object'),
    drained boolean NOT NULL DEFAULT false
);
COMMENT ON TABLE kubernetes.clusters IS 'One row for each cluster; its name is that of a target.';
COMMENT ON COLUMN kubernetes.clusters.env IS 'Environment variables of every app here.';
COMMENT ON COLUMN kubernetes.clusters.drained IS 'True: no app runs here.';

CREATE TABLE kubernetes.teams (
    name  kubernetes.name PRIMARY KEY,
    owner text NOT NULL
);
COMMENT ON TABLE kubernetes.teams IS 'One row for each namespace, which every cluster has.';

CREATE TABLE kubernetes.apps (
    team   kubernetes.name NOT NULL REFERENCES kubernetes.teams,
    name   kubernetes.name NOT NULL,
    image  text NOT NULL CHECK (image <> ''),
    port   int NOT NULL CHECK (port BETWEEN 1 AND 65535),
    cpu    text NOT NULL DEFAULT '100m',
    memory text NOT NULL DEFAULT '128Mi',
    env    jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(env) = 'object'),
    PRIMARY KEY (team, name)
);
COMMENT ON TABLE kubernetes.apps IS 'What runs, wherever it runs.';

CREATE TABLE kubernetes.placements (
    team         kubernetes.name NOT NULL,
    app          kubernetes.name NOT NULL,
    cluster      kubernetes.name NOT NULL REFERENCES kubernetes.clusters,
    min_replicas int NOT NULL DEFAULT 2 CHECK (min_replicas >= 1),
    max_replicas int NOT NULL DEFAULT 10,
    env          jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(env) = 'object'),
    PRIMARY KEY (team, app, cluster),
    FOREIGN KEY (team, app) REFERENCES kubernetes.apps,
    CHECK (max_replicas >= min_replicas)
);
COMMENT ON TABLE kubernetes.placements IS 'One row for each app in each cluster.';
COMMENT ON COLUMN kubernetes.placements.env IS
    'Environment variables of this app here. They win over those of the cluster, and these over those of the app.';

-- The rows of a cluster, in the order of the key, for syncs; and those of an app, for its changes.
CREATE INDEX placements_cluster ON kubernetes.placements (cluster, team, app);

-- The manifests of a placement. The HorizontalPodAutoscaler decides on the replicas, so the Deployment names no number.
CREATE VIEW kubernetes.workloads AS
SELECT p.team, p.app, p.cluster, NOT c.drained AS placed,
    jsonb_build_array(
        jsonb_build_object('apiVersion', 'apps/v1', 'kind', 'Deployment', 'metadata', m.metadata, 'spec',
            jsonb_build_object(
                'selector', jsonb_build_object('matchLabels', m.labels),
                'template', jsonb_build_object(
                    'metadata', jsonb_build_object('labels', m.labels),
                    'spec', jsonb_build_object('containers', jsonb_build_array(jsonb_build_object(
                        'name', 'main',
                        'image', a.image,
                        'env', m.env,
                        'ports', jsonb_build_array(jsonb_build_object('name', 'http', 'containerPort', a.port)),
                        'resources', jsonb_build_object(
                            'requests', jsonb_build_object('cpu', a.cpu, 'memory', a.memory)))))))),
        jsonb_build_object('apiVersion', 'v1', 'kind', 'Service', 'metadata', m.metadata, 'spec',
            jsonb_build_object(
                'selector', m.labels,
                'ports', jsonb_build_array(jsonb_build_object('name', 'http', 'port', 80, 'targetPort', 'http')))),
        jsonb_build_object('apiVersion', 'autoscaling/v2', 'kind', 'HorizontalPodAutoscaler', 'metadata', m.metadata,
            'spec', jsonb_build_object(
                'scaleTargetRef', jsonb_build_object('apiVersion', 'apps/v1', 'kind', 'Deployment', 'name', p.app),
                'minReplicas', p.min_replicas,
                'maxReplicas', p.max_replicas,
                'metrics', '[{"type": "Resource", "resource":
                    {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 70}}}]'::jsonb)),
        jsonb_build_object('apiVersion', 'networking.k8s.io/v1', 'kind', 'NetworkPolicy', 'metadata', m.metadata,
            'spec', jsonb_build_object(
                'podSelector', jsonb_build_object('matchLabels', m.labels),
                'ingress', jsonb_build_array(jsonb_build_object(
                    'ports', jsonb_build_array(jsonb_build_object('port', 'http'))))))
    ) AS spec
FROM kubernetes.placements p
JOIN kubernetes.apps a ON a.team = p.team AND a.name = p.app
JOIN kubernetes.clusters c ON c.name = p.cluster
CROSS JOIN LATERAL (
    SELECT jsonb_build_object('app.kubernetes.io/name', p.app) AS labels,
        jsonb_build_object('name', p.app, 'namespace', p.team,
            'labels', jsonb_build_object('app.kubernetes.io/name', p.app)) AS metadata,
        (SELECT coalesce(jsonb_agg(jsonb_build_object('name', key, 'value', value) ORDER BY key), '[]')
         FROM jsonb_each_text(a.env || c.env || p.env)) AS env
) AS m;
COMMENT ON VIEW kubernetes.workloads IS
    'One row for each app in each cluster: Deployment, Service, HorizontalPodAutoscaler and NetworkPolicy.';

-- +goose Down
DROP SCHEMA kubernetes CASCADE;
