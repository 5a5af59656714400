-- name: TickLatest :one
SELECT revision, snapshot::text AS snapshot, at FROM reconciler.ticks ORDER BY revision DESC LIMIT 1;

-- name: TickInsert :many
-- Makes a new revision if a row was committed since the last one, and reads the first page of what is new with it. One
-- statement, one snapshot: what decides, what is written down and what is read are the same.
-- Rows of transactions in progress are left out by their ids, between which the index is walked: the rows of one that
-- is open, maybe millions, are not even touched.
WITH prev AS MATERIALIZED (
    SELECT revision, snapshot, pg_snapshot_xmax(snapshot) AS xmax FROM reconciler.ticks ORDER BY revision DESC LIMIT 1
), gaps AS MATERIALIZED (
    SELECT g.above, g.below FROM prev CROSS JOIN (
        SELECT coalesce(lag(ends.e) OVER (ORDER BY ends.e), '0'::xid8) AS above, ends.e AS below
        FROM (SELECT x.e FROM (SELECT pg_snapshot_xip(pg_current_snapshot()) AS e) AS x WHERE x.e >= (SELECT xmax FROM prev)
              UNION ALL SELECT pg_snapshot_xmax(pg_current_snapshot())) AS ends) AS g
    -- Ids of writers that are busy at once follow each other: there is nothing between most of them.
    WHERE greatest(g.above::text::bigint + 1, prev.xmax::text::bigint) < g.below::text::bigint
), late AS MATERIALIZED (
    SELECT x.xip FROM (SELECT pg_snapshot_xip(snapshot) AS xip FROM prev) AS x WHERE pg_visible_in_snapshot(x.xip, pg_current_snapshot())
), tick AS (
    INSERT INTO reconciler.ticks (revision, snapshot)
    SELECT prev.revision + 1, pg_current_snapshot() FROM prev
    WHERE EXISTS (SELECT FROM reconciler.leases l WHERE l.name = 'tick' AND l.owner = sqlc.arg(owner)::uuid AND l.term = sqlc.arg(term)::bigint)
      AND (EXISTS (SELECT FROM gaps g CROSS JOIN LATERAL (
              SELECT FROM reconciler.outbox o WHERE o.xid > g.above AND o.xid < g.below AND o.xid >= (SELECT xmax FROM prev)
              ORDER BY o.xid, o.seq LIMIT 1) AS found)
        OR EXISTS (SELECT FROM late CROSS JOIN LATERAL (SELECT FROM reconciler.outbox o WHERE o.xid = late.xip ORDER BY o.xid, o.seq LIMIT 1) AS found))
    RETURNING revision, snapshot, at
)
SELECT tick.revision, tick.snapshot::text AS snapshot, tick.at, coalesce(d.xid, '0'::xid8)::xid8 AS xid, coalesce(d.seq, 0)::bigint AS seq,
    coalesce(d.resource_id, 0)::int AS resource_id, d.target, d.key, d.dependency_id, d.image
FROM tick LEFT JOIN LATERAL (
    SELECT n.* FROM (
        (SELECT o.* FROM late CROSS JOIN LATERAL (SELECT * FROM reconciler.outbox i WHERE i.xid = late.xip ORDER BY i.xid, i.seq LIMIT (SELECT sqlc.arg(page_rows)::int)) AS o
         ORDER BY o.xid, o.seq LIMIT (SELECT sqlc.arg(page_rows)::int))
        UNION ALL
        (SELECT o.* FROM gaps g CROSS JOIN LATERAL (
             SELECT * FROM reconciler.outbox i WHERE i.xid > g.above AND i.xid < g.below AND i.xid >= (SELECT xmax FROM prev)
             ORDER BY i.xid, i.seq LIMIT (SELECT sqlc.arg(page_rows)::int)) AS o
         ORDER BY o.xid, o.seq LIMIT (SELECT sqlc.arg(page_rows)::int))
    ) AS n ORDER BY n.xid, n.seq LIMIT (SELECT sqlc.arg(page_rows)::int)
) AS d ON true;

