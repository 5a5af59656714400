package e2e_test

import (
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// busy runs a process that is in the middle of four calls, which end when the gate opens, and has four more objects to
// apply.
func busy(t *testing.T, timeout string, change ...object) (w *world, d *daemon, openGate func()) {
	t.Helper()
	w = newWorld(t)
	w.exec(fleet)
	target := w.journalTarget("eu", 0, object{"concurrency": 4, "timeout": timeout})
	w.configure([]object{target}, change...)
	d = w.start()
	d.awaits("sync_complete")
	gate := w.path("eu/gate")
	require.NoError(t, os.WriteFile(gate, nil, 0o600))
	w.exec(`INSERT INTO apps (id, region) SELECT i, 'eu' FROM generate_series(1, 8) AS i`)
	w.begun("eu", 4)
	return w, d, func() { require.NoError(t, os.Remove(gate)) }
}

// nothingFailed says that no attempt was counted as a failure.
func (w *world) nothingFailed() {
	w.t.Helper()
	require.Equal(w.t, "0", w.text(`SELECT count(*) FROM reconciler.objects WHERE attempts > 0 OR last_error IS NOT NULL`))
}

// C34: SIGTERM lets the calls in flight end, and records them; nothing else begins.
func TestTermFinishesWhatHasBegun(t *testing.T) {
	t.Parallel()
	w, d, openGate := busy(t, "1m")
	d.signal(syscall.SIGTERM)
	d.awaits("target_draining")
	w.exec(`INSERT INTO apps (id, region) VALUES (9, 'eu')`)
	openGate()
	require.Equal(t, 0, d.code(), d.log.text())
	require.Equal(t, 1, d.logged("stopped"))
	all := w.journal("eu")
	require.Equal(t, 4, count(all, "begin"))
	require.Equal(t, 4, count(all, "end"))
	require.Len(t, files(t, w.path("eu/objects")), 4)
	require.Equal(t, "4", w.text(`SELECT count(*) FROM reconciler.objects WHERE state = 'applied'`))
	w.nothingFailed()
	require.Equal(t, "true", w.text(`SELECT clean AND owner IS NULL FROM reconciler.targets`))

	// The next process goes on where it left off: it owns the target at once, and applies what is left.
	w.start()
	w.wait()
	require.Equal(t, w.rows()["eu"], files(t, w.path("eu/objects")))
	require.Equal(t, 9, count(w.journal("eu"), "begin"), "what was recorded is not applied again")
}

// C34: whoever cannot wait sends the signal again.
func TestSecondSignalEndsItAtOnce(t *testing.T) {
	t.Parallel()
	w, d, openGate := busy(t, "1m")
	d.signal(syscall.SIGTERM)
	d.awaits("draining")
	d.signal(syscall.SIGTERM) // its calls do not end before the gate is open
	require.Equal(t, 128+int(syscall.SIGTERM), d.code())
	require.Zero(t, d.logged("stopped"))
	w.nothingFailed()
	openGate()
	require.Empty(t, files(t, w.path("eu/objects")), "the programs of its calls end with it")

	// The next process would wait for these calls, for a minute.
	w.exec(`UPDATE reconciler.targets SET owner = NULL`)
	w.exec(`UPDATE reconciler.leases SET owner = NULL`)
	w.start()
	w.wait()
	require.Equal(t, w.rows()["eu"], files(t, w.path("eu/objects")))
	w.nothingFailed()
}

// C34: calls that outlast shutdown_timeout are cancelled, and are no failures either.
func TestCallsThatOutlastShutdownTimeoutAreCancelled(t *testing.T) {
	t.Parallel()
	w, d, openGate := busy(t, "15s", object{"shutdown_timeout": "500ms"})
	d.signal(syscall.SIGINT)
	require.Equal(t, 1, d.code())
	require.Equal(t, "reconciler: stop: stop ownership: what still ran was cut off: draining took longer than shutdown_timeout", d.log.last())
	w.nothingFailed()
	require.Equal(t, 4, count(w.journal("eu"), "begin"))
	require.Empty(t, files(t, w.path("eu/objects")))

	openGate()
	w.start()
	w.wait()
	require.Equal(t, w.rows()["eu"], files(t, w.path("eu/objects")))
}
