//go:build long

package faulttest_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// I3, I10, C52: a process is cut off from the database, which neither is told, and still reaches its targets. It makes
// no call after the one that took over has made its first, its sessions on the server stand in nobody's way, and when
// the network is back it goes on without having left anything old.
func TestRarePartitionNeverHasTwoOwners(t *testing.T) {
	t.Parallel()
	for name, makeLine := range rareLines() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rareChance(t)
			w := newRareWorld(t, pgtest.New(t))
			w.fill(60, "us", "eu")
			line := makeLine(t, w.db.URL)
			eu, us := newRareEndpoint(t, line.Target), newRareEndpoint(t, line.Target)
			targets := []rareObject{eu.target("eu"), us.target("us")}
			for _, target := range targets {
				target["concurrency"] = 2
			}
			far := rareStart{binary: rareBinary(t, "new"), config: w.configure("far", targets, rareObject{"database_url": line.URL}), enter: line.Enter}
			near := rareStart{binary: far.binary, config: w.configure("near", targets)}
			a := w.start(far)
			w.ownedBy(rarePatience, map[string]string{"eu": a.pid(), "us": a.pid()})
			b := w.start(near)
			rareEventually(t, rarePatience, func() error { return rareShared(w.owners(), a, b) }, "each owns a target")
			writers := w.write(r, 60, "eu", "us")
			pass(500*time.Millisecond, a.exited)

			// It has many rows in hand when it is cut off, more than it can call with in time.
			eu.slow(500 * time.Millisecond)
			us.slow(500 * time.Millisecond)
			w.exec(`UPDATE apps SET version = nextval('versions')`)
			pass(time.Second, a.exited)
			line.cut()
			after := w.ownedBy(rareTakeover, map[string]string{"eu": b.pid(), "us": b.pid()})
			t.Logf("taken over %v after the cut", after)
			eu.slow(0)
			us.slow(0)
			pass(time.Second, b.exited)
			writers.stop()
			w.wait(near)
			w.equal(eu.have, "eu")
			w.equal(us.have, "us")

			line.heal()
			rareEventually(t, rarePatience, func() error { return rareShared(w.owners(), a, b) }, "each owns a target again")
			w.equal(eu.have, "eu")
			w.equal(us.have, "us")
			writers = w.write(r, 60, "eu", "us")
			pass(time.Second, a.exited)
			writers.stop()
			w.wait(near)
			w.equal(eu.have, "eu")
			w.equal(us.have, "us")
			require.NoError(t, rareInOrder(eu.journal()), "VIOLATION: calls out of order")
			require.NoError(t, rareInOrder(us.journal()), "VIOLATION: calls out of order")
			_, lost := a.find("lease_lost", "reason", "not renewed in time")
			require.True(t, lost, "it did not notice that it was cut off")
			a.stop()
			b.stop()
		})
	}
}
