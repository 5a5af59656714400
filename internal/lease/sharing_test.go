package lease

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var seven = []string{"t1", "t2", "t3", "t4", "t5", "t6", "t7"}

// terms are what tells whether anything moved.
func (f *fleet) terms() string {
	f.t.Helper()
	return value[string](f, "SELECT jsonb_object_agg(name, term)::text FROM reconciler.targets")
}

// C52.
func TestTargetsAreSharedOut(t *testing.T) {
	t.Parallel()

	t.Run("AmongReplicasThatJoinAndLeaveAndThenRest", targetsAreSharedOutAmongReplicasThatJoinAndLeaveAndThenRest)
	t.Run("WithoutWaitingForNotifications", targetsAreSharedOutWithoutWaitingForNotifications)
	t.Run("WhenOneOfThreeIsKilled", targetsAreSharedOutWhenOneOfThreeIsKilled)
	t.Run("AmongThoseThatListThemOnly", targetsAreSharedOutAmongThoseThatListThemOnly)
	t.Run("WithoutThoseThatHaveGoneSilent", targetsAreSharedOutWithoutThoseThatHaveGoneSilent)
	t.Run("AlsoWhenTheyFailWhereTheyAre", targetsAreSharedOutAlsoWhenTheyFailWhereTheyAre)
}

func targetsAreSharedOutAmongReplicasThatJoinAndLeaveAndThenRest(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	a, b, c := f.replica(quick, seven), f.replica(quick, seven), f.replica(quick, seven)
	f.connectControl(a, b, c)
	f.start(a)
	f.awaitShares([]int{7, 0, 0}, a, b, c)
	f.start(b)
	f.awaitShares([]int{4, 3, 0}, a, b, c)
	f.start(c)
	require.Eventually(t, func() bool { return slices.Min(f.shares(a, b, c)) == 2 }, patience, 10*time.Millisecond)
	require.Equal(t, 3, slices.Max(f.shares(a, b, c)))

	settled := f.terms()
	for _, r := range []*replica{a, b, c} {
		for len(r.planned) > 0 {
			<-r.planned
		}
		for range 5 {
			receive(t, r.planned)
		}
	}
	require.Equal(t, settled, f.terms(), "nothing moves any more")

	require.NoError(t, b.Stop(t.Context()))
	require.Eventually(t, func() bool { s := f.shares(a, c); return s[0]+s[1] == 7 && min(s[0], s[1]) == 3 }, patience, 10*time.Millisecond)
	require.True(t, value[bool](f, "SELECT bool_and(clean) FROM reconciler.targets"))
}

func targetsAreSharedOutWithoutWaitingForNotifications(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	a := f.start(f.replica(quick, []string{"x", "y", "z"}))
	receiveAll(t, a.runs, 3)
	b := f.start(f.replica(quick, []string{"x", "y", "z"}))
	f.awaitShares([]int{2, 1}, a, b)
}

func targetsAreSharedOutWhenOneOfThreeIsKilled(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	timing := quick
	timing.Live = patience // only the leases that it lets expire tell
	replicas := []*replica{f.replica(timing, seven), f.replica(timing, seven), f.replica(timing, seven)}
	f.connectControl(replicas...)
	for _, r := range replicas {
		f.start(r)
	}
	require.Eventually(t, func() bool { return slices.Min(f.shares(replicas...)) == 2 }, patience, 10*time.Millisecond)
	replicas[0].wire.cut()
	require.Eventually(t, func() bool {
		s := f.shares(replicas...)
		return s[0] == 0 && s[1]+s[2] == 7 && min(s[1], s[2]) == 3
	}, patience, 10*time.Millisecond)
	require.Equal(t, 1, value[int](f, "SELECT count(*) FROM reconciler.instances WHERE name = 'host:1'"))
}

func targetsAreSharedOutAmongThoseThatListThemOnly(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	a, b := f.replica(quick, []string{"x", "y", "z"}), f.replica(quick, []string{"z"})
	f.connectControl(a, b)
	f.start(a)
	receiveAll(t, a.runs, 3)
	f.start(b)
	require.Equal(t, "z", receive(t, b.runs).Target)
	f.awaitShares([]int{2, 1}, a, b)
}

// It holds nothing, so only its silence tells.
func targetsAreSharedOutWithoutThoseThatHaveGoneSilent(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	timing := quick
	timing.Gone = time.Hour
	f.db.Exec(t, `SELECT reconciler.beat('00000000-0000-4000-8000-00000000000a', 'silent', 'v1', '{x,y}', '{}', 1, 0, NULL);
		UPDATE reconciler.heartbeats SET at = clock_timestamp() - interval '2 seconds'`)
	a := f.start(f.replica(timing, []string{"x", "y"}))
	receiveAll(t, a.runs, 2)
	require.Equal(t, 2, value[int](f, "SELECT count(*) FROM reconciler.instances"))
}