-- name: Forget :one
-- What need not be kept any longer, in one statement. Of the ticks every one of the last ten minutes is kept, one for each
-- minute before that back to max_age, and always the newest; only those between two revisions are looked at. A resource that
-- untrack(release => 'delete') removed goes when its last object is gone, and nothing of it is called for. Of ledger rows of resources
-- that are gone, of applies that ended so long ago, and of old tombstones of streams, a bounded number goes at once.
WITH newest AS MATERIALIZED (
    SELECT revision FROM reconciler.ticks ORDER BY revision DESC LIMIT 1
), ticks AS (
    DELETE FROM reconciler.ticks t
    WHERE t.revision > sqlc.arg(after)::bigint AND t.revision <= sqlc.arg(upto)::bigint
      AND t.at < clock_timestamp() - interval '10 minutes'
      AND t.revision < (SELECT revision FROM newest)
      AND (t.at < clock_timestamp() - sqlc.arg(max_age)::interval
        OR EXISTS (SELECT FROM reconciler.ticks n WHERE n.revision = t.revision + 1 AND date_trunc('minute', n.at) = date_trunc('minute', t.at)))
), resources AS (
    DELETE FROM reconciler.resources r WHERE r.removed_at IS NOT NULL AND NOT EXISTS (SELECT FROM reconciler.targets t CROSS JOIN LATERAL (
        SELECT FROM reconciler.ledger l WHERE l.target_id = t.id AND l.resource_id = r.id LIMIT 1) AS l)
      AND NOT EXISTS (SELECT FROM reconciler.first_calls c WHERE c.resource_id = r.id)
), runs AS (
    DELETE FROM reconciler.sync_runs s WHERE s.id IN (SELECT x.id FROM reconciler.sync_runs x
        WHERE x.resource_id IS NOT NULL AND NOT EXISTS (SELECT FROM reconciler.resources r WHERE r.id = x.resource_id) FOR UPDATE SKIP LOCKED)
), drift AS (
    DELETE FROM reconciler.drift_found d WHERE NOT EXISTS (SELECT FROM reconciler.resources r WHERE r.id = d.resource_id)
), passes AS (
    DELETE FROM reconciler.guard_passes p WHERE p.until < clock_timestamp()
)
SELECT coalesce((SELECT revision FROM newest), 0)::bigint AS newest, reconciler.forget_applies(sqlc.arg(applies_kept)::interval, sqlc.arg(most_applies)::int)::int AS applies,
    reconciler.forget_objects(sqlc.arg(most_objects)::int)::int AS objects,
    reconciler.forget_tombstones(sqlc.arg(most_tombstones)::int)::boolean AS more_tombstones,
    clock_timestamp()::timestamptz AS now;

-- name: ClampTimes :exec
SELECT reconciler.clamp_times();

