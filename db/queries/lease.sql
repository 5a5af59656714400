-- name: InstanceRegister :exec
INSERT INTO reconciler.instances (id, name, version, targets, options)
VALUES (sqlc.arg(id)::uuid, sqlc.arg(name)::text, sqlc.arg(version)::text, sqlc.arg(targets)::text[], sqlc.arg(options)::text[])
ON CONFLICT (id) DO UPDATE SET name = excluded.name, version = excluded.version, targets = excluded.targets, options = excluded.options, started_at = clock_timestamp();

-- name: ConfigRegister :exec
-- This process replaces those with the same source that share a target with it (without one, it may be another host of the same name),
-- and stopped ones that had no other targets than it has, so that rows do not pile up.
WITH replaced AS (
    DELETE FROM reconciler.configs c
    WHERE c.instance <> sqlc.arg(id)::uuid AND (c.source = sqlc.arg(source)::text AND c.targets && sqlc.arg(targets)::text[]
        OR c.targets <@ sqlc.arg(targets)::text[] AND NOT EXISTS (SELECT FROM reconciler.instances i WHERE i.id = c.instance))
)
INSERT INTO reconciler.configs (instance, source, targets) VALUES (sqlc.arg(id)::uuid, sqlc.arg(source)::text, sqlc.arg(targets)::text[])
ON CONFLICT (instance) DO UPDATE SET source = excluded.source, targets = excluded.targets, started_at = excluded.started_at;

-- name: InstanceRemove :exec
-- Others plan without this process from here on.
WITH removed AS (DELETE FROM reconciler.instances WHERE id = sqlc.arg(id)::uuid RETURNING id),
     silent AS (DELETE FROM reconciler.heartbeats WHERE instance = sqlc.arg(id)::uuid)
SELECT pg_notify('reconciler_control', '')::text AS told FROM removed;

-- name: InstancesForget :exec
-- Removes processes that this one has not heard of for long. One that has sent a heartbeat meanwhile stays.
WITH silent AS (
    SELECT unnest(sqlc.arg(ids)::uuid[]) AS id, unnest(sqlc.arg(beats)::bigint[]) AS beat
), gone AS (
    DELETE FROM reconciler.instances WHERE id IN (
        SELECT i.id FROM reconciler.instances i JOIN silent s ON s.id = i.id CROSS JOIN LATERAL reconciler.last_beat(i.id) AS b
        WHERE coalesce(b.beat, 0) = s.beat
        FOR UPDATE OF i SKIP LOCKED)
    RETURNING id
)
DELETE FROM reconciler.heartbeats h USING gone WHERE h.instance = gone.id;

-- name: TargetsInsert :exec
-- Makes the missing rows only: ON CONFLICT alone would lock each row and use up an id for it. After a logical move ids
-- may be taken until a leader has noticed it: such a row is made later.
INSERT INTO reconciler.targets (name)
SELECT n.name FROM (SELECT unnest(sqlc.arg(names)::text[]) AS name) AS n
WHERE NOT EXISTS (SELECT FROM reconciler.targets t WHERE t.name = n.name)
ORDER BY n.name
ON CONFLICT DO NOTHING;

