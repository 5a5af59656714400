-- name: StreamOwn :one
SELECT reconciler.own_stream(sqlc.arg(target_id)::int, sqlc.arg(owner)::uuid, sqlc.arg(term)::bigint,
    sqlc.arg(history)::interval, sqlc.arg(ack)::boolean)::boolean AS complete;

-- name: StreamPublish :one
-- Specs that are '' stand for deletes. It returns how many objects changed, and whether other processes serve watchers.
SELECT r.changed::bigint AS changed, r.watched::boolean AS watched
FROM reconciler.publish(sqlc.arg(target_id)::int, sqlc.arg(owner)::uuid, sqlc.arg(term)::bigint,
    sqlc.arg(resources)::text[], sqlc.arg(keys)::text[], sqlc.arg(revisions)::bigint[],
    sqlc.arg(specs)::text[], sqlc.arg(hashes)::bytea[]) AS r;

-- name: StreamComplete :exec
SELECT reconciler.complete_stream(sqlc.arg(target_id)::int, sqlc.arg(owner)::uuid, sqlc.arg(term)::bigint)::text
    AS completed;

-- name: PublishedPage :many
-- A page of what a stream has of a resource, in key order, from a key on. With acked, unreported are those that the ledger may take for
-- confirmed, and that no client has reported since the database was restored.
SELECT p.key, p.hash, coalesce(sqlc.arg(acked)::boolean AND i.counts_from > 0 AND NOT EXISTS (
    SELECT FROM reconciler.observations o
    WHERE o.target_id = p.target_id AND o.key = p.key AND o.session >= i.counts_from
      AND o.resource_id = (SELECT r.id FROM reconciler.resources r WHERE r.name = p.resource)), false)::boolean AS unreported
FROM reconciler.published p LEFT JOIN reconciler.reports i ON i.target_id = p.target_id
WHERE p.target_id = sqlc.arg(target_id)::int AND p.resource = sqlc.arg(resource)::text AND p.spec IS NOT NULL
  AND p.key >= sqlc.arg(after)::text
ORDER BY p.key LIMIT sqlc.arg(page_rows)::int;

-- name: StreamFind :one
SELECT t.id FROM reconciler.streams s JOIN reconciler.targets t ON t.id = s.target_id
WHERE t.name = sqlc.arg(name)::text;

-- name: StreamNames :many
SELECT t.name FROM reconciler.streams s JOIN reconciler.targets t ON t.id = s.target_id ORDER BY t.name;

-- name: StreamChanges :many
-- What each stream has published after a version, in the order of versions, limited by rows of each stream and by bytes of all.
-- The first row of a stream that does not fit is returned without its spec, and unfit. A stream without changes has one row
-- with version 0. A stream that is gone has one row with an empty id. Bounds and objects are of one snapshot. NULL is returned as
-- '' or 0; hash and spec of a tombstone are ''. Streams share one sequence of versions: the oldest changes of all come first.
-- Subqueries hide the length of the arrays and the limit from the planner: with them a plan for these values would always be
-- the cheaper one, and PostgreSQL would plan each call anew, which takes four times as long as the rest of it.
WITH w AS MATERIALIZED (
    SELECT u.target_id, u.after, s.id, s.epoch, s.complete, s.floor, s.ack,
        c.pauses, c.resyncs, c.retries, c.approvals,
        (SELECT t.paused_at IS NOT NULL FROM reconciler.targets t WHERE t.id = u.target_id) AS paused,
        (SELECT x.version FROM reconciler.published x WHERE x.target_id = u.target_id AND x.version > 0
         ORDER BY x.version DESC LIMIT 1) AS newest,
        (SELECT c.revision FROM reconciler.cursors c WHERE c.consumer = u.target_id
         ORDER BY c.id DESC LIMIT 1) AS reached
    FROM (SELECT sqlc.arg(target_ids)::int[] AS target_ids, sqlc.arg(afters)::bigint[] AS afters OFFSET 0) AS a
    CROSS JOIN LATERAL (SELECT unnest(a.target_ids) AS target_id, unnest(a.afters) AS after) AS u
    LEFT JOIN reconciler.streams s ON s.target_id = u.target_id
    LEFT JOIN reconciler.stream_controls c ON c.target_id = u.target_id
)
SELECT m.target_id::int AS target_id, coalesce(m.id::text, '')::text AS stream,
    coalesce(m.epoch::text, '')::text AS epoch, coalesce(m.complete, false)::boolean AS complete,
    coalesce(m.floor, 0)::bigint AS floor, coalesce(m.ack, false)::boolean AS ack,
    greatest(m.floor, m.newest, 0)::bigint AS head, coalesce(m.reached, 0)::bigint AS reached,
    coalesce(m.paused, false)::boolean AS paused, coalesce(m.pauses, 0)::bigint AS pauses,
    coalesce(m.resyncs, 0)::bigint AS resyncs, coalesce(m.retries, 0)::bigint AS retries,
    coalesce(m.approvals, 0)::bigint AS approvals,
    coalesce(m.resource, '')::text AS resource, coalesce(m.key, '')::text AS key,
    coalesce(m.version, 0)::bigint AS version, coalesce(m.revision, 0)::bigint AS revision,
    CASE WHEN m.unfit THEN '' ELSE coalesce(m.spec::text, '') END::text AS spec, coalesce(m.hash, '')::bytea AS hash,
    coalesce(m.unfit, false)::boolean AS unfit
