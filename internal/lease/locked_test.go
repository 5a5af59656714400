package lease

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// Transactions that were left open keep no lease from being renewed, neither of the targets that they lock nor of others,
// and not the leadership.
func TestF78_AnOpenTransactionOfAPersonTakesAwayNoLease(t *testing.T) {
	t.Parallel()
	const targets, each = 40, 6 // the last four are nobody's

	for name, orders := range map[string][]string{
		"Commands":  {"pause(%L)", "resume(%L)", "approve(%L)", "resync(%L)", "retry(%L)", "release(%L, 'delete')"},
		"StartOver": {"start_over(%L)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := fleetOn(t, pgtest.Holding(t))
			var names []string
			for i := range targets {
				names = append(names, fmt.Sprintf("t%02d", i))
			}
			timing := quick
			timing.MinTTL, timing.Retry = 6*time.Second, 600*time.Millisecond // a dozen tries take longer than a lease lives, as in production
			a := f.start(f.replica(timing, names))
			runs := receiveAll(t, a.runs, targets)
			receive(t, a.leads)
			for i, order := range orders {
				leaveOpen(t, f, order, names[i*each:(i+1)*each])
			}
			a.lives(t, 3*timing.MinTTL/2)
			for _, run := range runs {
				require.NoError(t, run.ctx.Err(), run.Target)
			}
			require.True(t, a.Status().Leader)
			require.Empty(t, a.dropped)
		})
	}
}

// leaveOpen gives an order for some targets in a transaction that stays open.
func leaveOpen(t *testing.T, f *fleet, order string, names []string) {
	t.Helper()
	tx, err := f.db.Conn(t).Begin(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) })
	for _, name := range names {
		var sql string
		require.NoError(t, tx.QueryRow(t.Context(), "SELECT format('SELECT reconciler.' || $1, $2::text)", order, name).Scan(&sql))
		_, err := tx.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
}

// What a config changes of a target is written when its row is free; nothing waits for that.
func TestF78_AnOpenTransactionOfAPersonKeepsNoProcessFromStarting(t *testing.T) {
	t.Parallel()
	f := fleetOn(t, pgtest.Holding(t))
	f.db.Exec(t, "INSERT INTO reconciler.targets (name, driver) VALUES ('x', 'exec'), ('y', 'exec')")
	tx, err := f.db.Conn(t).Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "SELECT reconciler.pause('x')")
	require.NoError(t, err)
	a := f.start(f.replica(quick, []string{"x", "y"}))
	require.Equal(t, "y", receive(t, a.runs).Target)
	drivers := func() string {
		return value[string](f, "SELECT string_agg(name || ' ' || driver, ', ' ORDER BY name) FROM reconciler.targets")
	}
	require.Equal(t, "x exec, y file", drivers())
	require.NoError(t, tx.Commit(t.Context()))
	require.Equal(t, "x", receive(t, a.runs).Target)
	require.Eventually(t, func() bool { return drivers() == "x file, y file" }, patience, 5*time.Millisecond)
}
