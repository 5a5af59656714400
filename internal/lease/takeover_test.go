package lease

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/loop"
	"github.com/pgreconciler/reconciler/internal/metrics"
	"github.com/pgreconciler/reconciler/internal/pgtest"
)

func TestTakeover(t *testing.T) {
	t.Parallel()

	t.Run("HappensRightWhenTheLeaseOfAKilledOwnerExpires", takeoverHappensRightWhenTheLeaseOfAKilledOwnerExpires)
	t.Run("HappensAtOnceAfterAGoodStopAndIsClean", takeoverHappensAtOnceAfterAGoodStopAndIsClean)
	t.Run("IsNotUndoneByHandingOverToTheDeadOwner", takeoverIsNotUndoneByHandingOverToTheDeadOwner)
	t.Run("StaysUncleanUntilACompleteSyncSaysOtherwise", takeoverStaysUncleanUntilACompleteSyncSaysOtherwise)
	t.Run("WaitsForAHalfOpenOwnerToGiveUpFirst", takeoverWaitsForAHalfOpenOwnerToGiveUpFirst)
	t.Run("WaitsForAHalfOpenOwnerAfterStartOver", takeoverWaitsForAHalfOpenOwnerAfterStartOver)
	t.Run("OfTheLeadershipIsIndependentOfTargets", takeoverOfTheLeadershipIsIndependentOfTargets)
	t.Run("ByTheSameProcessFollowsWhenItsConnectionIsBack", takeoverByTheSameProcessFollowsWhenItsConnectionIsBack)
	t.Run("FollowsWhenARunDoesNotReturnAfterItsLoss", takeoverFollowsWhenARunDoesNotReturnAfterItsLoss)
	t.Run("DoesNotFollowAShortOutage", takeoverDoesNotFollowAShortOutage)
}

// C52, I10. b's own heartbeats are hours apart: nothing but the expiry wakes it.
func takeoverHappensRightWhenTheLeaseOfAKilledOwnerExpires(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	a := f.start(f.replica(quick, []string{"x"}))
	first := receive(t, a.runs)
	require.True(t, first.Clean)
	b := f.start(f.replica(still, []string{"x"}))
	receive(t, b.planned)

	a.wire.cut()
	renewed := value[time.Time](f, "SELECT at FROM reconciler.heartbeats WHERE instance = $1", a.cfg.Instance)
	second := receive(t, b.runs)
	require.Equal(t, first.Term+1, second.Term)
	require.Equal(t, first.ID, second.ID)
	require.False(t, second.Clean)
	require.False(t, value[bool](f, "SELECT clean FROM reconciler.targets WHERE name = 'x'"))
	taken := value[time.Time](f, "SELECT at FROM reconciler.heartbeats WHERE instance = $1", b.cfg.Instance)
	require.Greater(t, taken.Sub(renewed), quick.MinTTL)

	<-first.ctx.Done()
	require.Equal(t, ErrLost, context.Cause(first.ctx))
	require.Zero(t, first.Remaining())
	require.False(t, first.Allows(0))
}

func takeoverHappensAtOnceAfterAGoodStopAndIsClean(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	a, b := f.replica(still, []string{"x"}), f.replica(still, []string{"x"})
	f.connectControl(a, b)
	f.start(a)
	first := receive(t, a.runs)
	require.Equal(t, int64(1), receive(t, a.leads))
	f.start(b)
	receive(t, b.planned)

	require.NoError(t, a.Stop(t.Context()))
	second := receive(t, b.runs)
	require.Equal(t, first.Term+1, second.Term)
	require.True(t, second.Clean)
	require.Equal(t, int64(2), receive(t, b.leads))
	require.Equal(t, []string{"00000000-0000-4000-8000-000000000002"}, value[[]string](f, "SELECT array_agg(id::text) FROM reconciler.instances"))
}

// A restart after a kill: nothing of what the new process has taken goes back to the dead one.
func takeoverIsNotUndoneByHandingOverToTheDeadOwner(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	timing := quick
	timing.Live = 0 // as in production: the default
	names := []string{"w", "x", "y", "z"}
	a := f.start(f.replica(timing, names))
	receiveAll(t, a.runs, 4)
	a.wire.cut()
	b := f.start(f.replica(timing, names))
	taken := []*run{receive(t, b.runs), receive(t, b.runs), receive(t, b.runs), receive(t, b.runs)}
	for len(b.planned) > 0 { // from before
		<-b.planned
	}
	for range 5 {
		receive(t, b.planned)
	}
	for _, r := range taken {
		select {
		case <-r.Draining():
			require.Fail(t, "was handed over", r.Target)
		default:
		}
	}
}