-- name: OutboxDelta :many
-- One page of what became visible between two snapshots, in the order (xid, seq), after a place in it. The order
-- carries no meaning: it is the order of the index. Transactions that were in progress at the first snapshot come
-- first; each is walked by itself, so that a giant one is not sorted for every page. Those in progress at the second
-- are stepped over. Each walk has one lower bound: of several on the first column the index takes one to start at, and
-- reads on from there to the others, which took the whole of a giant transaction for every page of it.
-- The floor comes with it (and without rows too): the parts of the outbox are locked before the statement takes its
-- snapshot, so retention either told of the floor before, or removes rows only after.
-- The page's size is a subquery so that the planner does not know it: with a number it takes all rows for fewer than a page
-- on a table without statistics, and sorts a backlog of millions anew for each page (220 ms against 3).
SELECT f.floor_revision, coalesce(d.xid, '0'::xid8)::xid8 AS xid, coalesce(d.seq, 0)::bigint AS seq, coalesce(d.resource_id, 0)::int AS resource_id, d.target, d.key, d.dependency_id, d.image
FROM (SELECT floor_revision FROM reconciler.installation) AS f LEFT JOIN LATERAL (SELECT n.* FROM (
    (SELECT o.xid, o.seq, o.resource_id, o.target, o.key, o.dependency_id, o.image
     FROM (SELECT xip FROM pg_snapshot_xip(sqlc.arg(from_snapshot)::text::pg_snapshot) AS xip
           WHERE xip >= sqlc.arg(after_xid)::text::xid8 AND pg_visible_in_snapshot(xip, sqlc.arg(to_snapshot)::text::pg_snapshot)) AS x
     CROSS JOIN LATERAL (SELECT * FROM reconciler.outbox i WHERE i.xid = x.xip AND i.seq > CASE WHEN x.xip = sqlc.arg(after_xid)::text::xid8 THEN sqlc.arg(after_seq)::bigint ELSE -1 END
                         ORDER BY i.xid, i.seq LIMIT (SELECT sqlc.arg(page_rows)::int)) AS o
     ORDER BY o.xid, o.seq LIMIT (SELECT sqlc.arg(page_rows)::int))
    UNION ALL
    (SELECT o.xid, o.seq, o.resource_id, o.target, o.key, o.dependency_id, o.image
     FROM (SELECT CASE WHEN p.after THEN sqlc.arg(after_xid)::text::xid8 ELSE p.above END AS xid,
               CASE WHEN p.after THEN sqlc.arg(after_seq)::bigint WHEN p.first THEN -1 ELSE 9223372036854775807 END AS seq, p.below
           FROM (SELECT coalesce(ends.above, ends.xmax) AS above, ends.above IS NULL AS first, ends.below,
                     sqlc.arg(after_xid)::text::xid8 >= coalesce(ends.above, ends.xmax) AS after
                 FROM (SELECT lag(ends.e) OVER (ORDER BY ends.e) AS above, ends.e AS below, pg_snapshot_xmax(sqlc.arg(from_snapshot)::text::pg_snapshot) AS xmax
                       FROM (SELECT x.e FROM (SELECT pg_snapshot_xip(sqlc.arg(to_snapshot)::text::pg_snapshot) AS e) AS x WHERE x.e >= pg_snapshot_xmax(sqlc.arg(from_snapshot)::text::pg_snapshot)
                             UNION ALL SELECT pg_snapshot_xmax(sqlc.arg(to_snapshot)::text::pg_snapshot)) AS ends) AS ends) AS p
           -- Between ids that follow each other there is nothing to walk.
           WHERE p.below::text::bigint > CASE WHEN p.after THEN sqlc.arg(after_xid)::text::bigint WHEN p.first THEN p.above::text::bigint ELSE p.above::text::bigint + 1 END) AS g
     CROSS JOIN LATERAL (SELECT * FROM reconciler.outbox i WHERE (i.xid, i.seq) > (g.xid, g.seq) AND i.xid < g.below
         ORDER BY i.xid, i.seq LIMIT (SELECT sqlc.arg(page_rows)::int)) AS o
     ORDER BY o.xid, o.seq LIMIT (SELECT sqlc.arg(page_rows)::int))
) AS n ORDER BY n.xid, n.seq LIMIT (SELECT sqlc.arg(page_rows)::int)) AS d ON true;

-- name: OutboxRetain :one
SELECT reconciler.retain(sqlc.arg(max_age)::interval, sqlc.arg(max_rows)::bigint, sqlc.arg(rotate_after)::interval)::text AS done;

-- name: Adopt :one
SELECT reconciler.adopt(sqlc.arg(known)::bigint, sqlc.narg(seen_system)::bigint, sqlc.arg(seen_timeline)::bigint)::boolean AS restored;

-- name: LeaderCursor :one
SELECT coalesce(c.revision, 0)::bigint AS revision, coalesce(c.snapshot::text, '')::text AS snapshot FROM reconciler.cursor_of(0) AS c;

-- name: ChangesUnexpanded :one
-- Whether there are changes of base tables, and a target has a cursor, and so counts on their being expanded from there on.
SELECT (EXISTS (SELECT FROM reconciler.target_cursors WHERE revision IS NOT NULL) AND EXISTS (SELECT FROM reconciler.outbox WHERE dependency_id > 0))::boolean AS unexpanded;