FROM (
    SELECT w.*, o.resource, o.key, o.version, o.revision, o.spec, o.hash,
        sum(o.size) OVER (ORDER BY o.version ROWS UNBOUNDED PRECEDING) - o.size >= sqlc.arg(most_bytes)::bigint AS unfit,
        row_number() OVER (PARTITION BY w.target_id ORDER BY o.version) AS place
    FROM w LEFT JOIN LATERAL (
        SELECT x.*, x.bytes + octet_length(x.resource) + octet_length(x.key) + 200 AS size FROM reconciler.published x
        WHERE x.target_id = w.target_id AND x.version > w.after AND x.version > 0
        ORDER BY x.version LIMIT (SELECT sqlc.arg(most)::int)) AS o ON true) AS m
WHERE m.unfit IS NOT TRUE OR m.place = 1
ORDER BY m.target_id, m.version;

-- name: StreamPage :many
-- A page of the objects between two places, in the order of resources and keys, limited by rows and bytes beside one object.
SELECT p.resource, p.key, p.version, p.revision, p.spec::text AS spec, p.hash
FROM (SELECT m.*, sum(m.size) OVER (ORDER BY m.resource, m.key ROWS UNBOUNDED PRECEDING) - m.size AS before
      FROM (
        SELECT o.resource, o.key, o.version, o.revision, o.spec, o.hash,
            o.bytes + octet_length(o.resource) + octet_length(o.key) + 200 AS size
        FROM reconciler.published o
        WHERE o.target_id = sqlc.arg(target_id)::int AND o.spec IS NOT NULL
          AND (o.resource, o.key) >= (sqlc.arg(from_resource)::text COLLATE "C", sqlc.arg(from_key)::text COLLATE "C")
          AND (o.resource, o.key) < (sqlc.arg(to_resource)::text COLLATE "C", sqlc.arg(to_key)::text COLLATE "C")
        ORDER BY o.resource, o.key LIMIT sqlc.arg(most)::int) AS m) AS p
WHERE p.before < sqlc.arg(most_bytes)::bigint
ORDER BY p.resource, p.key;

-- name: StreamUnsettled :many
-- A page of the objects of a resource that rows want, but that are neither settled nor published, from a key on.
-- Whether one is published is looked up by its key, whatever the planner expects.
SELECT l.key, coalesce(l.held_by, l.state::text)::text AS reason
FROM reconciler.ledger l
WHERE l.target_id = sqlc.arg(target_id)::int
  AND l.resource_id = (SELECT r.id FROM reconciler.resources r WHERE r.name = sqlc.arg(resource)::text)
  AND l.key >= sqlc.arg(from_key)::text COLLATE "C" AND l.state <> 'applied' AND l.wanted
  AND (SELECT p.spec IS NOT NULL FROM reconciler.published p
       WHERE p.target_id = l.target_id AND p.resource = sqlc.arg(resource)::text AND p.key = l.key
       ORDER BY p.version DESC LIMIT 1) IS NOT TRUE
ORDER BY l.key LIMIT sqlc.arg(most)::int;

-- name: StreamUnacknowledged :many
-- A page of the tombstones between two versions that no client has confirmed: those of objects that the ledger still has.
SELECT p.resource, p.key, p.version
FROM reconciler.published p
CROSS JOIN LATERAL (SELECT r.id FROM reconciler.resources r WHERE r.name = p.resource LIMIT 1) AS c
CROSS JOIN LATERAL (SELECT FROM reconciler.ledger l
    WHERE l.target_id = p.target_id AND l.resource_id = c.id AND l.key = p.key LIMIT 1) AS l