-- name: TargetsDescribe :one
-- Writes what the config says where the row says otherwise. -1 stands for no limit. It returns how many rows are locked by
-- somebody, and have to be written later.
WITH said AS (
    SELECT u.name, u.driver, nullif(u.max_deletes, -1) AS max_deletes, nullif(u.max_fraction, -1) AS max_fraction
    FROM (SELECT unnest(sqlc.arg(names)::text[]) AS name, unnest(sqlc.arg(drivers)::text[]) AS driver,
                 unnest(sqlc.arg(max_deletes)::bigint[]) AS max_deletes, unnest(sqlc.arg(max_fractions)::float8[]) AS max_fraction) AS u
), other AS (
    SELECT t.id, s.driver, s.max_deletes, s.max_fraction
    FROM reconciler.targets t JOIN said s ON s.name = t.name
    WHERE NOT t.configured OR t.driver IS DISTINCT FROM s.driver
       OR t.max_deletes IS DISTINCT FROM s.max_deletes OR t.max_fraction IS DISTINCT FROM s.max_fraction
), written AS (
    UPDATE reconciler.targets t
    SET configured = true, driver = o.driver, max_deletes = o.max_deletes, max_fraction = o.max_fraction
    FROM other o WHERE t.id = o.id AND t.id IN (SELECT f.id FROM reconciler.targets f JOIN other USING (id) FOR NO KEY UPDATE OF f SKIP LOCKED)
    RETURNING t.id
), left_behind AS ( -- what a target has published by another driver is none of a later stream's
    DELETE FROM reconciler.streams s USING other o WHERE s.target_id = o.id AND o.driver <> 'stream'
)
SELECT ((SELECT count(*) FROM other) - (SELECT count(*) FROM written))::bigint AS locked;

-- name: LeaseHeartbeat :many
-- The whole heartbeat in one statement: this process is seen, everything that it owns is renewed, and what the sharing out
-- needs is read, as of the beginning of the statement. It waits for nobody's lock. Times are the server's clock_timestamp():
-- now() stands still in a transaction. They only serve to share targets out: no lease is judged by them. The beat of
-- the row 'server' is its timeline: an answer counts for the server that gave it.
WITH sent AS MATERIALIZED (
    SELECT reconciler.beat(sqlc.arg(instance)::uuid, sqlc.arg(instance_name)::text, sqlc.arg(version)::text, sqlc.arg(listed)::text[],
                           sqlc.arg(options)::text[], sqlc.arg(beat)::bigint, sqlc.arg(answered)::bigint, sqlc.narg(failing)::jsonb)::text AS done
)
SELECT 'server'::text AS kind, sent.done::text AS name, ''::text AS instance, 0::bigint AS term, false::boolean AS misconfigured,
       '0'::interval AS ttl, ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint AS beat,
       clock_timestamp()::timestamptz AS at, '{}'::text[] AS targets, '{}'::text[] AS options
FROM sent
UNION ALL
SELECT 'target', t.name, coalesce(t.owner::text, ''), t.term, t.configured <> (c.target IS NOT NULL), t.lease_ttl, 0, 'epoch', '{}',
       ARRAY[coalesce(t.options_fingerprint, '')]
FROM reconciler.targets t LEFT JOIN reconciler.configured_targets c ON c.target = t.name
WHERE t.configured OR c.target IS NOT NULL OR t.name = ANY (sqlc.arg(names)::text[])
UNION ALL
SELECT 'leader', l.name, coalesce(l.owner::text, ''), l.term, false, l.lease_ttl, 0, 'epoch', '{}', '{}'
FROM reconciler.leases l WHERE l.name = 'tick'
UNION ALL
SELECT 'instance', i.name, i.id::text, 0, false, '0', coalesce(b.beat, 0), coalesce(b.at, i.started_at), i.targets, i.options
FROM reconciler.instances i CROSS JOIN LATERAL reconciler.last_beat(i.id) AS b;

