-- name: Settle :one
-- Results, the cursor, and what they mean for applies: one statement, so one transaction and one round trip. It returns how many
-- objects of applies are completed by that, and how many have failed.
SELECT coalesce(w.settled[1], 0)::bigint AS completed, coalesce(w.settled[2], 0)::bigint AS failed FROM (SELECT reconciler.settle(sqlc.arg(target_id)::int, sqlc.arg(owner)::uuid, sqlc.arg(term)::bigint,
    sqlc.arg(results)::text[]::reconciler.ledger_result[], sqlc.arg(gone_resource_ids)::int[], sqlc.arg(gone_keys)::text[],
    sqlc.narg(cursor_revision)::bigint, sqlc.narg(cursor_snapshot)::pg_snapshot, sqlc.narg(batch_revision)::bigint, sqlc.narg(batch_snapshot)::pg_snapshot,
    sqlc.narg(batch_xid)::xid8, sqlc.narg(batch_seq)::bigint, sqlc.arg(count_guard)::boolean,
    sqlc.arg(passed)::bigint, sqlc.arg(passed_of)::bigint, sqlc.arg(guard_window)::float8, sqlc.arg(ended_calls)::bigint[]) AS ledger,
  CASE WHEN cardinality(sqlc.arg(task_operation_ids)::bigint[]) > 0 THEN
    reconciler.settle_tasks(sqlc.arg(target_id)::int, sqlc.arg(owner)::uuid, sqlc.arg(term)::bigint, sqlc.arg(task_operation_ids)::bigint[],
      sqlc.arg(task_resource_ids)::int[], sqlc.arg(task_keys)::text[], sqlc.arg(task_verdicts)::text[], sqlc.arg(task_errors)::text[], sqlc.arg(task_specs)::bytea[]) END AS settled
  OFFSET 0) AS w;

-- name: ParkedDecide :one
SELECT reconciler.decide_parked(sqlc.arg(target_id)::int, sqlc.arg(owner)::uuid, sqlc.arg(term)::bigint, sqlc.arg(parked_by)::text, sqlc.arg(allow)::boolean,
    sqlc.arg(counted)::boolean, sqlc.arg(objects)::bigint, sqlc.arg(guard_window)::float8)::bigint AS decided;

-- name: LedgerDue :many
-- What is due, oldest first, and the object that is due next, which alone has seconds until then; the others have seconds since.
-- All are of one moment: nothing becomes due between two looks and waits for the one after. What has been due for longer than so
-- many seconds is not looked at: there lie the entries of all attempts since somebody's transaction began, to be walked one by one.
-- An attempt later than after the longest pause was scheduled before the server's clock was set back, and is due.
-- uncounted: if it is a delete, the guard has not counted it.
(SELECT resource_id, key, extract(epoch FROM next_attempt_at - statement_timestamp())::float8 AS seconds, (state = 'pending' AND present AND NOT approved)::boolean AS uncounted
FROM reconciler.ledger
WHERE target_id = sqlc.arg(target_id)::int AND next_attempt_at <= statement_timestamp()
    AND next_attempt_at >= coalesce(statement_timestamp() - make_interval(secs => sqlc.narg(back)::float8), '-infinity')
ORDER BY next_attempt_at LIMIT sqlc.arg(max_rows)::int)
UNION ALL
(SELECT resource_id, key, 0, (state = 'pending' AND present AND NOT approved)::boolean
FROM reconciler.ledger
WHERE target_id = sqlc.arg(target_id)::int AND next_attempt_at > statement_timestamp() + sqlc.arg(longest)::interval
ORDER BY next_attempt_at LIMIT sqlc.arg(max_rows)::int)
UNION ALL
(SELECT resource_id, key, extract(epoch FROM next_attempt_at - statement_timestamp())::float8, false FROM reconciler.ledger
WHERE target_id = sqlc.arg(target_id)::int AND next_attempt_at > statement_timestamp()
    AND next_attempt_at <= statement_timestamp() + sqlc.arg(longest)::interval
ORDER BY next_attempt_at LIMIT 1);

-- name: LedgerTakeOver :execrows
-- What a former owner had in hand is due at once.
UPDATE reconciler.ledger SET next_attempt_at = clock_timestamp()
WHERE target_id = $1 AND state = 'pending' AND next_attempt_at > clock_timestamp();

-- name: FirstCallsTakeIn :exec
-- The ledger knows what owners of before have called for.
SELECT reconciler.take_in_calls(sqlc.arg(target_id)::int);

-- name: LedgerPresent :one
-- How many objects a target has. Rows of resources that are gone are left until the leader forgets them, and do not count.
SELECT count(*) FROM reconciler.ledger WHERE target_id = $1 AND present AND resource_id IN (SELECT id FROM reconciler.resources);

