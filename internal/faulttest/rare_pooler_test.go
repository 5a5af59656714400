//go:build long

package faulttest_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// C10, C21: who has nothing but a pooler gets every change by polling, also those of the time when it is away.
func TestRarePoolerThatIsRestartedLosesNothing(t *testing.T) {
	t.Parallel()
	r := rareChance(t)
	w := newRareWorld(t, pgtest.New(t))
	w.fill(100, "eu", "us")
	pooler := w.db.Pooler(t, "")
	endpoint := newRareEndpoint(t, "127.0.0.1")
	config := w.configure("pooled", []rareObject{w.fileTarget("eu"), endpoint.target("us")},
		rareObject{"database_url": pooler.URL, "direct_url": pooler.URL, "poll_interval": "50ms"})
	start := rareStart{binary: rareBinary(t, "new"), config: config}
	d := w.start(start)
	d.awaits("listen_lost", "error", "LISTEN does not work here: a notification that this process sent did not come back (is direct_url a pooler?); changes are found by polling")
	writers := w.write(r, 100, "eu", "us")
	for range 2 {
		pass(500*time.Millisecond, d.exited)
		pooler.Restart(t, time.Duration(r.Int64N(int64(time.Second))))
	}
	pass(500*time.Millisecond, d.exited)
	writers.stop()
	w.wait(start)
	w.equal(w.files, "eu")
	w.equal(endpoint.have, "us")

	// It found out by itself, and polls on.
	listening, err := d.metric("reconciler_listening")
	require.NoError(t, err)
	require.Zero(t, listening)
	notified, err := d.metric(`reconciler_wakeups_total{by="notify"}`)
	require.NoError(t, err)
	polled, err := d.metric(`reconciler_wakeups_total{by="poll"}`)
	require.NoError(t, err)
	require.Greater(t, polled, notified, "changes were found by notifications")
	w.exec(`UPDATE apps SET version = nextval('versions'); DELETE FROM apps WHERE id % 10 = 0`)
	w.wait(start)
	w.equal(w.files, "eu")
	w.equal(endpoint.have, "us")
	require.NoError(t, rareInOrder(endpoint.journal()), "VIOLATION: calls out of order")
	d.stop()
}
