package server_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/config"
)

// F17: many large specs are called for some at a time, however many calls at once there may be, and all of them arrive.
func TestF17_ManyLargeSpecsAreCalledForSomeAtATime(t *testing.T) {
	t.Parallel()
	const rows, most = 90, 64 + 16
	w, _ := fleet(t, 0)
	eu := newPlace()
	w.start(named("eu", eu, func(c *config.Target) { c.Concurrency = 200 }))
	w.wait()
	g := eu.shut(t, nil)
	w.db.Exec(t, `INSERT INTO apps SELECT i, 'eu', repeat('x', 1000000) FROM generate_series(1, $1) AS i`, rows)
	for range 64 {
		g.next(t)
	}
	w.seen("eu") // all are read that may be, and the others are in the ledger
	require.LessOrEqual(t, 64+len(g.arrived), most)
	g.lift()
	w.converged()
}