-- name: TargetsAcquire :many
-- Takes the targets that nobody owns, that this process itself owned in an earlier run, and those whose lease has expired:
-- the caller says with which owner, term and heartbeat it saw them, and they must still be so. Each gets a new term, one that begins anew a fresh one. A target that was not released may have objects that the ledger does not know: not clean. Changed options need
-- a verifying sync; it is asked for here, so that a crash right after this does not forget it. What the place before has is noted. timeline is that of the server that answers.
WITH asked AS (
    SELECT unnest(sqlc.arg(names)::text[]) AS name, unnest(sqlc.arg(fingerprints)::text[]) AS fingerprint, unnest(sqlc.arg(ttls)::interval[]) AS ttl,
           unnest(sqlc.arg(places)::text[]) AS place, unnest(sqlc.arg(place_keys)::text[]) AS place_key,
           unnest(sqlc.arg(seen_owners)::text[]) AS seen_owner, unnest(sqlc.arg(seen_terms)::bigint[]) AS seen_term, unnest(sqlc.arg(seen_beats)::bigint[]) AS seen_beat
), locked AS (
    SELECT t.id, a.fingerprint, a.ttl, a.place, a.place_key, t.options_fingerprint AS before, t.place AS old_place, t.place_key AS old_key
    FROM reconciler.targets t JOIN asked a ON a.name = t.name
    WHERE t.owner IS NULL OR t.owner = sqlc.arg(instance)::uuid OR reconciler.unrenewed(t.owner, t.term, a.seen_owner, a.seen_term, a.seen_beat)
    FOR NO KEY UPDATE OF t SKIP LOCKED
), taken AS (
    UPDATE reconciler.targets t
    SET owner = sqlc.arg(instance)::uuid, term = CASE WHEN (reconciler.cursor_of(t.id)).revision IS NULL THEN reconciler.fresh_term(t.term) ELSE t.term + 1 END, lease_ttl = l.ttl,
        clean = t.clean AND t.owner IS NULL, options_fingerprint = l.fingerprint,
        place = l.place, place_key = l.place_key
    FROM locked l WHERE t.id = l.id
    RETURNING t.id, t.name, t.term, t.clean, coalesce(l.before <> l.fingerprint, false) AS changed, l.old_place, l.old_key,
        l.old_place <> '' AND (l.old_place, l.old_key) <> (l.place, l.place_key) AS moved
), counted AS (
    SELECT m.id, m.old_place, m.old_key, n.objects
    FROM taken m CROSS JOIN LATERAL (
        SELECT count(*) AS objects FROM (SELECT FROM reconciler.ledger l WHERE l.target_id = m.id AND l.present LIMIT 100000) AS x) AS n
    WHERE m.moved AND n.objects > 0
), noted AS (
    INSERT INTO reconciler.left_places AS p (target_id, place, place_key, objects)
    SELECT c.id, c.old_place, c.old_key, c.objects FROM counted c
    ON CONFLICT (target_id, place, place_key) DO UPDATE SET objects = greatest(p.objects, excluded.objects), at = excluded.at
), synced AS (
    INSERT INTO reconciler.sync_runs (target_id, reason, verify)
    SELECT taken.id, 'options changed', true FROM taken WHERE taken.changed
    ON CONFLICT (target_id, (coalesce(resource_id, 0))) WHERE state = 'requested' DO UPDATE SET verify = true
)
SELECT taken.id::int AS id, taken.name::text AS name, taken.term::bigint AS term, taken.clean::boolean AS clean,
       ((reconciler.cursor_of(taken.id)).revision IS NULL)::boolean AS fresh, taken.changed::boolean AS options_changed,
       coalesce((SELECT c.objects FROM counted c WHERE c.id = taken.id), 0)::bigint AS left_objects, taken.old_place::text AS left_place,
       ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint AS timeline
FROM taken ORDER BY taken.name;

-- name: LeaderAcquire :many
-- No row: somebody else leads, or is just taking over.
UPDATE reconciler.leases l
SET owner = sqlc.arg(instance)::uuid, term = l.term + 1, lease_ttl = sqlc.arg(ttl)::interval
WHERE l.name IN (
    SELECT f.name FROM reconciler.leases f
    WHERE f.name = 'tick' AND (f.owner IS NULL OR f.owner = sqlc.arg(instance)::uuid
        OR reconciler.unrenewed(f.owner, f.term, sqlc.arg(seen_owner)::text, sqlc.arg(seen_term)::bigint, sqlc.arg(seen_beat)::bigint))
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
    UPDATE reconciler.targets t SET owner = NULL, clean = t.clean AND l.clean
    FROM locked l WHERE t.id = l.id RETURNING t.name
)
SELECT released.name::text AS name, pg_notify('reconciler_control', '')::text AS told FROM released;

