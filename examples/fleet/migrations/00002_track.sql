-- +goose Up

-- What shall be where. A topology is joined from six tables; whatever is not in this view, or does not run, is to be
-- absent. The columns that depends_on names below are what leads from a changed row to the topologies it concerns.
CREATE VIEW fleet.desired_topologies AS
SELECT
    t.id,
    t.region,
    t.desired_status,
    t.deployment_id,
    d.environment_id,
    e.app_id,
    a.workspace_id,
    jsonb_build_object(
        'workspace', w.slug,
        'app', a.slug,
        'environment', e.slug,
        'image', d.image,
        'command', d.command,
        'env', e.variables || d.env,
        'replicas', t.replicas,
        'resources', jsonb_build_object('cpu', d.cpu || 'm', 'memory', d.memory || 'Mi')
    ) AS spec
FROM fleet.topologies t
JOIN fleet.regions r ON r.code = t.region
JOIN fleet.deployments d ON d.id = t.deployment_id
JOIN fleet.environments e ON e.id = d.environment_id
JOIN fleet.apps a ON a.id = e.app_id
JOIN fleet.workspaces w ON w.id = a.workspace_id
WHERE r.active AND NOT w.suspended;
COMMENT ON VIEW fleet.desired_topologies IS 'What each region is to run. The resource "topology" is made from it.';

-- What a sync walks: the running topologies of a region, by key.
CREATE INDEX topologies_running ON fleet.topologies (region, id) WHERE desired_status = 'running';
CREATE INDEX network_policies_region ON fleet.network_policies (region, name);

SELECT reconciler.track(
    'topology', 'fleet.desired_topologies',
    key        => '{id}',
    target     => 'region',
    running    => $$desired_status = 'running'$$,
    spec       => 'spec',
    depends_on => '{
        "fleet.topologies":   {"id": "id"},
        "fleet.deployments":  {"id": "deployment_id"},
        "fleet.environments": {"id": "environment_id"},
        "fleet.apps":         {"id": "app_id"},
        "fleet.workspaces":   {"id": "workspace_id"},
        "fleet.regions":      {"code": "region"}
    }');

-- A plain table: the spec is the row without the ignored column, and a policy without region goes to every target.
SELECT reconciler.track(
    'network_policy', 'fleet.network_policies',
    key    => '{name}',
    target => 'region',
    ignore => '{packets}');

-- +goose Down
-- The targets keep what they have.
SELECT reconciler.untrack('network_policy', release => 'keep');
SELECT reconciler.untrack('topology', release => 'keep');
DROP VIEW fleet.desired_topologies;
DROP INDEX fleet.topologies_running, fleet.network_policies_region;
