// Package migrate brings the schema reconciler of a database to the version that this binary embeds, or back.
//
// The migrations are goose's (package db/migrations); the applied ones are recorded in
// reconciler.goose_db_version, so that the plain goose command sees the same state. Whoever changes the
// schema holds one session-level advisory lock from the first statement to the last: any number of
// replicas may call Up at the same time, one of them works and the others find nothing left to do.
// The lock needs a session, so the URL must not lead through a pooler in transaction mode.
//
// cmd/reconciler calls Up, Down, DownTo, Status and Print for `reconciler migrate`, and Check before it
// runs anything else: a binary that is older than the schema refuses to work with it.
package migrate
