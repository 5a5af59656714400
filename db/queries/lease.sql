-- name: InstanceRegister :exec
INSERT INTO reconciler.instances (id, name, version, targets)
VALUES (sqlc.arg(id)::uuid, sqlc.arg(name)::text, sqlc.arg(version)::text, sqlc.arg(targets)::text[])
ON CONFLICT (id) DO UPDATE SET name = excluded.name, version = excluded.version, targets = excluded.targets,
    started_at = clock_timestamp(), seen_at = clock_timestamp();

-- name: InstanceRemove :exec
-- Others plan without this process from here on.
WITH removed AS (DELETE FROM reconciler.instances WHERE id = sqlc.arg(id)::uuid RETURNING id)
SELECT pg_notify('reconciler_control', '')::text AS told FROM removed;

-- name: TargetsInsert :exec
-- Makes the missing rows only: ON CONFLICT alone would lock each row and use up an id for it.
INSERT INTO reconciler.targets (name)
SELECT n.name FROM (SELECT unnest(sqlc.arg(names)::text[]) AS name) AS n
WHERE NOT EXISTS (SELECT FROM reconciler.targets t WHERE t.name = n.name)
ORDER BY n.name
ON CONFLICT (name) DO NOTHING;

-- name: TargetsDescribe :exec
-- Writes what the config says where the row says otherwise. -1 stands for no limit.
WITH said AS (
    SELECT u.name, u.driver, nullif(u.max_deletes, -1) AS max_deletes, nullif(u.max_fraction, -1) AS max_fraction
    FROM (SELECT unnest(sqlc.arg(names)::text[]) AS name, unnest(sqlc.arg(drivers)::text[]) AS driver,
                 unnest(sqlc.arg(max_deletes)::bigint[]) AS max_deletes, unnest(sqlc.arg(max_fractions)::float8[]) AS max_fraction) AS u
), locked AS (
    SELECT t.id, s.driver, s.max_deletes, s.max_fraction
    FROM reconciler.targets t JOIN said s ON s.name = t.name
    WHERE NOT t.configured OR t.driver IS DISTINCT FROM s.driver
       OR t.max_deletes IS DISTINCT FROM s.max_deletes OR t.max_fraction IS DISTINCT FROM s.max_fraction
    ORDER BY t.name FOR NO KEY UPDATE OF t
)
UPDATE reconciler.targets t
SET configured = true, driver = l.driver, max_deletes = l.max_deletes, max_fraction = l.max_fraction
FROM locked l WHERE t.id = l.id;

