//go:build long

package faulttest_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// rareTerminator ends the product's sessions again and again.
type rareTerminator struct {
	cancel context.CancelFunc
	done   sync.WaitGroup
	ended  map[string]int // sessions by the last word of their application_name; read it after stop
	err    error
}

// terminate ends every session of the product in the world's database, each time that some time has passed.
func (w *rareWorld) terminate(every time.Duration) *rareTerminator {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
	x := &rareTerminator{cancel: cancel, ended: map[string]int{}}
	conn := w.db.Conn(w.t)
	x.done.Go(func() {
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for x.err == nil {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			var kinds []string
			x.err = conn.QueryRow(context.WithoutCancel(ctx), `
				SELECT coalesce(array_agg(substring(application_name FROM '[^ ]+$')), '{}') FROM (
					SELECT application_name, pg_terminate_backend(pid) FROM pg_stat_activity
					WHERE datname = current_database() AND application_name LIKE 'reconciler %' OFFSET 0) AS ended`).Scan(&kinds)
			for _, kind := range kinds {
				x.ended[kind]++
			}
		}
	})
	w.t.Cleanup(func() { _ = x.stop() })
	return x
}

func (x *rareTerminator) stop() error {
	x.cancel()
	x.done.Wait()
	return x.err
}

// C21: all sessions of two processes are ended five times a second, that for LISTEN and the leader's too, while rows
// change. Nothing is lost, nobody writes an older state over a newer one, and the processes recover by themselves.
func TestRareSessionsThatAreEndedAllTheTimeLoseNothing(t *testing.T) {
	t.Parallel()
	r := rareChance(t)
	w := newRareWorld(t, pgtest.New(t))
	w.fill(100, "eu", "us")
	endpoint := newRareEndpoint(t, "127.0.0.1")
	config := w.configure("all", []rareObject{w.fileTarget("eu"), endpoint.target("us")})
	start := rareStart{binary: rareBinary(t, "new"), config: config}
	daemons := []*rareDaemon{w.start(start), w.start(start)}
	writers := w.write(r, 100, "eu", "us")
	terminator := w.terminate(200 * time.Millisecond)
	pass(5*time.Second, t.Context().Done())
	require.NoError(t, terminator.stop())
	t.Logf("sessions ended: %v", terminator.ended)
	for _, kind := range []string{"listen", "leader", "lease", "work"} {
		require.NotZero(t, terminator.ended[kind], "no session %s was ended", kind)
	}
	writers.stop()
	w.wait(start)
	w.equal(w.files, "eu")
	w.equal(endpoint.have, "us")
	require.NoError(t, rareInOrder(endpoint.journal()), "VIOLATION: calls out of order")

	// LISTEN comes back, both targets have an owner, and nobody ended what runs now.
	for _, d := range daemons {
		rareEventually(t, rarePatience, func() error {
			listening, err := d.metric("reconciler_listening")
			if err == nil && listening != 1 {
				err = errors.New("reconciler_listening is 0")
			}
			return err
		}, "LISTEN works")
	}
	w.becomes("2", `SELECT count(*) FROM reconciler.targets WHERE reconciler.lease_lives(owner, lease_ttl)`)
	w.exec(`UPDATE apps SET version = nextval('versions'); DELETE FROM apps WHERE id % 10 = 0`)
	w.wait(start)
	w.equal(w.files, "eu")
	w.equal(endpoint.have, "us")
	for _, d := range daemons {
		d.stop()
	}
	w.becomes("0", `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'reconciler %'`)
}