func takeoverStaysUncleanUntilACompleteSyncSaysOtherwise(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.db.Exec(t, "INSERT INTO reconciler.targets (name, clean) VALUES ('x', false)")
	a := f.start(f.replica(quick, []string{"x"}))
	require.False(t, receive(t, a.runs).Clean)
	require.NoError(t, a.Stop(t.Context()))
	b := f.start(f.replica(quick, []string{"x"}))
	require.False(t, receive(t, b.runs).Clean)
}

// C52: a network that drops everything. The owner's statement hangs; its lease must end all the same.
func takeoverWaitsForAHalfOpenOwnerToGiveUpFirst(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	a := f.start(f.replica(quick, []string{"x", "y"}))
	first := receiveAll(t, a.runs, 2)
	a.wire.Freeze("")
	b := f.start(f.replica(quick, []string{"x", "y"}))
	second := receiveAll(t, b.runs, 2) // begin() has checked that the first ones were over
	for name, r := range first {
		<-r.ended
		require.Equal(t, ErrLost, context.Cause(r.ctx))
		require.Equal(t, r.Term+1, second[name].Term)
	}
}

// F125: start_over() deposes owners, and calls of one that does not learn of it are still under way.
func takeoverWaitsForAHalfOpenOwnerAfterStartOver(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	a := f.start(f.replica(quick, []string{"x"}))
	first := receive(t, a.runs)
	b := f.start(f.replica(quick, []string{"x"}))
	receive(t, b.planned)
	a.wire.Freeze("")
	f.db.Exec(t, "SELECT reconciler.start_over('test')")
	second := receive(t, b.runs) // begin() has checked that the first one was over
	<-first.ended
	require.Equal(t, ErrLost, context.Cause(first.ctx))
	require.Greater(t, second.Term, first.Term)
	require.True(t, second.Fresh)
	require.False(t, second.Clean)
}

func takeoverOfTheLeadershipIsIndependentOfTargets(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	a := f.start(f.replica(quick, nil))
	require.Equal(t, int64(1), receive(t, a.leads))
	b := f.start(f.replica(quick, []string{"x"}))
	receive(t, b.runs)
	require.Empty(t, b.leads)
	require.Eventually(t, func() bool { return a.Status().Peers == 1 && b.Status().Peers == 1 }, patience, 5*time.Millisecond)
	require.Equal(t, Status{Targets: []string{"x"}, Peers: 1}, steady(b.Status()))
	require.Equal(t, Status{Leader: true, Peers: 1}, steady(a.Status()))
	a.wire.cut()
	require.Equal(t, int64(2), receive(t, b.leads))
}

func takeoverByTheSameProcessFollowsWhenItsConnectionIsBack(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	a := f.start(f.replica(quick, []string{"x"}))
	first := receive(t, a.runs)
	a.wire.cut()
	<-first.ended
	require.Equal(t, ErrLost, context.Cause(first.ctx))
	require.Positive(t, a.Status().Failing)
	a.wire.Refuse(false)
	second := receive(t, a.runs)
	require.Equal(t, first.Term+1, second.Term)
	require.False(t, second.Clean)
	require.Contains(t, a.log.String(), "msg=heartbeat_recovered")
}

// Its process is well again, and has least, so that the plan would give it back the target.
func takeoverFollowsWhenARunDoesNotReturnAfterItsLoss(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	begun, returns := make(chan struct{}), make(chan struct{})
	a := f.start(f.replica(quick, []string{"x"}, func(c *Config) {
		c.RunTarget = func(context.Context, *Grant) error {
			close(begun)
			<-returns
			return nil
		}
	}))
	t.Cleanup(func() { close(returns) })
	<-begun
	a.wire.cut()
	for receive(t, a.dropped) != "target x" { // the leadership is dropped too
	}
	a.wire.Refuse(false)
	a.awaitBeat(t, isSuccess)
	b := f.start(f.replica(quick, []string{"x"}))
	second := receive(t, b.runs)
	require.Equal(t, int64(2), second.Term)
	require.False(t, second.Clean)
}

func takeoverDoesNotFollowAShortOutage(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	timing := quick
	timing.MinTTL = patience
	a := f.start(f.replica(timing, []string{"x"}))
	first := receive(t, a.runs)
	a.wire.cut()
	a.awaitBeat(t, isFailure)
	a.wire.Refuse(false)
	a.awaitBeat(t, isSuccess)
	require.NoError(t, first.ctx.Err())
	require.Empty(t, a.runs)
}