-- name: LeaseHeartbeat :many
-- The whole heartbeat in one statement: this process is seen, its leases are renewed, dead processes are removed, and
-- everything that the sharing out needs is read, as of the beginning of the statement. Time is the server's
-- clock_timestamp(), here as everywhere: now() stands still in a transaction, and the clock of a client may be wrong.
-- Locked rows are skipped: one that somebody holds (a person's open transaction with pause(), say) must not hold up the
-- others. A row with renewed = false that still names this process was locked. remaining is how long the lease still
-- lives, or the process still counts as live.
WITH me AS (
    INSERT INTO reconciler.instances (id, name, version, targets)
    VALUES (sqlc.arg(instance)::uuid, sqlc.arg(instance_name)::text, sqlc.arg(version)::text, sqlc.arg(listed)::text[])
    ON CONFLICT (id) DO UPDATE SET seen_at = clock_timestamp(), targets = excluded.targets
), gone AS (
    DELETE FROM reconciler.instances WHERE id IN (
        SELECT i.id FROM reconciler.instances i
        WHERE i.seen_at < clock_timestamp() - sqlc.arg(gone_after)::interval AND i.id <> sqlc.arg(instance)::uuid
        FOR UPDATE SKIP LOCKED)
), held AS (
    SELECT unnest(sqlc.arg(held_names)::text[]) AS name, unnest(sqlc.arg(held_terms)::bigint[]) AS term,
           unnest(sqlc.arg(held_ttls)::interval[]) AS ttl
), locked AS (
    SELECT t.id, h.ttl FROM reconciler.targets t JOIN held h ON h.name = t.name AND h.term = t.term
    WHERE t.owner = sqlc.arg(instance)::uuid
    FOR NO KEY UPDATE OF t SKIP LOCKED
), renewed AS (
    UPDATE reconciler.targets t SET lease_until = clock_timestamp() + l.ttl FROM locked l WHERE t.id = l.id RETURNING t.id
), led AS (
    UPDATE reconciler.leases SET lease_until = clock_timestamp() + sqlc.arg(leader_ttl)::interval
    WHERE name IN (
        SELECT l.name FROM reconciler.leases l
        WHERE l.name = 'tick' AND l.owner = sqlc.arg(instance)::uuid AND l.term = sqlc.arg(leader_term)::bigint
        FOR NO KEY UPDATE SKIP LOCKED)
    RETURNING name
)
SELECT 'target'::text AS kind, t.name::text AS name, coalesce(t.owner::text, '')::text AS instance, t.term::bigint AS term,
       EXISTS (SELECT FROM renewed r WHERE r.id = t.id)::boolean AS renewed, t.configured::boolean AS configured,
       coalesce(t.lease_until - clock_timestamp(), '0')::interval AS remaining, '{}'::text[] AS targets
FROM reconciler.targets t WHERE t.configured OR t.name = ANY (sqlc.arg(names)::text[])
UNION ALL
SELECT 'leader', l.name, coalesce(l.owner::text, ''), l.term, EXISTS (SELECT FROM led), true,
       coalesce(l.lease_until - clock_timestamp(), '0')::interval, '{}'
FROM reconciler.leases l WHERE l.name = 'tick'
UNION ALL
SELECT 'instance', i.name, i.id::text, 0, false, true, (i.seen_at + sqlc.arg(live_within)::interval - clock_timestamp())::interval, i.targets
FROM reconciler.instances i;

-- name: LockTimeoutSet :exec
-- For the transaction it runs in.
SELECT set_config('lock_timeout', sqlc.arg(milliseconds)::bigint::text, true)::text AS value;

-- name: TargetRenew :execrows
-- Unlike the heartbeat it waits for the row: the owner's own ledger writes may hold it most of the time.
UPDATE reconciler.targets SET lease_until = clock_timestamp() + sqlc.arg(ttl)::interval
WHERE name = sqlc.arg(name)::text AND owner = sqlc.arg(instance)::uuid AND term = sqlc.arg(term)::bigint;

-- name: LeaderRenew :execrows
UPDATE reconciler.leases SET lease_until = clock_timestamp() + sqlc.arg(ttl)::interval
WHERE name = 'tick' AND owner = sqlc.arg(instance)::uuid AND term = sqlc.arg(term)::bigint;

-- name: TargetsAcquire :many
-- Takes the targets that nobody owns any more, or that this process itself owned in an earlier run. Each gets a new
-- term. A target that was not released may have objects that the ledger does not know: not clean. Changed options need
-- a verifying sync; it is asked for here, so that a crash right after this does not forget it.
WITH asked AS (
    SELECT unnest(sqlc.arg(names)::text[]) AS name, unnest(sqlc.arg(fingerprints)::text[]) AS fingerprint, unnest(sqlc.arg(ttls)::interval[]) AS ttl
), locked AS (
    SELECT t.id, a.fingerprint, a.ttl, t.options_fingerprint AS before
    FROM reconciler.targets t JOIN asked a ON a.name = t.name
    WHERE t.owner IS NULL OR t.lease_until <= clock_timestamp() OR t.owner = sqlc.arg(instance)::uuid
    FOR NO KEY UPDATE OF t SKIP LOCKED
), taken AS (
    UPDATE reconciler.targets t
    SET owner = sqlc.arg(instance)::uuid, term = t.term + 1, lease_until = clock_timestamp() + l.ttl,
        clean = t.clean AND t.owner IS NULL, options_fingerprint = l.fingerprint
    FROM locked l WHERE t.id = l.id
    RETURNING t.id, t.name, t.term, t.clean, t.cursor_revision, coalesce(l.before <> l.fingerprint, false) AS changed
), synced AS (
    INSERT INTO reconciler.sync_runs (target_id, reason, verify)
    SELECT taken.id, 'options changed', true FROM taken WHERE taken.changed
    ON CONFLICT (target_id, (coalesce(resource_id, 0))) WHERE state = 'requested' DO UPDATE SET verify = true
)
SELECT taken.id::int AS id, taken.name::text AS name, taken.term::bigint AS term, taken.clean::boolean AS clean,
       (taken.cursor_revision IS NULL)::boolean AS fresh, taken.changed::boolean AS options_changed
FROM taken ORDER BY taken.name;

-- name: LeaderAcquire :many
-- No row: somebody else leads, or is just taking over.
UPDATE reconciler.leases l
SET owner = sqlc.arg(instance)::uuid, term = l.term + 1, lease_until = clock_timestamp() + sqlc.arg(ttl)::interval
WHERE l.name IN (
    SELECT f.name FROM reconciler.leases f
    WHERE f.name = 'tick' AND (f.owner IS NULL OR f.lease_until <= clock_timestamp() OR f.owner = sqlc.arg(instance)::uuid)
    FOR NO KEY UPDATE SKIP LOCKED)
RETURNING l.term;

-- name: TargetsRelease :many
-- Gives targets back and wakes the others. clean = false: the run did not end well, its last results may be unrecorded.
WITH given AS (
    SELECT unnest(sqlc.arg(names)::text[]) AS name, unnest(sqlc.arg(terms)::bigint[]) AS term, unnest(sqlc.arg(cleans)::boolean[]) AS clean
), locked AS (
    SELECT t.id, g.clean FROM reconciler.targets t JOIN given g ON g.name = t.name AND g.term = t.term
    WHERE t.owner = sqlc.arg(instance)::uuid
    FOR NO KEY UPDATE OF t SKIP LOCKED
), released AS (
    UPDATE reconciler.targets t SET owner = NULL, lease_until = NULL, clean = t.clean AND l.clean
    FROM locked l WHERE t.id = l.id RETURNING t.name
)
SELECT released.name::text AS name, pg_notify('reconciler_control', '')::text AS told FROM released;

-- name: LeaderRelease :many
WITH released AS (
    UPDATE reconciler.leases SET owner = NULL, lease_until = NULL
    WHERE name IN (
        SELECT l.name FROM reconciler.leases l
        WHERE l.name = 'tick' AND l.owner = sqlc.arg(instance)::uuid AND l.term = sqlc.arg(term)::bigint
        FOR NO KEY UPDATE SKIP LOCKED)
    RETURNING name
)
SELECT released.name::text AS name, pg_notify('reconciler_control', '')::text AS told FROM released;

-- name: TargetsConfigure :many
-- Sets configured for what a process lists.
UPDATE reconciler.targets t SET configured = true
WHERE t.id IN (
    SELECT f.id FROM reconciler.targets f
    WHERE NOT f.configured AND f.name IN (
        SELECT unnest(i.targets) FROM reconciler.instances i)
    FOR NO KEY UPDATE SKIP LOCKED)
RETURNING t.name;

-- name: TargetsUnconfigure :many
-- Retention stops caring for these targets; their ledger rows stay. Never while somebody owns the target: its owner
-- reads on from a cursor in memory, and the outbox rows behind it must not go.
UPDATE reconciler.targets t
SET configured = false, cursor_revision = NULL, cursor_snapshot = NULL,
    batch_revision = NULL, batch_snapshot = NULL, batch_xid = NULL, batch_seq = NULL
WHERE t.id IN (
    SELECT f.id FROM reconciler.targets f
    WHERE f.configured AND f.name = ANY (sqlc.arg(names)::text[])
      AND (f.owner IS NULL OR f.lease_until <= clock_timestamp())
      AND NOT EXISTS (SELECT FROM reconciler.instances i WHERE f.name = ANY (i.targets))
    FOR NO KEY UPDATE SKIP LOCKED)
RETURNING t.name;

-- name: TargetFence :exec
-- The first statement of every write of an owner; SQLSTATE RC001 when its term is over.
SELECT reconciler.fence(sqlc.arg(target_id)::int, sqlc.arg(owner)::uuid, sqlc.arg(term)::bigint)::text AS fenced;
