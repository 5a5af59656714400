package e2e_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// crowd is a world with several processes that share webhook targets out among them.
type crowd struct {
	*world

	receiver *receiver
	timeout  string // of calls: the sync after a takeover waits for it
	targets  []string
	running  map[string]*daemon // by the name that the process tells the receiver
	started  int
}

// newCrowd starts processes, with two targets for each, and returns when each owns two.
func newCrowd(t *testing.T, processes int, timeout string) *crowd {
	t.Helper()
	c := &crowd{timeout: timeout, world: newWorld(t), receiver: newReceiver(t, 40*time.Millisecond), running: map[string]*daemon{}}
	c.exec(fleet + ";" + versions)
	for i := range 2 * processes {
		c.targets = append(c.targets, fmt.Sprintf("t%d", i))
	}
	c.exec(`INSERT INTO apps (id, region) SELECT i, 't' || i % $1 FROM generate_series(1, 40 * $1) AS i`, len(c.targets))
	c.configure(c.config())
	for range processes {
		c.join(c.world.config)
	}
	c.even()
	c.receiver.settled(c.world, c.targets...)
	return c
}

func (c *crowd) config() []object {
	var targets []object
	for _, name := range c.targets {
		targets = append(targets, c.receiver.target(name, object{"timeout": c.timeout}))
	}
	return targets
}

// join starts one more process.
func (c *crowd) join(config string) string {
	c.t.Helper()
	name := fmt.Sprintf("p%d", c.started)
	c.started++
	c.env = []string{"PROCESS=" + name}
	c.running[name] = c.startWith(config)
	return name
}

// leave says that a process is gone, or is out of reach.
func (c *crowd) leave(name string) *daemon {
	d := c.running[name]
	delete(c.running, name)
	return d
}

// any returns one of the running processes.
func (c *crowd) any(r *rand.Rand) string {
	names := slices.Sorted(maps.Keys(c.running))
	return names[r.IntN(len(names))]
}

// even waits until the targets are shared out evenly among the running processes, and nobody else has one.
func (c *crowd) even() { c.evenWithin(patience) }

func (c *crowd) evenWithin(within time.Duration) {
	c.t.Helper()
	least, most := len(c.targets)/len(c.running), (len(c.targets)+len(c.running)-1)/len(c.running)
	eventually(c.t, within, func() error {
		loads, all := map[int]int{}, 0
		for _, process := range c.owners() {
			loads[process]++
			all++
		}
		for name, d := range c.running {
			if n := loads[d.cmd.Process.Pid]; n < least || n > most {
				return fmt.Errorf("%s (%d) has %d targets, not %d to %d: %v", name, d.cmd.Process.Pid, n, least, most, c.owners())
			}
			all -= loads[d.cmd.Process.Pid]
		}
		if all != 0 {
			return fmt.Errorf("others have %d targets: %v", all, c.owners())
		}
		return nil
	}, "the targets are shared out evenly")
}

// called waits until every target has had so many calls more, and says who made the last one for each.
func (c *crowd) called(times int) map[string]string {
	c.t.Helper()
	before := map[string]int{}
	for _, target := range c.targets {
		before[target] = c.receiver.calls(target)
	}
	eventually(c.t, patience, func() error {
		for _, target := range c.targets {
			if c.receiver.calls(target) < before[target]+times {
				return errors.New("no calls for " + target)
			}
		}
		return nil
	}, "calls for every target")
	return c.receiver.callers()
}

func (c *crowd) load(r *rand.Rand) *writers {
	c.t.Helper()
	return c.write(r, load{writers: 3, every: 40 * time.Millisecond, objects: 40 * len(c.targets), regions: c.targets})
}

// C52, I3, I10: processes share targets out under load. One is killed, another one is cut off from
// the database by a network that is half open, which it cannot see. The others take over within the time that is
// promised, the targets are shared out evenly again each time, and the targets' own journal never sees two owners.
func TestCrowdSharesItsTargetsOut(t *testing.T) {
	t.Parallel()
	crowds := []int{3}
	if pgtest.Long {
		crowds = []int{2, 3, 5}
	}
	for _, processes := range crowds {
		t.Run(fmt.Sprintf("%dProcesses", processes), func(t *testing.T) {
			r := chance(t)
			c := newCrowd(t, processes, "5s")
			writers := c.load(r)
			pass(between(r, 100*time.Millisecond, time.Second), t.Context().Done())

			killed := c.any(r)
			c.leave(killed).kill()
			begun := time.Now()
			c.evenWithin(bound(takeover + 2*time.Second))
			t.Logf("%s was killed; its targets are shared out after %s", killed, time.Since(begun))
			for target, process := range c.called(3) {
				require.NotEqual(t, killed, process, target)
			}

			// The next one reaches the database by a way of its own.
			line, config := pgtest.NewLine(t, c.db.URL), c.path("line.yaml")
			c.configureFile(config, c.config(), object{"database_url": line.URL})
			cut := c.join(config)
			c.even()
			require.Contains(t, slices.Collect(maps.Values(c.called(3))), cut, "it works")
			line.Freeze("")
			begun = time.Now()
			d := c.leave(cut)
			if len(c.running) > 0 {
				c.evenWithin(bound(takeover + 2*time.Second))
				t.Logf("%s was cut off; its targets are shared out after %s", cut, time.Since(begun))
			}
			for target, process := range c.called(3) {
				require.NotEqual(t, cut, process, target)
			}

			// What it had sent arrives late, and is refused. It finds its way back.
			line.Thaw()
			c.running[cut] = d
			c.even()
			require.Contains(t, slices.Collect(maps.Values(c.called(3))), cut, "it works again")
			writers.stop()
			c.receiver.settled(c.world, c.targets...)
		})
	}
}

// C53: each of three processes is replaced, one after the other, under load. Each ends with 0, nothing is lost, nothing
// counts as a failure, and every target changes hands by a release, not by the end of a lease.
func TestRollingRestartOfACrowd(t *testing.T) {
	t.Parallel()
	r := chance(t)
	c := newCrowd(t, 3, "1m")
	writers := c.load(r)
	c.called(3)
	var all []*daemon
	for _, name := range slices.Sorted(maps.Keys(c.running)) {
		pass(between(r, 100*time.Millisecond, 500*time.Millisecond), t.Context().Done())
		d := c.leave(name)
		d.stop()
		c.join(c.world.config)
		c.even()
		all = append(all, d)
	}
	for target, process := range c.called(3) {
		require.Contains(t, c.running, process, target)
	}
	writers.stop()
	c.receiver.settled(c.world, c.targets...)
	for _, d := range c.running {
		d.stop()
		all = append(all, d)
	}
	for _, d := range all {
		d.failedNothing()
		require.Zero(t, d.logged("lease_left_to_expire"))
		require.Zero(t, d.logged("target_acquired", "clean", false), "a target changed hands in another way than by a release")
	}
	require.Equal(t, "6", c.text(`SELECT count(*) FROM reconciler.targets WHERE clean AND owner IS NULL`))
	require.Equal(t, "0", c.text(`SELECT count(*) FROM reconciler.objects WHERE attempts > 0 OR last_error IS NOT NULL`))
}
