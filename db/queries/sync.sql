-- name: SyncRequest :exec
-- Asks for a sync; asking twice is asking once. A running one does not count: it may have passed already. A check of the
-- interval that waits becomes what is asked for, and nobody waits for such a check. A resource that has gone needs none.
INSERT INTO reconciler.sync_runs AS s (target_id, resource_id, reason, mode, verify)
SELECT sqlc.arg(target_id)::int, nullif(sqlc.arg(resource_id)::int, 0), sqlc.arg(reason)::text, sqlc.arg(mode)::text, sqlc.arg(verify)::boolean
WHERE sqlc.arg(resource_id)::int = 0 OR EXISTS (SELECT FROM reconciler.resources r WHERE r.id = sqlc.arg(resource_id)::int)
ON CONFLICT (target_id, coalesce(resource_id, 0)) WHERE state = 'requested'
DO UPDATE SET reason = excluded.reason, mode = excluded.mode, verify = s.verify OR excluded.verify, not_before = NULL WHERE s.reason IN ('interval', 'watch') AND excluded.reason NOT IN ('interval', 'watch');

-- name: SyncList :exec
-- Requests a sync of one resource that looks at what the target has. A request that waits is to do so, too.
INSERT INTO reconciler.sync_runs AS s (target_id, resource_id, reason, mode, verify)
SELECT sqlc.arg(target_id)::int, r.id, sqlc.arg(reason)::text, sqlc.arg(mode)::text, true FROM reconciler.resources r WHERE r.id = sqlc.arg(resource_id)::int
ON CONFLICT (target_id, coalesce(resource_id, 0)) WHERE state = 'requested' DO UPDATE SET verify = true;

-- name: SyncAbandoned :execrows
-- Runs of former owners start again as they were asked for, for wait() looks at when that was. One that waits already
-- does as well if it is no less: whoever waits for the lost one waits for it.
WITH lost AS (
    UPDATE reconciler.sync_runs SET state = 'failed', finished_at = clock_timestamp(), error = 'the process that ran it ended'
    WHERE target_id = sqlc.arg(target_id)::int AND state = 'running' AND term < sqlc.arg(term)::bigint
    RETURNING target_id, resource_id, reason, mode, verify, requested_at, requested_by
)
INSERT INTO reconciler.sync_runs AS s (target_id, resource_id, reason, mode, verify, requested_at, requested_by)
SELECT DISTINCT ON (target_id, coalesce(resource_id, 0)) target_id, resource_id, reason, mode, verify, requested_at, requested_by FROM lost
ORDER BY target_id, coalesce(resource_id, 0), reason IN ('interval', 'watch'), requested_at
ON CONFLICT (target_id, coalesce(resource_id, 0)) WHERE state = 'requested'
DO UPDATE SET reason = CASE WHEN s.reason IN ('interval', 'watch') THEN excluded.reason ELSE s.reason END,
    mode = CASE 'repair' WHEN excluded.mode THEN 'repair' ELSE s.mode END,
    verify = s.verify OR excluded.verify, requested_at = least(s.requested_at, excluded.requested_at);

-- name: SyncNext :one
-- Starts the oldest run that was asked for, full ones first. Only the target's owner does: one that was cancelled or cut
-- off in the middle of it may be late, and the next owner, who has looked for abandoned runs already, would wait for ever.
-- A request that is due later than after the pause was made before the server's clock was set back, and starts at once.
WITH next AS (
    SELECT r.id, t.draining FROM reconciler.sync_runs r JOIN reconciler.targets t ON t.id = r.target_id
    WHERE r.target_id = sqlc.arg(target_id)::int AND r.state = 'requested'
      AND t.owner = sqlc.arg(owner)::uuid AND t.term = sqlc.arg(term)::bigint
      AND (r.not_before BETWEEN clock_timestamp() AND clock_timestamp() + sqlc.arg(pause)::interval) IS NOT TRUE
    ORDER BY r.resource_id NULLS FIRST, r.id LIMIT 1 FOR NO KEY UPDATE OF t
)
UPDATE reconciler.sync_runs s SET state = 'running', started_at = clock_timestamp(), term = sqlc.arg(term)::bigint, error = NULL,
    -- What nobody has asked for by name is of the mode of the config; a resource's changes are live ones, and what is given up goes.
    mode = CASE WHEN s.reason = 'resync' OR s.resource_id IS NOT NULL THEN s.mode WHEN next.draining THEN 'repair' ELSE sqlc.arg(mode)::text END
