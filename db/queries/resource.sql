-- name: ResourceList :many
-- Types go by their names of that moment: they may be renamed. What is missing
-- of a definition fails where it is used, not here: one that is broken keeps no other from being read.
SELECT r.id, r.name, r.version, r.match_columns, (r.removed_at IS NOT NULL)::boolean AS removed, (r.protect IS NOT NULL)::boolean AS protects,
    -- Whether some row may name no target, which means every target.
    (NOT EXISTS (SELECT FROM pg_catalog.pg_attribute a WHERE a.attrelid = r.relation AND a.attnotnull AND NOT a.attisdropped
                 AND r.target_bound IN (format('%I.%I', r.alias, a.attname), format('(%I.%I)::text', r.alias, a.attname)))
     AND r.target_bound !~ '^''[^'']*''::text$')::boolean AS any_target,
    -- Whether the rows that name no target can be walked in key order by an index.
    (EXISTS (SELECT FROM pg_catalog.pg_attribute a WHERE a.attrelid = r.relation AND a.attnum > 0 AND NOT a.attisdropped
             AND r.target_bound = format('%I.%I', r.alias, a.attname))
     AND r.relation_kind IN ('r', 'p', 'm') AND reconciler.index_advice(r.id) IS NULL)::boolean AS target_indexed,
    (SELECT coalesce(array_agg(coalesce(reconciler.key_value('%s', t), '%s') ORDER BY n), '{}') FROM unnest(r.key_types) WITH ORDINALITY AS k(t, n))::text[] AS key_casts,
    (SELECT coalesce(array_agg(coalesce(reconciler.key_text('%s', t), '%s') ORDER BY n), '{}') FROM unnest(r.key_types) WITH ORDINALITY AS k(t, n))::text[] AS key_texts,
    (SELECT coalesce(array_agg(coalesce(reconciler.type_name(t), 'text') ORDER BY n), '{}') FROM unnest(r.match_types) WITH ORDINALITY AS m(t, n))::text[] AS match_casts,
    EXISTS (SELECT FROM reconciler.dependencies d WHERE d.resource_id = r.id)::boolean AS depends
FROM reconciler.resources r
ORDER BY r.id;