-- name: TargetLoad :one
SELECT t.id, t.name, (t.paused_at IS NOT NULL)::boolean AS paused, t.draining, t.clean, coalesce(t.guard_deletes, 0)::bigint AS guard_deletes,
    coalesce(c.revision, 0)::bigint AS cursor_revision, coalesce(c.snapshot::text, '')::text AS cursor_snapshot,
    coalesce(c.batch_revision, 0)::bigint AS batch_revision, coalesce(c.batch_snapshot::text, '')::text AS batch_snapshot,
    coalesce(c.batch_xid::text, '0')::text AS batch_xid, coalesce(c.batch_seq, 0)::bigint AS batch_seq
FROM reconciler.targets t CROSS JOIN LATERAL reconciler.cursor_of(t.id) AS c WHERE t.id = $1;

-- name: GuardPasses :many
-- Deletes that former owners' guards let pass within the window, oldest first.
SELECT extract(epoch FROM clock_timestamp() - p.at)::float8 AS age, p.deletes, p.objects FROM reconciler.guard_passes p
WHERE p.target_id = sqlc.arg(target_id)::int AND p.at > clock_timestamp() - make_interval(secs => sqlc.arg(guard_window)::float8) ORDER BY p.at;

-- name: Home :one
-- Identifies the installation for drivers. The system identifier is the server's own answer: the leader may not have stored it yet.
SELECT i.id::text AS id, s.system::text AS system, current_database()::text AS database
FROM reconciler.installation i CROSS JOIN reconciler.this_server() AS s;

-- name: TargetSteering :one
-- What a person may have changed, in one look: whether an object is due, too. With ORDER BY and LIMIT that is one step on an index
-- however the plan was made. It begins a minute ago: before that lie all the entries of objects that were due since somebody's
-- transaction began. What has been due for longer is found by LedgerDue.
SELECT (paused_at IS NOT NULL)::boolean AS paused, draining, coalesce(guard_deletes, 0)::bigint AS guard_deletes, clean, coalesce(trouble, '') AS trouble,
    pg_snapshot_xmin(pg_current_snapshot())::xid8 AS since, reconciler.unopened_applies(sqlc.arg(since)::xid8, sqlc.arg(unopened)::bigint[])::bigint[] AS unopened,
    ARRAY((SELECT o.id FROM reconciler.operations o WHERE o.target_id = t.id AND NOT o.done AND o.xid >= sqlc.arg(since)::xid8 ORDER BY o.xid)
          UNION SELECT p.id FROM unnest(sqlc.arg(operations)::bigint[]) AS k CROSS JOIN LATERAL (SELECT * FROM reconciler.operations o WHERE o.id = k LIMIT 1) AS p
              WHERE p.target_id = t.id AND NOT p.done)::bigint[] AS operations,
    CASE WHEN t.reports_health THEN EXISTS (SELECT FROM reconciler.health_waits(t.id)) ELSE false END::boolean AS health,
    coalesce((SELECT l.next_attempt_at <= statement_timestamp() FROM reconciler.ledger l WHERE l.target_id = t.id
        AND l.next_attempt_at > statement_timestamp() - interval '1 minute' ORDER BY l.next_attempt_at LIMIT 1), false)::boolean AS due
FROM reconciler.targets t WHERE t.id = sqlc.arg(target_id)::int;

-- name: TargetCursorStart :exec
-- The first cursor of a target: everything before it is the sync's.
SELECT reconciler.start_cursor(sqlc.arg(target_id)::int, sqlc.arg(owner)::uuid, sqlc.arg(term)::bigint, sqlc.arg(revision)::bigint, sqlc.arg(snapshot)::text);

-- name: TargetCursorRaise :one
-- The revision that a cursor below the floor counts as from now on.
SELECT reconciler.raise_cursor(sqlc.arg(target_id)::int, sqlc.arg(owner)::uuid, sqlc.arg(term)::bigint)::bigint AS revision;

-- name: TargetCircuit :exec
UPDATE reconciler.targets SET circuit_open_since = CASE WHEN sqlc.arg(error)::text = '' THEN NULL ELSE coalesce(circuit_open_since, clock_timestamp()) END,
    circuit_error = nullif(sqlc.arg(error)::text, '')
WHERE id = sqlc.arg(target_id)::int AND owner = sqlc.arg(owner)::uuid AND term = sqlc.arg(term)::bigint;

-- name: TargetTrouble :exec
UPDATE reconciler.targets SET trouble = nullif(sqlc.arg(trouble)::text, '')
WHERE id = sqlc.arg(target_id)::int AND owner = sqlc.arg(owner)::uuid AND term = sqlc.arg(term)::bigint;

