package database

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// A restart of the server breaks every connection of a pool. It costs one statement, not one for each of them.
func TestBrokenConnectionsFailOnce(t *testing.T) {
	t.Parallel()
	cluster := pgtest.Server(t)
	db := cluster.New(t)
	pool, err := NewPool(t.Context(), db.URL, Options{})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	var idle []*pgxpool.Conn
	for range 4 {
		conn, err := pool.Acquire(t.Context())
		require.NoError(t, err)
		idle = append(idle, conn)
	}
	for _, conn := range idle {
		conn.Release()
	}
	cluster.Restart(t)
	failed := 0
	for range 5 {
		if _, err = pool.Exec(t.Context(), "SELECT 1"); err != nil {
			failed++
			require.Eventually(t, func() bool { return pool.Stat().TotalConns() < 4 }, pgtest.Patience, time.Millisecond, "the broken one goes")
		}
	}
	require.LessOrEqual(t, failed, 1)
}
