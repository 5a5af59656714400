package faults_test

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/crash"
	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// I3, I10: a call of a process that died takes effect late, over what its successor has applied. The target cannot say
// what it has; the sync after the takeover waits for as long as such a call may take, and then calls again.
func TestLateCallOfADeadOwnerIsMadeGood(t *testing.T) {
	t.Parallel()
	w := newCrashWorld(t, pgtest.New(t))
	w.configure("10s")
	w.track()
	w.fill()
	p := w.start("", 0, "run").synced()
	w.wait()
	late := w.endpoint.delay("app/1")
	w.exec(`UPDATE apps SET version = 2 WHERE id = 1`)
	<-late.came
	p.signal(syscall.SIGKILL)
	p.ended()
	w.expire()
	w.exec(`UPDATE apps SET version = 3 WHERE id = 1`)
	w.start("", 0, "run")
	const newest = `{"id": 1, "version": 3}`
	w.endpoint.becomes(w, "app/1", newest)
	// Within the time of the call, but long after a sync that does not wait would have been over.
	pass(2*time.Second, t.Context().Done())
	w.endpoint.strike(late)
	w.endpoint.becomes(w, "app/1", newest)
	w.wait()
	w.same()
}

// I1: a process dies between a file's rename and the reload, and nothing changes any more: the next one reloads.
func TestReloadThatADeadProcessOwesIsMadeGood(t *testing.T) {
	t.Parallel()
	w := newCrashWorld(t, pgtest.New(t))
	w.track()
	w.fill()
	p := w.start("", 0, "run").synced()
	w.wait()
	w.reloaded()
	p.stop()
	w.dies(crash.FileRenamed, crashCase{live: func(w *crashWorld, _ *crashProcess) { w.exec(`UPDATE apps SET version = 2 WHERE id = 2`) }})
	require.Equal(t, w.want()["eu"], w.files())
	w.start("", 0, "run")
	w.reloaded()
}

// I6, I7: a process dies when a batch of several pages has parked its deletes. The next one decides on them.
func TestDeletesThatADeadProcessParkedAreDecidedOn(t *testing.T) {
	t.Parallel()
	w := newCrashWorld(t, pgtest.New(t))
	w.track()
	w.dies(crash.DeletesParked, crashCase{
		before: func(w *crashWorld) {
			w.exec(`INSERT INTO apps (id, region) SELECT i, 'us' FROM generate_series(1, 5200) AS i;
INSERT INTO teams VALUES ('red', 'eu'); INSERT INTO members VALUES (1, 'red'), (2, 'red')`)
		},
		live: func(w *crashWorld, _ *crashProcess) {
			w.wait()
			w.exec(`DELETE FROM apps WHERE id <= 5100`) // a page of the outbox has 5,000
		},
	})
	require.Equal(t, "5100", w.text(`SELECT count(*) FROM reconciler.held`))
	w.recovers()
}

// becomes waits until the endpoint has an object with a spec.
func (e *crashEndpoint) becomes(w *crashWorld, object, spec string) {
	w.t.Helper()
	w.eventually(object, func() error {
		if have, _ := e.has(); have[object] != spec {
			return errors.New(object + " is " + have[object])
		}
		return nil
	})
}
