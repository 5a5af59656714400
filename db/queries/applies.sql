-- name: AppliesUnopened :many
-- Those of these transactions that began an apply whose tasks are not written down yet.
SELECT id, xid FROM reconciler.applies WHERE opened_at IS NULL AND xid = ANY (sqlc.arg(xids)::xid8[]);

-- name: AppliesToOpen :one
-- The applies whose tasks are not written down yet; of these the ones whose changes are all before a snapshot, first those that
-- were begun to be; and where the next look may begin, see unopened_applies().
SELECT coalesce(array_agg(a.id), '{}')::bigint[] AS unopened,
    coalesce(array_agg(a.id ORDER BY a.opened_seq > 0 DESC, a.id) FILTER (WHERE pg_visible_in_snapshot(a.xid, sqlc.arg(snapshot)::text::pg_snapshot)), '{}')::bigint[] AS ripe,
    pg_snapshot_xmin(pg_current_snapshot())::xid8 AS since
FROM ((SELECT n.* FROM reconciler.applies n WHERE n.opened_at IS NULL AND n.xid >= sqlc.arg(after)::xid8 ORDER BY n.xid)
      UNION ALL SELECT l.* FROM unnest(sqlc.arg(known)::bigint[]) AS k CROSS JOIN LATERAL (SELECT * FROM reconciler.applies x WHERE x.id = k LIMIT 1) AS l
          WHERE l.opened_at IS NULL AND l.xid < sqlc.arg(after)::xid8) AS a;

-- name: ApplyExpanded :exec
-- The outbox rows that this transaction writes belong to an apply.
UPDATE reconciler.applies SET xids = xids || pg_current_xact_id() WHERE id = sqlc.arg(id)::bigint AND opened_at IS NULL;

-- name: AppliesOpen :one
SELECT reconciler.open_applies(sqlc.arg(owner)::uuid, sqlc.arg(term)::bigint, sqlc.arg(ids)::bigint[], sqlc.arg(revision)::bigint, sqlc.arg(max_rows)::int, sqlc.arg(patience)::interval)::int AS opened;

-- name: ApplyFail :exec
SELECT reconciler.fail_apply(sqlc.arg(owner)::uuid, sqlc.arg(term)::bigint, sqlc.arg(id)::bigint, sqlc.arg(reason)::text);

-- name: AppliesUnderWay :many
-- How many applies that have not ended are in each state.
SELECT state, count(*) AS applies FROM reconciler.applies WHERE completed_at IS NULL GROUP BY state;

-- name: UnopenedKeys :one
-- Objects of a resource that applies have changed which are not open yet; or everything, perhaps.
SELECT (u.keys IS NULL)::boolean AS everything, coalesce(u.keys, '{}')::text[] AS keys FROM (
    SELECT reconciler.unopened_keys(sqlc.arg(resource_id)::int, reconciler.unopened_applies(sqlc.arg(since)::xid8, sqlc.arg(known)::bigint[])) AS keys OFFSET 0) AS u;

-- name: TargetsWithTurn :many
SELECT t.target_id::int AS target_id, t.turn::boolean AS turn, t.health::boolean AS health FROM reconciler.turns(sqlc.arg(owner)::uuid, sqlc.arg(since)::xid8, sqlc.arg(known)::bigint[]) AS t;

-- name: OperationsClaim :one
SELECT c.operation_ids::bigint[] AS operation_ids, c.stopping_ids::bigint[] AS stopping_ids, c.again::float8 AS again, c.busy::boolean AS busy
FROM reconciler.claim_operations(sqlc.arg(target_id)::int, sqlc.arg(owner)::uuid, sqlc.arg(term)::bigint, sqlc.arg(patience)::interval,
    sqlc.arg(since)::xid8, sqlc.arg(known)::bigint[]) AS c;

-- name: StopsConfirm :exec
SELECT reconciler.confirm_stops(sqlc.arg(target_id)::int, sqlc.arg(owner)::uuid, sqlc.arg(term)::bigint, sqlc.arg(operation_ids)::bigint[]);

-- name: TasksPage :many
-- A page of the objects that an operation still governs, in key order, after a place.
SELECT k.resource_id, k.key, EXISTS (SELECT FROM reconciler.resources r WHERE r.id = k.resource_id)::boolean AS tracked
FROM reconciler.tasks k
WHERE k.operation_id = sqlc.arg(operation_id)::bigint AND k.governs AND (k.resource_id, k.key) > (sqlc.arg(after_resource)::int, sqlc.arg(after_key)::text COLLATE "C")
ORDER BY k.resource_id, k.key LIMIT sqlc.arg(page_rows)::int;

-- name: ApplyLines :many
-- What the status page shows of applies: the newest that have not ended, then the newest that have. Whoever reads it has
-- shown no token, so there is no error text; next has one where it says what is waited for.
SELECT s.id, s.title, s.state, (s.completed_at IS NOT NULL)::boolean AS ended, s.targets, s.targets_done, s.tasks, s.completed, s.failed, s.superseded, s.pending::bigint AS pending,
    (CASE WHEN s.state IN ('paused', 'stopped', 'completed', 'superseded', 'failed', 'cancelled') THEN s.next ELSE '' END)::text AS next
FROM reconciler.apply_status s
WHERE s.id = ANY (ARRAY(SELECT a.id FROM reconciler.applies a WHERE a.completed_at IS NULL ORDER BY a.id DESC LIMIT sqlc.arg(under_way)::int)
    || ARRAY(SELECT a.id FROM reconciler.applies a WHERE a.completed_at IS NOT NULL ORDER BY a.id DESC LIMIT sqlc.arg(ended)::int))
ORDER BY s.completed_at IS NOT NULL, s.id DESC;

-- name: ApplyTargetLines :many
-- The first targets of each of these applies, in order, without error texts: detail is shown where it is in our own words.
-- A name that no config has stands in rows only.
SELECT n.id::bigint AS apply, (CASE WHEN t.configured THEN w.target ELSE '' END)::text AS target, w.ordinal, w.phase::text AS phase, w.tasks, w.completed, w.failed,
    (CASE WHEN w.phase IN ('opening', 'soaking', 'stopping', 'stopped', 'completed') THEN w.detail ELSE '' END)::text AS detail
FROM unnest(sqlc.arg(ids)::bigint[]) AS n(id)
CROSS JOIN LATERAL (SELECT * FROM reconciler.apply_targets x WHERE x.apply = n.id ORDER BY x.ordinal, x.target LIMIT sqlc.arg(most)::int) AS w
LEFT JOIN reconciler.targets t ON t.name = w.target
ORDER BY n.id DESC, w.ordinal, w.target;
