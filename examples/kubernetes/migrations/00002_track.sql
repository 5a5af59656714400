-- +goose Up

-- One resource for namespaces, and another one for what is in them: an app that goes never takes a namespace
-- with it. The target NULL means every target.
SELECT reconciler.track(
    'namespace', 'kubernetes.teams',
    key    => '{name}',
    target => 'NULL',
    spec   => $$jsonb_build_object('apiVersion', 'v1', 'kind', 'Namespace', 'metadata', jsonb_build_object(
                  'name', name, 'annotations', jsonb_build_object('example.org/owner', owner)))$$);

-- A placement follows its row, its app and its cluster.
SELECT reconciler.track(
    'workload', 'kubernetes.workloads',
    key        => '{cluster,team,app}',
    target     => 'cluster',
    running    => 'placed',
    spec       => 'spec',
    depends_on => '{"kubernetes.placements": {"cluster": "cluster", "team": "team", "app": "app"},
                    "kubernetes.apps": {"team": "team", "name": "app"},
                    "kubernetes.clusters": {"name": "cluster"}}');

-- +goose Down
-- The clusters keep what they have.
SELECT reconciler.untrack('workload', release => 'keep');
SELECT reconciler.untrack('namespace', release => 'keep');