FROM next WHERE s.id = next.id
RETURNING s.id, coalesce(s.resource_id, 0)::int AS resource_id, s.reason, s.mode, s.verify;

-- name: SyncProgress :exec
UPDATE reconciler.sync_runs SET rows = sqlc.arg(rows)::bigint, upserts = sqlc.arg(upserts)::bigint, tombstones = sqlc.arg(tombstones)::bigint,
    drifted = sqlc.arg(drifted)::bigint, at_resource = sqlc.arg(at_resource)::text, at_key = sqlc.arg(at_key)::text
WHERE id = sqlc.arg(id)::bigint AND term = sqlc.arg(term)::bigint AND state = 'running';

-- name: SyncComplete :exec
-- listed: what the target has was compared with all rows, so nothing that a lost commit had created is left there.
WITH found AS (
    UPDATE reconciler.targets t SET lost_at = NULL FROM reconciler.sync_runs s
    WHERE sqlc.arg(listed)::boolean AND s.id = sqlc.arg(id)::bigint AND s.term = sqlc.arg(term)::bigint AND s.state = 'running' AND s.started_at > t.lost_at AND t.id = s.target_id
), back AS ( -- at a place that the target had before, and has again
    DELETE FROM reconciler.left_places p USING reconciler.targets t, reconciler.sync_runs s
    WHERE sqlc.arg(listed)::boolean AND s.id = sqlc.arg(id)::bigint AND s.term = sqlc.arg(term)::bigint AND s.state = 'running'
      AND t.id = s.target_id AND p.target_id = t.id AND (p.place, p.place_key) = (t.place, t.place_key)
)
UPDATE reconciler.sync_runs SET state = 'complete', finished_at = clock_timestamp(), rows = sqlc.arg(rows)::bigint, upserts = sqlc.arg(upserts)::bigint,
    tombstones = sqlc.arg(tombstones)::bigint, drifted = sqlc.arg(drifted)::bigint, held = sqlc.arg(held)::bigint,
    error = nullif(sqlc.arg(error)::text, ''), at_resource = NULL, at_key = NULL
WHERE id = sqlc.arg(id)::bigint AND term = sqlc.arg(term)::bigint AND state = 'running';

-- name: SyncOwe :exec
-- Requests a sync of one resource that a running full sync could not read, after a pause. It copies the request of the full
-- sync, so that wait() goes on until it is complete. A request that exists is widened to it, and gets the same pause.
INSERT INTO reconciler.sync_runs AS s (target_id, resource_id, reason, mode, verify, requested_at, requested_by, error, not_before)
SELECT target_id, sqlc.arg(resource_id)::int, reason, mode, verify, requested_at, requested_by, sqlc.arg(error)::text,
       clock_timestamp() + sqlc.arg(pause)::interval
FROM reconciler.sync_runs WHERE id = sqlc.arg(id)::bigint AND term = sqlc.arg(term)::bigint AND state = 'running'
ON CONFLICT (target_id, coalesce(resource_id, 0)) WHERE state = 'requested'
DO UPDATE SET reason = CASE WHEN s.reason IN ('interval', 'watch') THEN excluded.reason ELSE s.reason END,
    mode = CASE 'repair' WHEN excluded.mode THEN 'repair' ELSE s.mode END,
    verify = s.verify OR excluded.verify, requested_at = least(s.requested_at, excluded.requested_at),
    error = excluded.error, not_before = excluded.not_before;