WHERE p.target_id = sqlc.arg(target_id)::int AND p.spec IS NULL AND p.version > sqlc.arg(after)::bigint
  AND p.version <= sqlc.arg(upto)::bigint
ORDER BY p.version LIMIT sqlc.arg(most)::int;

-- name: StreamObject :one
SELECT n.version, n.revision, n.spec::text AS spec, n.hash
FROM (SELECT p.* FROM reconciler.published p
      WHERE p.target_id = sqlc.arg(target_id)::int AND p.resource = sqlc.arg(resource)::text AND p.key = sqlc.arg(key)::text
      ORDER BY p.version DESC LIMIT 1) AS n
WHERE n.spec IS NOT NULL;

-- name: StreamResources :many
SELECT r.name FROM reconciler.resources r ORDER BY r.name COLLATE "C";

-- name: StreamWatch :exec
-- Records who watches at this process. Owners notify processes that have rows here.
WITH gone AS (
    DELETE FROM reconciler.stream_watches w
    WHERE w.instance_id = sqlc.arg(instance)::uuid AND w.target_id <> ALL (sqlc.arg(target_ids)::int[])
)
INSERT INTO reconciler.stream_watches AS w (instance_id, target_id, watchers, behind, resets)
SELECT i.id, t.id, u.watchers, u.behind, u.resets
FROM (SELECT unnest(sqlc.arg(target_ids)::int[]) AS id, unnest(sqlc.arg(watchers)::int[]) AS watchers,
             unnest(sqlc.arg(behinds)::bigint[]) AS behind, unnest(sqlc.arg(resets)::bigint[]) AS resets) AS u
JOIN reconciler.targets t ON t.id = u.id JOIN reconciler.instances i ON i.id = sqlc.arg(instance)::uuid
ON CONFLICT ON CONSTRAINT stream_watches_pkey DO UPDATE
SET watchers = excluded.watchers, behind = excluded.behind, resets = excluded.resets
WHERE (w.watchers, w.behind, w.resets) IS DISTINCT FROM (excluded.watchers, excluded.behind, excluded.resets);

-- name: StreamNotify :exec
SELECT pg_notify('reconciler_published', '')::text AS told;

-- name: StreamReport :one
-- Takes what a client has observed; see reconciler.report. '' stands for none. wrong is 0 where nothing is.
SELECT r.accepted::bigint AS accepted, r.ignored::bigint AS ignored, coalesce(r.awaited, false)::boolean AS awaited,
    coalesce(r.wrong, 0)::bigint AS wrong, coalesce(r.problem, '')::text AS problem
FROM reconciler.report(sqlc.arg(target_id)::int, sqlc.arg(session)::text, sqlc.arg(seq)::bigint, sqlc.arg(complete)::boolean,
    sqlc.arg(as_of)::bigint, sqlc.arg(resources)::text[], sqlc.arg(keys)::text[], sqlc.arg(versions)::bigint[], sqlc.arg(states)::text[],
    sqlc.arg(messages)::text[], sqlc.arg(healthy)::text[], sqlc.arg(statuses)::text[],
    nullif(sqlc.arg(client)::text, '')::jsonb) AS r;

-- name: StreamLookAgain :one
SELECT reconciler.look_again(sqlc.arg(target_id)::int, sqlc.arg(complete)::boolean, sqlc.arg(resources)::text[],
    sqlc.arg(keys)::text[])::bigint AS objects;

-- name: StreamAcknowledged :many
SELECT a.place::int AS place, a.confirmed::boolean AS confirmed, a.failed::boolean AS failed, coalesce(a.reason, '')::text AS reason,
    coalesce(a.seconds, 0)::float8 AS seconds
FROM reconciler.acknowledged(sqlc.arg(target_id)::int, sqlc.arg(resources)::text[], sqlc.arg(keys)::text[],
    sqlc.arg(hashes)::bytea[]) AS a;

-- name: StreamUnhealthy :many
-- What clients of a stream report as not healthy: the far side as a whole (without a resource), and one object.
SELECT ''::text AS resource, ''::text AS key, coalesce(p.trouble, '')::text AS message
FROM reconciler.reports p WHERE p.target_id = sqlc.arg(target_id)::int AND NOT p.healthy
UNION ALL
(SELECT r.name, o.key, coalesce(o.message, '')
 FROM reconciler.observations o JOIN reconciler.resources r ON r.id = o.resource_id
 WHERE o.target_id = sqlc.arg(target_id)::int AND NOT o.healthy ORDER BY r.name, o.key LIMIT 1);