-- name: LeaderRelease :many
WITH released AS (
    UPDATE reconciler.leases SET owner = NULL
    WHERE name IN (
        SELECT l.name FROM reconciler.leases l
        WHERE l.name = 'tick' AND l.owner = sqlc.arg(instance)::uuid AND l.term = sqlc.arg(term)::bigint
        FOR NO KEY UPDATE SKIP LOCKED)
    RETURNING name
)
SELECT released.name::text AS name, pg_notify('reconciler_control', '')::text AS told FROM released;

-- name: TargetsDisown :many
-- Leases that this process owns and does not hold end now: its heartbeats do not renew them any more.
WITH given AS (
    SELECT unnest(sqlc.arg(names)::text[]) AS name, unnest(sqlc.arg(terms)::bigint[]) AS term
), locked AS (
    SELECT t.id FROM reconciler.targets t JOIN given g ON g.name = t.name AND g.term = t.term
    WHERE t.owner = sqlc.arg(instance)::uuid
    FOR NO KEY UPDATE OF t SKIP LOCKED
), ended AS (
    UPDATE reconciler.targets t SET lease_ttl = '0' FROM locked l WHERE t.id = l.id RETURNING t.name
)
SELECT ended.name::text AS name, pg_notify('reconciler_control', '')::text AS told FROM ended;

-- name: LeaderDisown :exec
UPDATE reconciler.leases SET lease_ttl = '0'
WHERE name IN (
    SELECT l.name FROM reconciler.leases l
    WHERE l.name = 'tick' AND l.owner = sqlc.arg(instance)::uuid AND l.term = sqlc.arg(term)::bigint
    FOR NO KEY UPDATE SKIP LOCKED);

-- name: TargetsConfigure :many
-- Sets configured as configured_targets says. Retention stops caring for a target that is no longer configured; its ledger rows
-- stay. Never while somebody owns the target: its owner reads on from a cursor in memory, and the outbox rows behind it must not go.
WITH seen AS (
    SELECT unnest(sqlc.arg(names)::text[]) AS name, unnest(sqlc.arg(seen_owners)::text[]) AS owner,
           unnest(sqlc.arg(seen_terms)::bigint[]) AS term, unnest(sqlc.arg(seen_beats)::bigint[]) AS beat
), changed AS (
    UPDATE reconciler.targets t SET configured = NOT t.configured
    WHERE t.id IN (
        SELECT f.id FROM reconciler.targets f JOIN seen s ON s.name = f.name
        WHERE f.configured <> (f.name IN (SELECT c.target FROM reconciler.configured_targets c))
          AND (NOT f.configured OR f.owner IS NULL OR reconciler.unrenewed(f.owner, f.term, s.owner, s.term, s.beat))
        FOR NO KEY UPDATE OF f SKIP LOCKED)
    RETURNING t.id, t.name, t.configured
), forgotten AS (
    DELETE FROM reconciler.cursors c USING changed d WHERE c.consumer = d.id AND NOT d.configured
)
SELECT changed.name::text AS name FROM changed WHERE NOT changed.configured ORDER BY changed.name;

-- name: TargetsResyncAfterOldPrimary :one
-- Targets that this process owned on a server with an earlier timeline, last so long ago each.
SELECT reconciler.resync_after_old_primary(sqlc.arg(targets)::text[], sqlc.arg(ages)::interval[])::text[] AS targets;

-- name: TargetFence :exec
-- The first statement of every write of an owner; SQLSTATE RC001 when its term is over.
SELECT reconciler.fence(sqlc.arg(target_id)::int, sqlc.arg(owner)::uuid, sqlc.arg(term)::bigint)::text AS fenced;