-- name: SyncFailed :exec
-- A run that failed, and the same run again after a pause, as it was asked for: what it was to do has not been done, and
-- whoever waits for it goes on waiting. A request that waits already does as well if it is no less, and has no pause.
WITH failed AS (
    UPDATE reconciler.sync_runs SET state = 'failed', finished_at = clock_timestamp(), rows = sqlc.arg(rows)::bigint, upserts = sqlc.arg(upserts)::bigint,
        tombstones = sqlc.arg(tombstones)::bigint, drifted = sqlc.arg(drifted)::bigint, error = sqlc.arg(error)::text, at_resource = NULL, at_key = NULL
    WHERE id = sqlc.arg(id)::bigint AND term = sqlc.arg(term)::bigint AND state = 'running'
    RETURNING target_id, resource_id, reason, mode, verify, requested_at, requested_by, error
)
INSERT INTO reconciler.sync_runs AS s (target_id, resource_id, reason, mode, verify, requested_at, requested_by, error, not_before)
SELECT target_id, resource_id, reason, mode, verify, requested_at, requested_by, error, clock_timestamp() + sqlc.arg(pause)::interval FROM failed
ON CONFLICT (target_id, coalesce(resource_id, 0)) WHERE state = 'requested'
DO UPDATE SET reason = CASE WHEN s.reason IN ('interval', 'watch') THEN excluded.reason ELSE s.reason END,
    mode = CASE 'repair' WHEN excluded.mode THEN 'repair' ELSE s.mode END,
    verify = s.verify OR excluded.verify, requested_at = least(s.requested_at, excluded.requested_at);

-- name: SyncPause :one
-- Seconds until the first request whose pause has to pass; a negative number when there is none.
SELECT coalesce(min(CASE WHEN s.left_ > sqlc.arg(pause)::interval THEN 0 ELSE greatest(extract(epoch FROM s.left_), 0) END),
    -1)::float8 AS seconds
FROM (SELECT not_before - clock_timestamp() AS left_ FROM reconciler.sync_runs
      WHERE target_id = sqlc.arg(target_id)::int AND state = 'requested' AND not_before IS NOT NULL) AS s;

-- name: SyncPrune :execrows
-- Keeps the last hundred runs of each target.
DELETE FROM reconciler.sync_runs r WHERE r.state IN ('complete', 'failed') AND r.target_id = sqlc.arg(target_id)::int
  AND r.id < (SELECT min(id) FROM (SELECT id FROM reconciler.sync_runs k WHERE k.target_id = sqlc.arg(target_id)::int ORDER BY id DESC LIMIT 100) AS kept);

-- name: SyncSinceComplete :one
-- Seconds since the last complete full sync of the target; a negative number when there was none.
SELECT coalesce((SELECT extract(epoch FROM clock_timestamp() - finished_at) FROM reconciler.sync_runs
    WHERE target_id = $1 AND resource_id IS NULL AND state = 'complete' ORDER BY id DESC LIMIT 1), -1)::float8 AS seconds;

-- name: LedgerPage :many
-- A page of the ledger in key order, from a key on. ahead: the server's clock was set back since.
SELECT key, wanted, present, state::text AS state, coalesce(held_by, '')::text AS held_by, applied_at,
    coalesce(applied_at > clock_timestamp(), false)::boolean AS ahead
FROM reconciler.ledger
WHERE target_id = sqlc.arg(target_id)::int AND resource_id = sqlc.arg(resource_id)::int AND key >= sqlc.arg(after)::text COLLATE "C"
ORDER BY key LIMIT sqlc.arg(page_rows)::int;

