-- +goose Up

-- Each enabled row is one object of the stream `edge`.
SELECT reconciler.track(
    'record', 'edge.records',
    key     => '{name,type}',
    target  => $$'edge'$$,
    running => 'enabled',
    spec    => $$jsonb_build_object('value', value, 'ttl', extract(epoch FROM ttl)::int)$$);

-- +goose Down
SELECT reconciler.untrack('record', release => 'keep');
