package rows_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/server/servertest"
)

// F17: many large specs are called for some at a time, however many calls at once there may be, and all of them arrive.
func TestF17_ManyLargeSpecsAreCalledForSomeAtATime(t *testing.T) {
	t.Parallel()
	const rows, most = 90, 48 + 8
	w, _ := servertest.Fleet(t, 0)
	eu := servertest.NewPlace()
	w.Start(servertest.Named("eu", eu, func(c *config.Target) { c.Concurrency = 200 }))
	w.Wait()
	g := eu.Shut(t, nil)
	w.DB.Exec(t, `INSERT INTO apps SELECT i, 'eu', repeat('x', 1000000) FROM generate_series(1, $1) AS i`, rows)
	for range 48 {
		g.Next(t)
	}
	w.Seen("eu") // all are read that may be, and the others are in the ledger
	require.LessOrEqual(t, 48+len(g.Arrived), most)
	g.Lift()
	w.Converged()
}