-- name: LedgerLookup :many
-- What the ledger says about listed objects, in their order. remembered is the SHA-256 of the driver's memory, when that is
-- asked for. ahead is as in LedgerPage.
SELECT i.key::text AS key, (l.state IS NOT NULL)::boolean AS known, coalesce(l.present, false)::boolean AS present,
    coalesce(l.state::text, '')::text AS state, l.applied_hash, l.applied_at,
    coalesce(l.applied_at > clock_timestamp(), false)::boolean AS ahead,
    CASE WHEN sqlc.arg(remembers)::boolean THEN sha256(l.memory) END::bytea AS remembered
FROM unnest(sqlc.arg(keys)::text[]) WITH ORDINALITY AS i(key, n)
LEFT JOIN LATERAL (SELECT * FROM reconciler.ledger x WHERE x.target_id = sqlc.arg(target_id)::int AND x.resource_id = sqlc.arg(resource_id)::int AND x.key = i.key LIMIT 1) AS l ON true
ORDER BY i.n;

-- name: DriftClear :exec
DELETE FROM reconciler.drift_found WHERE target_id = sqlc.arg(target_id)::int AND (resource_id = sqlc.arg(resource_id)::int OR sqlc.arg(resource_id)::int = 0);

-- name: DriftInsert :exec
-- What a row asks for and the target has of it: with another content, if the ledger or the listing knows of it.
INSERT INTO reconciler.drift_found AS d (target_id, resource_id, key, kind, unapplied, sync_id)
SELECT sqlc.arg(target_id)::int, sqlc.arg(resource_id)::int, k.key,
    CASE WHEN k.kind = 'missing' AND k.unapplied AND EXISTS (SELECT FROM reconciler.ledger l WHERE l.target_id = sqlc.arg(target_id)::int AND l.resource_id = sqlc.arg(resource_id)::int AND l.key = k.key AND l.present)
        THEN 'different' ELSE k.kind END, k.unapplied, sqlc.arg(sync_id)::bigint
FROM (SELECT f.key, CASE WHEN bool_or(f.kind = 'orphan') AND bool_or(f.kind = 'missing') THEN 'different' ELSE max(f.kind) END AS kind, bool_or(f.unapplied) AS unapplied
      FROM (SELECT unnest(sqlc.arg(keys)::text[]) AS key, unnest(sqlc.arg(kinds)::text[]) AS kind, unnest(sqlc.arg(unapplied)::boolean[]) AS unapplied) AS f GROUP BY f.key) AS k
ON CONFLICT (target_id, resource_id, key) DO UPDATE SET kind = CASE WHEN d.kind = 'orphan' AND excluded.kind = 'missing' THEN 'different' ELSE excluded.kind END,
    unapplied = excluded.unapplied, sync_id = excluded.sync_id, found_at = clock_timestamp();

-- name: DriftUnapplied :many
-- Objects of a resource that a sync has left as they are.
SELECT d.key FROM reconciler.drift_found d WHERE d.target_id = sqlc.arg(target_id)::int AND d.resource_id = sqlc.arg(resource_id)::int AND reconciler.left_alone(d);

-- name: CoveringRevision :one
-- A revision to which everything belongs that a snapshot sees; -1: there is none yet.
SELECT coalesce(reconciler.covering_revision(sqlc.arg(snapshot)::text::pg_snapshot), -1)::bigint AS revision;

-- name: CursorPassed :one
-- Whether a target's cursor has come to a revision.
SELECT coalesce(c.revision >= sqlc.arg(revision)::bigint, false)::boolean AS passed FROM reconciler.cursor_of(sqlc.arg(target_id)::int) AS c;

-- name: TargetMarkClean :execrows
UPDATE reconciler.targets SET clean = true WHERE id = sqlc.arg(target_id)::int AND owner = sqlc.arg(owner)::uuid AND term = sqlc.arg(term)::bigint;

-- name: TimeNow :one
SELECT clock_timestamp()::timestamptz AS now;

-- name: ControlNotify :exec
-- Wakes whoever waits for orders.
SELECT pg_notify('reconciler_control', '');