// A target that rests after a failure is handed over too, without a call in between.
func targetsAreSharedOutAlsoWhenTheyFailWhereTheyAre(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	timing := quick
	timing.BackoffMin, timing.BackoffMax = time.Hour, time.Hour
	a := f.start(f.replica(timing, []string{"x", "y"}, failFirst(func() error { return ErrLost })))
	receive(t, a.resting)
	require.Equal(t, "y", receive(t, a.runs).Target)
	b := f.start(f.replica(quick, []string{"x", "y"}))
	moved := receive(t, b.runs)
	require.Equal(t, "x", moved.Target)
	require.False(t, moved.Clean)
}

// withOptions makes a replica that has other options for its targets.
func withOptions(fingerprint string) func(*Config) {
	return func(c *Config) {
		for i := range c.Targets {
			c.Targets[i].Fingerprint = fingerprint
		}
	}
}

// rests fails the test if a target moves during some heartbeats of each of these replicas.
func (f *fleet) rests(replicas ...*replica) {
	f.t.Helper()
	settled := f.terms()
	for _, r := range replicas {
		for len(r.planned) > 0 {
			<-r.planned
		}
		for range 5 {
			receive(f.t, r.planned)
		}
	}
	require.Equal(f.t, settled, f.terms(), "a target moved")
}

// F135: a process with other options takes nothing that a live owner has, and takes it when the owner is gone.
func TestF135_OtherOptionsTakeNothingFromALiveOwner(t *testing.T) {
	t.Parallel()
	targets := []string{"x", "y", "z"}
	t.Run("OneOwner", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t)
		a, b := f.replica(quick, targets), f.replica(quick, append(targets, "own"), withOptions("two"))
		f.connectControl(a, b)
		f.start(a)
		receiveAll(t, a.runs, 3)
		f.start(b)
		require.Equal(t, "own", receive(t, b.runs).Target)
		f.rests(a, b)
		f.awaitShares([]int{3, 1}, a, b)
		require.Equal(t, 3, strings.Count(b.log.String(), "level=WARN msg=target_options_differ "), b.log.String())
		require.Contains(t, b.log.String(), "target=x process="+a.cfg.Name)
		require.NotContains(t, a.log.String(), "target_options_differ")

		require.NoError(t, a.Stop(t.Context()))
		for range 3 {
			require.True(t, receive(t, b.runs).Grant.OptionsChanged)
		}
	})
	t.Run("Killed", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t)
		a, b := f.replica(quick, targets), f.replica(quick, targets, withOptions("two"))
		f.connectControl(a, b)
		f.start(a)
		receiveAll(t, a.runs, 3)
		f.start(b)
		f.rests(b)
		a.wire.cut()
		for range 3 {
			require.True(t, receive(t, b.runs).Grant.OptionsChanged)
		}
	})
	// A rolling change: what the old processes have stays with them until the last of them is gone.
	t.Run("RollingChange", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t)
		a, b := f.replica(quick, targets), f.replica(quick, targets)
		c := f.replica(quick, targets, withOptions("two"))
		f.connectControl(a, b, c)
		f.start(a)
		f.start(b)
		require.Eventually(t, func() bool { return slices.Min(f.shares(a, b)) == 1 }, patience, 10*time.Millisecond)
		f.start(c)
		f.rests(a, b, c)
		require.NoError(t, a.Stop(t.Context()))
		f.awaitShares([]int{3, 0}, b, c)
		f.rests(b, c)
		require.Equal(t, 0, value[int](f, "SELECT count(*) FROM reconciler.sync_runs"), "nothing was applied with the new options yet")
		require.NoError(t, b.Stop(t.Context()))
		f.awaitShares([]int{3}, c)
	})
}

// C53: each replica is replaced in turn. The fleet checks that no two own a target at once, and none is ever unclean.
func TestARollingRestartLosesNothing(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	old := []*replica{f.replica(still, seven), f.replica(still, seven), f.replica(still, seven)}
	young := []*replica{f.replica(still, seven), f.replica(still, seven), f.replica(still, seven)}
	f.connectControl(append(slices.Clone(old), young...)...) // only notifications wake anybody: no gap waits for a timer
	for _, r := range old {
		f.start(r)
	}
	require.Eventually(t, func() bool { return len(f.owners()) == 7 }, patience, 10*time.Millisecond)
	for i, r := range old {
		f.start(young[i])
		require.NoError(t, r.Stop(t.Context()))
		require.Eventually(t, func() bool { return len(f.owners()) == 7 }, patience, 10*time.Millisecond)
	}
	require.Eventually(t, func() bool { return slices.Min(f.shares(young...)) == 2 }, patience, 10*time.Millisecond)
	require.True(t, value[bool](f, "SELECT bool_and(clean) FROM reconciler.targets"))
	require.Equal(t, 3, value[int](f, "SELECT count(*) FROM reconciler.instances"))
	require.Eventually(t, func() bool {
		return value[bool](f, "SELECT coalesce(owner IN (SELECT id FROM reconciler.instances), false) FROM reconciler.leases")
	}, patience, 10*time.Millisecond, "the leadership is taken over")
}
