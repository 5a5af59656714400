-- name: ResourceList :many
-- With their dependencies: both of one moment.
SELECT r.id, r.name, r.version, r.key_types, r.match_columns, r.match_types, (r.removed_at IS NOT NULL)::boolean AS removed,
    -- Whether some row may name no target, which means every target.
    (NOT EXISTS (SELECT FROM pg_catalog.pg_attribute a WHERE a.attrelid = r.relation AND a.attnotnull AND NOT a.attisdropped
                 AND r.target_bound IN (format('%I.%I', r.alias, a.attname), format('(%I.%I)::text', r.alias, a.attname)))
     AND r.target_bound !~ '^''[^'']*''::text$')::boolean AS any_target,
    (SELECT coalesce(array_agg(reconciler.key_value('%s', t::regtype) ORDER BY n), '{}') FROM unnest(r.key_types) WITH ORDINALITY AS k(t, n))::text[] AS key_casts,
    (SELECT coalesce(array_agg(reconciler.key_text('%s', t::regtype) ORDER BY n), '{}') FROM unnest(r.key_types) WITH ORDINALITY AS k(t, n))::text[] AS key_texts,
    (SELECT coalesce(jsonb_agg(jsonb_build_object('id', d.id, 'columns', d.columns)), '[]') FROM reconciler.dependencies d WHERE d.resource_id = r.id)::jsonb AS dependencies
FROM reconciler.resources r
ORDER BY r.id;
