-- name: LoopFailuresWrite :exec
-- Makes the rows of a process those of the loops that fail, in one statement. It writes nothing for a process that another
-- one has removed: that comes back with its next heartbeat, and its loops with the next report.
WITH failing AS (
    SELECT unnest(sqlc.arg(loops)::text[]) AS loop, unnest(sqlc.arg(targets)::text[]) AS target, unnest(sqlc.arg(failing_for)::interval[]) AS failing_for,
        unnest(sqlc.arg(since_last)::interval[]) AS since_last, unnest(sqlc.arg(failures)::bigint[]) AS failures, unnest(sqlc.arg(errors)::text[]) AS error
), works AS (
    DELETE FROM reconciler.loop_failures f WHERE f.instance = sqlc.arg(instance)::uuid
        AND NOT EXISTS (SELECT FROM failing x WHERE x.loop = f.loop AND x.target = f.target)
)
INSERT INTO reconciler.loop_failures (instance, loop, target, since, failed_at, failures, error)
SELECT i.id, x.loop, x.target, clock_timestamp() - x.failing_for, clock_timestamp() - x.since_last, x.failures, x.error
FROM failing x JOIN reconciler.instances i ON i.id = sqlc.arg(instance)::uuid ORDER BY x.loop, x.target
ON CONFLICT (instance, loop, target) DO UPDATE SET since = excluded.since, failed_at = excluded.failed_at, failures = excluded.failures, error = excluded.error;
