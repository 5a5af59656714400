package database

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// planLife is for how long a pooled connection keeps the plans of its statements. PostgreSQL keeps them until somebody
// analyzes a table, and a plan that was made for a table of one row reads all of it when it has a million.
const planLife = 10 * time.Second

// planUses is how often a connection must have been used meanwhile: while next to nothing happens no table grows.
const planUses = 20

const plansMark = "reconciler_plans"

// plans says since when a connection has kept its plans, and how often it was used since.
type plans struct {
	since time.Time
	uses  int
}

// renewPlans has a released connection plan its statements anew, functions' too, when it has kept its plans for long
// enough and was used often enough. It reports whether the connection may be used again.
func renewPlans(conn *pgx.Conn, life time.Duration, uses int) bool {
	if Pooled(conn.Config()) {
		return true // statements are planned each time, and the session belongs to others too
	}
	data := conn.PgConn().CustomData()
	kept, marked := data[plansMark].(plans)
	kept.uses++
	if marked && (time.Since(kept.since) < life || kept.uses < uses) {
		data[plansMark] = kept
		return true
	}
	data[plansMark] = plans{since: time.Now()}
	ctx, cancel := context.WithTimeout(context.Background(), ConnectTimeout)
	defer cancel()
	_, err := conn.PgConn().Exec(ctx, "DISCARD PLANS").ReadAll()
	return err == nil
}
