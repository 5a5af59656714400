package server_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/config"
)

// Nothing that an owner writes can keep untrack() waiting, or be ended by a deadlock with it: it locks no row of the ledger.
func TestF114_UntrackLocksNoRowOfTheLedger(t *testing.T) {
	t.Parallel()
	for _, release := range []string{"keep", "delete"} {
		t.Run(release, func(t *testing.T) {
			t.Parallel()
			w, want := fleet(t, 3)
			eu := newPlace()
			w.start(named("eu", eu))
			eu.eventually(t, want)
			w.wait()
			settling := w.begin()
			w.in(settling, `SELECT FROM reconciler.ledger FOR UPDATE`)
			w.db.Exec(t, `SET lock_timeout = '10s'; SELECT reconciler.untrack('app', '`+release+`')`)
			w.in(settling, `COMMIT`)
			w.settled("0 0", `SELECT concat_ws(' ', (SELECT count(*) FROM reconciler.ledger), (SELECT count(*) FROM reconciler.resources))`)
			if release == "delete" {
				want = map[string]string{}
			}
			require.Equal(t, want, eu.have())
		})
	}
}

// approve() and retry() lock the target before rows of its ledger, as its owner does: neither of them is ended by a deadlock.
func TestF114_OrdersLockAsOwnersDo(t *testing.T) {
	t.Parallel()
	for _, order := range []string{"approve", "retry"} {
		t.Run(order, func(t *testing.T) {
			t.Parallel()
			w := withApps(t)
			eu := newPlace()
			want := w.fleet(3)
			w.start(named("eu", eu, func(c *config.Target) { c.Guard.MaxDeletes = new(0) }))
			eu.eventually(t, want)
			w.wait()
			w.db.Exec(t, `DELETE FROM apps`)
			w.settled("3", `SELECT count(*)::text FROM reconciler.held WHERE held_by = 'guard'`)
			settling := w.begin()
			w.in(settling, `SELECT reconciler.named_target('eu')`)
			done := w.waits(`SELECT reconciler.` + order + `('eu')`)
			w.in(settling, `SELECT FROM reconciler.ledger FOR UPDATE`)
			w.commit(settling)
			require.NoError(t, <-done)
		})
	}
}

// start_over() locks the installation first, as adopt() does: neither is ended by a deadlock.
func TestF123_StartOverLocksAsAdoptDoes(t *testing.T) {
	t.Parallel()
	w := setup(t)
	adopting := w.begin()
	w.in(adopting, `SELECT FROM reconciler.installation FOR UPDATE`)
	done := w.waits(`SELECT reconciler.start_over('by hand')`)
	w.in(adopting, `SELECT reconciler.start_over('restored')`)
	w.commit(adopting)
	require.NoError(t, <-done)
}

// waits begins a statement and returns when it waits for a lock. The channel receives how it ends.
func (w *world) waits(sql string) <-chan error {
	w.t.Helper()
	done := make(chan error, 1)
	go func() {
		_, err := w.db.Pool.Exec(context.Background(), sql)
		done <- err
	}()
	w.settled("1", `SELECT count(*)::text FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query = $1`, sql)
	return done
}