-- name: TargetHealthBegin :exec
-- Says whether this owner will report the target's health. What a former one reported does not count: this one may ask elsewhere.
WITH changed AS (
    UPDATE reconciler.targets SET reports_health = sqlc.arg(reports)::boolean, reports_objects = sqlc.arg(reports_objects)::boolean,
        health_asked_at = NULL, unhealthy = NULL
    WHERE id = sqlc.arg(target_id)::int AND owner = sqlc.arg(owner)::uuid AND term = sqlc.arg(term)::bigint
      AND (reports_health <> sqlc.arg(reports)::boolean OR reports_objects <> sqlc.arg(reports_objects)::boolean OR health_asked_at IS NOT NULL)
    RETURNING id
)
SELECT pg_notify('reconciler_control', '') FROM changed;

-- name: TargetHealthWanted :many
-- What waits for the target's health: operations of applies, and 0 for ask_health(). now is the time from which on an answer is asked for.
SELECT w.operation_id::bigint AS operation_id, w.since::timestamptz AS since, w.due::boolean AS due, clock_timestamp()::timestamptz AS now
FROM reconciler.health_waits(sqlc.arg(target_id)::int) AS w ORDER BY 1;

-- name: TasksHealthPage :many
-- A page of the objects that an operation has brought to its target and that are still wanted there, in key order, after a place.
SELECT k.resource_id, r.name AS resource, k.key, l.desired_revision, l.memory
FROM reconciler.tasks k CROSS JOIN LATERAL (SELECT x.* FROM reconciler.ledger x
    WHERE x.target_id = k.target_id AND x.resource_id = k.resource_id AND x.key = k.key LIMIT 1) AS l
JOIN reconciler.resources r ON r.id = k.resource_id
WHERE k.operation_id = sqlc.arg(operation_id)::bigint AND k.state = 'completed' AND l.present AND l.wanted
  AND (k.resource_id, k.key) > (sqlc.arg(after_resource)::int, sqlc.arg(after_key)::text COLLATE "C")
ORDER BY k.resource_id, k.key LIMIT sqlc.arg(page_rows)::int;

-- name: LedgerHealthPage :many
-- A page of the objects that a target has and should have, in key order, after a place.
SELECT l.resource_id, r.name AS resource, l.key, l.desired_revision, l.memory
FROM reconciler.ledger l JOIN reconciler.resources r ON r.id = l.resource_id
WHERE l.target_id = sqlc.arg(target_id)::int AND l.present AND l.wanted
  AND (l.resource_id, l.key) > (sqlc.arg(after_resource)::int, sqlc.arg(after_key)::text COLLATE "C")
ORDER BY l.resource_id, l.key LIMIT sqlc.arg(page_rows)::int;

-- name: ObjectHealthRecord :one
-- began is when the round began that has found all objects healthy; NULL: it has not, or not yet.
SELECT reconciler.record_object_health(sqlc.arg(target_id)::int, sqlc.arg(owner)::uuid, sqlc.arg(term)::bigint, sqlc.arg(operation_id)::bigint,
    sqlc.arg(since)::timestamptz, sqlc.arg(asked_at)::timestamptz, sqlc.narg(began)::timestamptz, nullif(sqlc.arg(unhealthy)::text, ''),
    sqlc.arg(resource_ids)::int[], sqlc.arg(keys)::text[], sqlc.arg(states)::text[], sqlc.arg(reasons)::text[])::boolean AS recorded;

-- name: TargetHealthRecord :exec
SELECT reconciler.record_health(sqlc.arg(target_id)::int, sqlc.arg(owner)::uuid, sqlc.arg(term)::bigint, sqlc.arg(asked_at)::timestamptz, nullif(sqlc.arg(unhealthy)::text, ''));

-- name: LedgerInHand :exec
-- Objects that do not settle soon get their row now and no longer hold the cursor. What is known about them stays.
SELECT reconciler.record_in_hand(sqlc.arg(target_id)::int, sqlc.arg(owner)::uuid, sqlc.arg(term)::bigint,
    sqlc.arg(resource_ids)::int[], sqlc.arg(keys)::text[], sqlc.arg(called)::boolean[], sqlc.arg(patience)::interval);

-- name: ParkedCount :one
-- The deletes that a count has parked, and those that another has, or the guard holds for want of approval.
SELECT count(*) FILTER (WHERE held_by = sqlc.arg(parked_by)::text
    AND resource_id <> ALL ((SELECT reconciler.owed_resources(sqlc.arg(target_id)::int, sqlc.arg(parked_by)::text))::int[])) AS parked,
  count(*) FILTER (WHERE held_by <> sqlc.arg(parked_by)::text AND held_by IN ('guard', 'batch', 'sync') AND NOT protected) AS elsewhere
FROM reconciler.ledger WHERE target_id = sqlc.arg(target_id)::int AND state = 'held';