// steady is a status without what time changes.
func steady(s Status) Status {
	s.SinceBeat = 0
	return s
}

// A person's open transaction, or an owner's own writes.
func TestLockedRow(t *testing.T) {
	t.Parallel()

	t.Run("IsRenewedAllTheSame", lockedRowIsRenewedAllTheSame)
	t.Run("IsTakenByNobodyBeforeItIsFree", lockedRowIsTakenByNobodyBeforeItIsFree)
	t.Run("FailsUntilItIsFree", lockedRowFailsUntilItIsFree)
}

func lockedRowIsRenewedAllTheSame(t *testing.T) {
	t.Parallel()
	f := fleetOn(t, pgtest.Holding(t))
	timing := quick
	timing.MinTTL = 6 * time.Second
	a := f.start(f.replica(timing, []string{"x"}))
	first := receive(t, a.runs)
	receive(t, a.leads)
	tx, err := f.db.Conn(t).Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "SELECT FROM reconciler.targets FOR UPDATE; SELECT FROM reconciler.leases FOR UPDATE; SELECT FROM reconciler.instances FOR UPDATE")
	require.NoError(t, err)
	a.lives(t, 3*timing.MinTTL/2)
	require.NoError(t, first.ctx.Err())
	require.Empty(t, a.dropped)
	require.True(t, a.Status().Leader)
}

// F126: a heartbeat that has nothing to take is no success of the take that fails beside it.
func lockedRowFailsUntilItIsFree(t *testing.T) {
	t.Parallel()
	f := fleetOn(t, pgtest.Holding(t))
	var log logBuffer
	loops := loop.New(slog.New(slog.NewTextHandler(&log, nil)), metrics.New(prometheus.NewRegistry()))
	fail := make(chan struct{})
	timing := quick
	timing.MinTTL = 2 * patience
	a := f.start(f.replica(timing, []string{"x"}, func(c *Config) {
		c.Loops = loops
		run := c.RunTarget
		c.RunTarget = func(ctx context.Context, g *Grant) error {
			if g.Term > 1 {
				return run(ctx, g)
			}
			<-fail
			return errors.New("no")
		}
	}))
	receive(t, a.leads)
	tx, err := f.db.Conn(t).Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "SELECT FROM reconciler.targets WHERE name = 'x' FOR UPDATE")
	require.NoError(t, err)
	close(fail)
	failing := func() bool { return strings.Contains(log.String(), "msg=loop_failing loop="+string(loop.Acquire)) }
	require.Eventually(t, failing, patience, 5*time.Millisecond)
	a.lives(t, 5*timing.Heartbeat)
	require.NotContains(t, log.String(), "msg=loop_recovered loop="+string(loop.Acquire))
	require.NoError(t, tx.Rollback(t.Context()))
	receive(t, a.runs)
	require.Eventually(t, func() bool { return strings.Contains(log.String(), "msg=loop_recovered loop="+string(loop.Acquire)) }, patience, 5*time.Millisecond)
}

// I10.
func lockedRowIsTakenByNobodyBeforeItIsFree(t *testing.T) {
	t.Parallel()
	f := fleetOn(t, pgtest.Holding(t))
	loops := loop.New(nil, metrics.New(prometheus.NewRegistry()))
	a, b := f.start(f.replica(quick, []string{"x"})), f.replica(quick, []string{"x"}, func(c *Config) { c.Loops = loops })
	first := receive(t, a.runs)
	tx, err := f.db.Conn(t).Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "SELECT FROM reconciler.targets WHERE name = 'x' FOR UPDATE")
	require.NoError(t, err)
	a.wire.cut()
	f.start(b)
	b.lives(t, 2*quick.MinTTL)
	require.Eventually(t, func() bool { return len(loops.Failing(0)) == 1 }, patience, 5*time.Millisecond)
	require.Equal(t, loop.Acquire, loops.Failing(0)[0].Loop)
	require.Equal(t, "take target x: the row is locked, as by a transaction that somebody left open", loops.Failing(0)[0].Text)
	require.Empty(t, b.runs)
	require.Equal(t, ErrLost, context.Cause(first.ctx))
	require.NoError(t, tx.Rollback(t.Context()))
	second := receive(t, b.runs)
	require.Equal(t, first.Term+1, second.Term)
	require.False(t, second.Clean)
	require.Eventually(t, func() bool { return len(loops.Failing(0)) == 0 }, patience, 5*time.Millisecond)
}
