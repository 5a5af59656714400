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

// shared waits until each of the processes owns this many targets.
func (w *world) shared(targets int, among ...*daemon) map[string]int {
	w.t.Helper()
	var owners map[string]int
	eventually(w.t, patience, func() error {
		owners = w.owners()
		counts := map[int]int{}
		for _, process := range owners {
			counts[process]++
		}
		for _, d := range among {
			if counts[d.cmd.Process.Pid] != targets {
				return fmt.Errorf("owners: %v", owners)
			}
		}
		return nil
	}, "each process owns as many targets")
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

// C52: three processes share three targets out; one is killed in the middle of a burst, and the others take over within
// the time that is promised.
func TestTargetsOfAKilledReplicaAreTakenOver(t *testing.T) {
	t.Parallel()
	r := chance(t)
	w := newWorld(t)
	regions := []string{"eu", "us", "ap"}
	w.exec(fleet + ";" + versions)
	w.exec(`INSERT INTO apps (id, region) SELECT i, (array['eu', 'us', 'ap'])[1 + i % 3] FROM generate_series(1, 150) AS i`)
	w.configure([]object{w.fileTarget("eu"), w.fileTarget("us"), w.fileTarget("ap")})
	one, two := w.start(), w.start()
	three := w.start()
	w.shared(1, one, two, three)
	w.wait()

	writers := w.write(r, load{writers: 3, every: 20 * time.Millisecond, objects: 150, regions: regions})
	pass(between(r, 100*time.Millisecond, time.Second), t.Context().Done())
	killed := []*daemon{one, two, three}[r.IntN(3)]
	killed.kill()
	w.takenOver(killed, 3, takeover+2*time.Second)
	writers.stop()
	w.converges(regions...)

	// One more joins, and gets a share.
	w.start()
	var owners map[string]int
	eventually(t, patience, func() error {
		owners = w.owners()
		processes := map[int]bool{}
		for _, process := range owners {
			processes[process] = true
		}
		if len(processes) != 3 {
			return fmt.Errorf("owners: %v", owners)
		}
		return nil
	}, "three processes own one target each")
	w.exec(`UPDATE apps SET version = nextval('versions')`)
	w.converges(regions...)
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

	writers := w.write(r, load{writers: 3, every: 10 * time.Millisecond, objects: 60, regions: []string{"eu"}})
	pass(between(r, 200*time.Millisecond, time.Second), t.Context().Done())
	frozen.signal(syscall.SIGSTOP)
	w.takenOver(frozen, 1, takeover+2*time.Second)
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

// C53: every process is replaced, one after the other, while rows change. Each ends with 0, nothing is lost, nothing
// counts as a failure, and no target rests for long.
func TestRollingRestartUnderLoadLosesNothing(t *testing.T) {
	t.Parallel()
	r := chance(t)
	w := newWorld(t)
	regions := []string{"eu", "us", "ap"}
	w.exec(fleet + ";" + versions)
	w.exec(`INSERT INTO apps (id, region) SELECT i, (array['eu', 'us', 'ap'])[1 + i % 3] FROM generate_series(1, 150) AS i`)
	w.configure([]object{w.journalTarget("eu", 30*time.Millisecond), w.fileTarget("us"), w.fileTarget("ap")})
	old := []*daemon{w.start(), w.start()}
	w.wait()
	writers := w.write(r, load{writers: 3, every: 20 * time.Millisecond, objects: 150, regions: regions})
	fresh := make([]*daemon, len(old))
	for i, d := range old {
		pass(between(r, 100*time.Millisecond, 500*time.Millisecond), d.exited)
		d.stop()
		// What it gave back needs no lease to expire.
		w.takenOver(d, 3, 3*time.Second)
		fresh[i] = w.start()
	}
	eventually(t, patience, func() error {
		if n := w.text(`SELECT count(DISTINCT owner) FROM reconciler.targets`); n != "2" {
			return fmt.Errorf("%s owners", n)
		}
		return nil
	}, "two owners")
	writers.stop()
	w.wait()
	want := w.rows()
	require.NoError(t, w.differs("us", want["us"]))
	require.NoError(t, w.differs("ap", want["ap"]))
	require.Equal(t, want["eu"], files(t, w.path("eu/objects")))
	require.NoError(t, inOrder(w.journal("eu")))
	for _, d := range append(old, fresh...) {
		for _, line := range d.log.all() {
			require.NotContains(t, []any{"WARN", "ERROR"}, line["level"], line)
		}
	}
	for _, d := range fresh {
		d.stop()
	}
	require.Equal(t, "3", w.text(`SELECT count(*) FROM reconciler.targets WHERE clean AND owner IS NULL`))
}
