-- name: StreamOwn :exec
SELECT reconciler.own_stream(sqlc.arg(target_id)::int, sqlc.arg(owner)::uuid, sqlc.arg(term)::bigint, sqlc.arg(history)::interval)::text AS owned;

-- name: StreamPublish :one
-- Specs that are '' stand for deletes. It returns how many objects changed.
SELECT reconciler.publish(sqlc.arg(target_id)::int, sqlc.arg(owner)::uuid, sqlc.arg(term)::bigint, sqlc.arg(resources)::text[], sqlc.arg(keys)::text[],
    sqlc.arg(revisions)::bigint[], sqlc.arg(specs)::text[], sqlc.arg(hashes)::bytea[])::bigint AS changed;

-- name: StreamComplete :exec
SELECT reconciler.complete_stream(sqlc.arg(target_id)::int, sqlc.arg(owner)::uuid, sqlc.arg(term)::bigint)::text AS completed;

-- name: StreamForget :one
-- Old tombstones of all streams, in pieces. It returns whether there may be more.
SELECT reconciler.forget_tombstones(sqlc.arg(most)::int)::boolean AS more;

-- name: PublishedPage :many
-- A page of what a stream has of a resource, in key order, from a key on.
SELECT key, hash FROM reconciler.published
WHERE target_id = sqlc.arg(target_id)::int AND resource = sqlc.arg(resource)::text AND spec IS NOT NULL AND key >= sqlc.arg(after)::text
ORDER BY key LIMIT sqlc.arg(page_rows)::int;
