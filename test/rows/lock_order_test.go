package rows_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/server/servertest"
)

// Nothing that an owner writes can keep untrack() waiting, or be ended by a deadlock with it: it locks no row of the ledger.
func TestF114_UntrackLocksNoRowOfTheLedger(t *testing.T) {
	t.Parallel()
	for _, release := range []string{"keep", "delete"} {
		t.Run(release, func(t *testing.T) {
			t.Parallel()
			w, want := servertest.Fleet(t, 3)
			eu := servertest.NewPlace()
			w.Start(servertest.Named("eu", eu))
			eu.Eventually(t, want)
			w.Wait()
			settling := w.Begin()
			w.In(settling, `SELECT FROM reconciler.ledger FOR UPDATE`)
			w.DB.Exec(t, `SET lock_timeout = '10s'; SELECT reconciler.untrack('app', '`+release+`')`)
			w.In(settling, `COMMIT`)
			w.Settled("0 0", `SELECT concat_ws(' ', (SELECT count(*) FROM reconciler.ledger), (SELECT count(*) FROM reconciler.resources))`)
			if release == "delete" {
				want = map[string]string{}
			}
			require.Equal(t, want, eu.Have())
		})
	}
}

// approve() and retry() lock the target before rows of its ledger, as its owner does: neither of them is ended by a deadlock.
func TestF114_OrdersLockAsOwnersDo(t *testing.T) {
	t.Parallel()
	for _, order := range []string{"approve", "retry"} {
		t.Run(order, func(t *testing.T) {
			t.Parallel()
			w := servertest.WithApps(t)
			eu := servertest.NewPlace()
			want := w.Fleet(3)
			w.Start(servertest.Named("eu", eu, func(c *config.Target) { c.Guard.MaxDeletes = new(0) }))
			eu.Eventually(t, want)
			w.Wait()
			w.DB.Exec(t, `DELETE FROM apps`)
			w.Settled("3", `SELECT count(*)::text FROM reconciler.held WHERE held_by = 'guard'`)
			settling := w.Begin()
			w.In(settling, `SELECT reconciler.named_target('eu')`)
			done := waits(w, `SELECT reconciler.`+order+`('eu')`)
			w.In(settling, `SELECT FROM reconciler.ledger FOR UPDATE`)
			w.Commit(settling)
			require.NoError(t, <-done)
		})
	}
}

// start_over() locks the installation first, as adopt() does: neither is ended by a deadlock.
func TestF123_StartOverLocksAsAdoptDoes(t *testing.T) {
	t.Parallel()
	w := servertest.New(t)
	adopting := w.Begin()
	w.In(adopting, `SELECT FROM reconciler.installation FOR UPDATE`)
	done := waits(w, `SELECT reconciler.start_over('by hand')`)
	w.In(adopting, `SELECT reconciler.start_over('restored')`)
	w.Commit(adopting)
	require.NoError(t, <-done)
}

// waits begins a statement and returns when it waits for a lock. The channel receives how it ends.
func waits(w *servertest.World, sql string) <-chan error {
	w.T.Helper()
	done := make(chan error, 1)
	go func() {
		_, err := w.DB.Pool.Exec(context.Background(), sql)
		done <- err
	}()
	w.Settled("1", `SELECT count(*)::text FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query = $1`, sql)
	return done
}
