-- Two teams with three apps, in three clusters.
INSERT INTO kubernetes.clusters (name, env)
VALUES ('eu', '{"REGION": "eu"}'), ('us', '{"REGION": "us"}'), ('ap', '{"REGION": "ap"}')
ON CONFLICT DO NOTHING;
INSERT INTO kubernetes.teams (name, owner) VALUES ('shop', 'kim'), ('search', 'alex') ON CONFLICT DO NOTHING;
INSERT INTO kubernetes.apps (team, name, image, port, env)
VALUES ('shop', 'web', 'registry.example.org/web:1', 8080, '{"LOG_LEVEL": "info"}'),
       ('shop', 'api', 'registry.example.org/api:1', 9000, '{}'),
       ('search', 'index', 'registry.example.org/index:1', 7700, '{}')
ON CONFLICT DO NOTHING;
INSERT INTO kubernetes.placements (team, app, cluster)
SELECT a.team, a.name, c.name FROM kubernetes.apps a CROSS JOIN kubernetes.clusters c
ON CONFLICT DO NOTHING;
