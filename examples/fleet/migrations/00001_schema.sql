-- +goose Up

-- The control plane of a small deploy platform. Nothing in this file knows of reconciler.
CREATE SCHEMA fleet;
COMMENT ON SCHEMA fleet IS 'Control plane of a deploy platform: an example for reconciler.';

CREATE TABLE fleet.regions (
    code   text PRIMARY KEY CHECK (code ~ '^[a-z][a-z0-9-]{0,62}$'),
    name   text NOT NULL,
    active boolean NOT NULL DEFAULT true
);
COMMENT ON TABLE fleet.regions IS 'Places that deployments run in. Each is a target of reconciler.';
COMMENT ON COLUMN fleet.regions.active IS 'False: nothing shall run there, whatever its topologies say.';

CREATE TABLE fleet.workspaces (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    slug      text NOT NULL UNIQUE,
    name      text NOT NULL,
    suspended boolean NOT NULL DEFAULT false
);
COMMENT ON TABLE fleet.workspaces IS 'Customers.';
COMMENT ON COLUMN fleet.workspaces.name IS 'For people; no topology shows it.';
COMMENT ON COLUMN fleet.workspaces.suspended IS 'True: nothing of theirs shall run.';

CREATE TABLE fleet.apps (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    workspace_id bigint NOT NULL REFERENCES fleet.workspaces ON DELETE CASCADE,
    slug         text NOT NULL,
    UNIQUE (workspace_id, slug)
);
COMMENT ON TABLE fleet.apps IS 'What a workspace deploys.';

CREATE TABLE fleet.environments (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    app_id    bigint NOT NULL REFERENCES fleet.apps ON DELETE CASCADE,
    slug      text NOT NULL,
    variables jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(variables) = 'object'),
    UNIQUE (app_id, slug)
);
COMMENT ON TABLE fleet.environments IS 'production, preview, ... of an app.';
COMMENT ON COLUMN fleet.environments.variables IS 'Environment variables of every deployment in it.';

CREATE TABLE fleet.deployments (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    environment_id bigint NOT NULL REFERENCES fleet.environments ON DELETE CASCADE,
    image          text NOT NULL,
    cpu            integer NOT NULL DEFAULT 250 CHECK (cpu > 0),
    memory         integer NOT NULL DEFAULT 256 CHECK (memory > 0),
    env            jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(env) = 'object'),
    command        text[] NOT NULL DEFAULT '{}',
    created_at     timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX deployments_environment ON fleet.deployments (environment_id);
COMMENT ON TABLE fleet.deployments IS 'What was ever deployed. Rows of the past stay; their topologies are stopped.';
COMMENT ON COLUMN fleet.deployments.cpu IS 'Thousandths of a processor, for each replica.';
COMMENT ON COLUMN fleet.deployments.memory IS 'MiB, for each replica.';
COMMENT ON COLUMN fleet.deployments.env IS 'Environment variables; they win over those of the environment.';

CREATE TABLE fleet.topologies (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    deployment_id  bigint NOT NULL REFERENCES fleet.deployments ON DELETE CASCADE,
    region         text NOT NULL REFERENCES fleet.regions,
    desired_status text NOT NULL DEFAULT 'running' CHECK (desired_status IN ('running', 'stopped')),
    replicas       integer NOT NULL DEFAULT 1 CHECK (replicas >= 0),
    status         text NOT NULL DEFAULT 'unknown',
    ready_replicas integer NOT NULL DEFAULT 0,
    heartbeat_at   timestamptz,
    UNIQUE (deployment_id, region)
) WITH (fillfactor = 80); -- heartbeats are updates of one row again and again
COMMENT ON TABLE fleet.topologies IS 'One deployment in one region: how it is wanted there, and how it was last seen.';
COMMENT ON COLUMN fleet.topologies.status IS 'Observed. Written by agents in the region; asks for nothing.';
COMMENT ON COLUMN fleet.topologies.ready_replicas IS 'Observed.';
COMMENT ON COLUMN fleet.topologies.heartbeat_at IS 'Observed.';

CREATE TABLE fleet.network_policies (
    name         text PRIMARY KEY,
    workspace_id bigint NOT NULL REFERENCES fleet.workspaces ON DELETE CASCADE,
    region       text REFERENCES fleet.regions,
    direction    text NOT NULL CHECK (direction IN ('ingress', 'egress')),
    action       text NOT NULL CHECK (action IN ('allow', 'deny')),
    cidr         cidr NOT NULL,
    port         integer CHECK (port BETWEEN 1 AND 65535),
    packets      bigint NOT NULL DEFAULT 0
);
CREATE INDEX network_policies_workspace ON fleet.network_policies (workspace_id);
COMMENT ON TABLE fleet.network_policies IS 'Firewall rules. They are never stopped, only deleted.';
COMMENT ON COLUMN fleet.network_policies.region IS 'NULL: in every region.';
COMMENT ON COLUMN fleet.network_policies.port IS 'NULL: every port.';
COMMENT ON COLUMN fleet.network_policies.packets IS 'Observed: how many packets it has matched.';

-- +goose Down
DROP SCHEMA fleet CASCADE;
