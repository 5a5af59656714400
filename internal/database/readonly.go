package database

import (
	"context"

	"github.com/jackc/pgx/v5"
)

const readOnlyMark = "reconciler_read_only"

// readOnlyTracer marks connections whose server has become read-only (it was demoted, or was a standby all along), so
// that the pool drops them and finds the primary again.
type readOnlyTracer struct{ fleet *Fleet }

// TraceQueryStart does nothing.
func (readOnlyTracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

// TraceQueryEnd marks the connection.
func (readOnlyTracer) TraceQueryEnd(_ context.Context, conn *pgx.Conn, data pgx.TraceQueryEndData) {
	if data.Err != nil && IsReadOnly(data.Err) {
		conn.PgConn().CustomData()[readOnlyMark] = true
	}
}

// writable reports whether a released connection may be used again.
func writable(conn *pgx.Conn) bool {
	_, marked := conn.PgConn().CustomData()[readOnlyMark]
	return !marked
}