-- name: LeaderCursorWrite :exec
SELECT reconciler.write_cursor(0, sqlc.arg(revision)::bigint, sqlc.arg(snapshot)::text::pg_snapshot)
FROM reconciler.leases WHERE name = 'tick' AND owner = sqlc.arg(owner)::uuid AND term = sqlc.arg(term)::bigint;

-- name: LeaderFence :exec
SELECT reconciler.fence_leader(sqlc.arg(owner)::uuid, sqlc.arg(term)::bigint);

-- name: SleepLockTry :one
-- The leader only tries: a waiting exclusive request would make every probe of a trigger fail.
SELECT pg_try_advisory_lock(reconciler.sleep_lock())::boolean AS locked;

-- name: WritersNotify :one
SELECT notify FROM reconciler.settings;

-- name: SleepLockRelease :exec
SELECT pg_advisory_unlock(reconciler.sleep_lock());

-- name: SnapshotNow :one
SELECT pg_current_snapshot()::text AS snapshot;

-- name: StillInProgress :one
-- Whether a transaction that was in progress at a snapshot still is.
SELECT EXISTS (
    SELECT pg_snapshot_xip(sqlc.arg(snapshot)::text::pg_snapshot) INTERSECT SELECT pg_snapshot_xip(pg_current_snapshot())
)::boolean AS in_progress;

-- name: NotifyTick :exec
SELECT pg_notify('reconciler_tick', '');

-- name: Regenerate :one
SELECT reconciler.regenerate(sqlc.arg(resource)::text)::int AS regenerated;

-- name: OutboxWhole :exec
INSERT INTO reconciler.outbox (resource_id) VALUES (sqlc.arg(resource_id)::int);

-- name: OutboxResource :exec
INSERT INTO reconciler.outbox (resource_id) SELECT r.id FROM reconciler.resources r WHERE r.name = sqlc.arg(resource)::text AND r.removed_at IS NULL;

-- name: NotifyQueue :one
-- How many commits wait for the lock that NOTIFY takes, one for the whole cluster.
SELECT count(*) FROM pg_catalog.pg_locks l WHERE l.locktype = 'object' AND l.database = 0 AND l.classid = 1262 AND l.objid = 0 AND NOT l.granted;

-- name: OutboxUncaptured :many
-- Has the resources synced whose triggers may not write the outbox, and those that were such before; returns the former.
WITH uncaptured AS MATERIALIZED (
    SELECT r.id FROM reconciler.resources r WHERE r.name IN (SELECT f.resource FROM reconciler.failing_writes() AS f)
), marked AS (
    INSERT INTO reconciler.outbox (resource_id)
    SELECT u.id FROM uncaptured u UNION SELECT r.id FROM reconciler.resources r WHERE r.removed_at IS NULL AND r.id = ANY (sqlc.arg(before)::int[])
)
SELECT u.id FROM uncaptured u ORDER BY u.id;

-- name: SourcesAltered :many
-- Has the resources synced for which DDL has changed what their rows are made from; returns their names and what was altered.
WITH compared AS MATERIALIZED (
    SELECT r.id, r.name, reconciler.store_sources(r.id) AS altered FROM reconciler.resources r WHERE r.removed_at IS NULL
), marked AS (
    INSERT INTO reconciler.outbox (resource_id) SELECT c.id FROM compared c WHERE c.altered IS NOT NULL
)
SELECT c.name, c.altered::text AS altered FROM compared c WHERE c.altered IS NOT NULL ORDER BY c.name;

-- name: LockTimeoutSet :exec
-- For the transaction it runs in.
SELECT set_config('lock_timeout', sqlc.arg(milliseconds)::bigint::text, true)::text AS value;

-- name: MisfitResources :many
SELECT DISTINCT m.resource_id FROM reconciler.misfits m ORDER BY m.resource_id;
