package database

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// planLife is for how long a pooled connection keeps the plans of its statements. PostgreSQL keeps them until somebody
// analyzes a table, and a plan that was made for a table of one row reads all of it when it has a million.
const planLife = 10 * time.Second

const plansMark = "reconciler_plans_since"

// renewPlans has a released connection plan its statements anew, functions' too, when it has kept its plans for long
// enough. It reports whether the connection may be used again.
func renewPlans(conn *pgx.Conn, life time.Duration) bool {
	if Pooled(conn.Config()) {
		return true // statements are planned each time, and the session belongs to others too
	}
	data := conn.PgConn().CustomData()
	if since, marked := data[plansMark].(time.Time); marked && time.Since(since) < life {
		return true
	}
	data[plansMark] = time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), ConnectTimeout)
	defer cancel()
	_, err := conn.PgConn().Exec(ctx, "DISCARD PLANS").ReadAll()
	return err == nil
}
