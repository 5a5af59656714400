package e2e_test

import (
	"fmt"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// owners returns which process owns each target, by the end of its name: the process number.
func (w *world) owners() map[string]int {
	w.t.Helper()
	owners := map[string]int{}
	for _, row := range w.column(`SELECT t.name || ' ' || substring(i.name FROM '[0-9]+$') FROM reconciler.targets t JOIN reconciler.instances i ON i.id = t.owner`) {
		var name, process string
		_, err := fmt.Sscan(row, &name, &process)
		require.NoError(w.t, err)
		owners[name], err = strconv.Atoi(process)
		require.NoError(w.t, err)
	}
	return owners
}

// takenOver waits until none of the targets is owned by a process any more, and all are owned.
func (w *world) takenOver(from *daemon, targets int, within time.Duration) {
	w.t.Helper()
	eventually(w.t, within, func() error {
		owners := w.owners()
		for _, process := range owners {
			if process == from.cmd.Process.Pid {
				return fmt.Errorf("owners: %v", owners)
			}
		}
		if len(owners) != targets {
			return fmt.Errorf("owners: %v", owners)
		}
		return nil
	}, "its targets are taken over")
}

// I3, I10, C21: an owner freezes for longer than its lease while rows change, and wakes up again. What it had begun must
// not be the last word.
func TestFrozenOwnerLeavesNothingStale(t *testing.T) {
	t.Parallel()
	r := chance(t)
	w := newWorld(t)
	w.exec(fleet + ";" + versions)
	w.exec(`INSERT INTO apps (id, region) SELECT i, 'eu' FROM generate_series(1, 60) AS i`)
	w.configure([]object{w.fileTarget("eu")})
	frozen := w.start()
	frozen.awaits("target_owned")
	other := w.start()
	w.wait()

	writers := w.write(r, load{writers: 3, every: 30 * time.Millisecond, objects: 60, regions: []string{"eu"}})
	pass(between(r, 200*time.Millisecond, time.Second), t.Context().Done())
	frozen.signal(syscall.SIGSTOP)
	w.takenOver(frozen, 1, bound(takeover+2*time.Second))
	other.awaits("target_owned")
	writers.stop()
	w.converges("eu")

	frozen.signal(syscall.SIGCONT)
	frozen.awaits("target_left")
	w.converges("eu")
	// It goes on as a standby, and as the owner when the other one stops.
	w.exec(`UPDATE apps SET version = nextval('versions')`)
	w.converges("eu")
	other.stop()
	w.exec(`UPDATE apps SET version = nextval('versions')`)
	w.converges("eu")
	require.Equal(t, map[string]int{"eu": frozen.cmd.Process.Pid}, w.owners())
}

// I3, I10: calls for one object come one after the other, the newer after the older, also when the owner is killed.
func TestCallsForOneObjectComeInOrder(t *testing.T) {
	t.Parallel()
	r := chance(t)
	w := newWorld(t)
	w.exec(fleet + ";" + versions)
	w.exec(`INSERT INTO apps (id, region) SELECT i, 'eu' FROM generate_series(1, 12) AS i`)
	w.configure([]object{w.journalTarget("eu", 40*time.Millisecond)})
	writers := w.write(r, load{writers: 3, every: 20 * time.Millisecond, objects: 12, regions: []string{"eu"}})
	d := w.start()
	d.awaits("target_owned")
	for range 2 { // one is killed, and another one takes over
		standby := w.start()
		pass(between(r, 500*time.Millisecond, 2*time.Second), d.exited)
		d.kill()
		standby.awaits("target_owned")
		d = standby
	}
	pass(between(r, 0, time.Second), d.exited)
	writers.stop()
	w.wait()
	all := w.journal("eu")
	require.NoError(t, inOrder(all), "VIOLATION: calls out of order")
	require.GreaterOrEqual(t, all[len(all)-1].Term, int64(3))
	require.Equal(t, w.rows()["eu"], files(t, w.path("eu/objects")))
	d.stop()
	require.NoError(t, inOrder(w.journal("eu")))
}
