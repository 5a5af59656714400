package lease

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// failFirst makes the first run of target x end with what fail says.
func failFirst(fail func() error) func(*Config) {
	return func(c *Config) {
		own := c.RunTarget
		c.RunTarget = func(ctx context.Context, g *Grant) error {
			if g.Target == "x" && g.Term == 1 {
				return fail()
			}
			return own(ctx, g)
		}
	}
}

func TestRunTarget(t *testing.T) {
	t.Parallel()

	t.Run("IsCalledAgainUnderANewTermAfterAnError", runTargetIsCalledAgainUnderANewTermAfterAnError)
	t.Run("KeepsItsLeaseWhileItRests", runTargetKeepsItsLeaseWhileItRests)
	t.Run("GivesALeaseBackWhenItIsStoppedWhileItRests", runTargetGivesALeaseBackWhenItIsStoppedWhileItRests)
	t.Run("SurvivesItsPanic", runTargetSurvivesItsPanic)
	t.Run("WaitsForCallsOfARunThatPanicked", runTargetWaitsForCallsOfARunThatPanicked)
	t.Run("LeavesItsLeaseToExpireWhenItIsStoppedAfterAPanic", runTargetLeavesItsLeaseToExpireWhenItIsStoppedAfterAPanic)
	t.Run("RestsWhenItEndsUnasked", runTargetRestsWhenItEndsUnasked)
	t.Run("DoesNotBackOffFurtherWhenTheDatabaseWasLost", runTargetDoesNotBackOffFurtherWhenTheDatabaseWasLost)
	t.Run("BacksOffFurtherWithEachFailure", runTargetBacksOffFurtherWithEachFailure)
	t.Run("EndsWithItsContextWhenItsLeaseWasTakenAway", runTargetEndsWithItsContextWhenItsLeaseWasTakenAway)
}

func runTargetIsCalledAgainUnderANewTermAfterAnError(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	a := f.start(f.replica(steadfast, []string{"x", "y"}, failFirst(func() error { return errors.New("disk is full") })))
	require.Equal(t, "target x", receive(t, a.resting))
	runs := receiveAll(t, a.runs, 2)
	require.Equal(t, int64(2), runs["x"].Term)
	require.False(t, runs["x"].Clean)
	require.Equal(t, int64(1), runs["y"].Term)
	require.True(t, runs["y"].Clean)
	require.NoError(t, runs["y"].ctx.Err())
	require.Contains(t, a.log.String(), `level=ERROR msg=run_failed lease="target x" term=1 error="disk is full" again_in=20ms`)
}

func runTargetKeepsItsLeaseWhileItRests(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	timing := steadfast
	timing.BackoffMin, timing.BackoffMax = 2*quick.MinTTL, 2*quick.MinTTL
	a := f.start(f.replica(timing, []string{"x"}, failFirst(func() error { return errors.New("no") })))
	receive(t, a.resting)
	b := f.start(f.replica(quick, []string{"x"}))
	require.Equal(t, int64(2), receive(t, a.runs).Term)
	require.Empty(t, b.runs)
	require.Empty(t, a.dropped)
}

func runTargetGivesALeaseBackWhenItIsStoppedWhileItRests(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	timing := quick
	timing.BackoffMin, timing.BackoffMax = time.Hour, time.Hour
	a := f.start(f.replica(timing, []string{"x"}, failFirst(func() error { return errors.New("no") })))
	receive(t, a.resting)
	require.NoError(t, a.Stop(t.Context()))
	require.Equal(t, "[null, false, 1]", value[string](f, "SELECT jsonb_build_array(owner, clean, term)::text FROM reconciler.targets"))
}

func runTargetSurvivesItsPanic(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	a := f.start(f.replica(quick, []string{"x"}, failFirst(func() error { panic("index out of range") })))
	second := receive(t, a.runs)
	require.Equal(t, int64(2), second.Term)
	require.False(t, second.Clean)
	require.Contains(t, a.log.String(), `level=ERROR msg=run_panicked lease="target x" term=1 error="panic: index out of range" stack="goroutine `)
	require.Contains(t, a.log.String(), "failure_test.go")
}

// What a panic left running ends with the timeout of its call.
func runTargetWaitsForCallsOfARunThatPanicked(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	const callTimeout = 700 * time.Millisecond
	panicked := make(chan time.Duration, 1)
	a := f.start(f.replica(quick, []string{"x"}, func(c *Config) { c.Targets[0].CallTimeout = callTimeout },
		failFirst(func() error { panicked <- sinceStart(); panic("no") })))
	receive(t, a.runs)
	require.GreaterOrEqual(t, sinceStart()-receive(t, panicked), callTimeout)
}

func runTargetLeavesItsLeaseToExpireWhenItIsStoppedAfterAPanic(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	a := f.start(f.replica(quick, []string{"x"}, func(c *Config) { c.Targets[0].CallTimeout = time.Hour },
		failFirst(func() error { panic("no") })))
	receive(t, a.resting)
	require.NoError(t, a.Stop(t.Context()))
	require.Equal(t, a.cfg.Instance, value[string](f, "SELECT owner::text FROM reconciler.targets"))
	require.Contains(t, a.log.String(), "msg=lease_left_to_expire")
}

func runTargetRestsWhenItEndsUnasked(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	a := f.start(f.replica(quick, []string{"x"}, failFirst(func() error { return nil })))
	second := receive(t, a.runs)
	require.Equal(t, int64(2), second.Term)
	require.True(t, second.Clean)
	require.Contains(t, a.log.String(), `level=WARN msg=run_ended_unasked lease="target x" term=1 again_in=20ms`)
}

// Each was begun well; that the database was lost says nothing about the next one, and the heartbeats look for it.
func runTargetDoesNotBackOffFurtherWhenTheDatabaseWasLost(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	timing := quick
	timing.BackoffMin, timing.BackoffMax = time.Millisecond, time.Hour
	ended := make(chan struct{}, 40)
	a := f.start(f.replica(timing, []string{"x"}, func(c *Config) {
		own := c.RunTarget
		c.RunTarget = func(ctx context.Context, g *Grant) error {
			if g.Term > int64(cap(ended)) {
				return own(ctx, g)
			}
			ended <- struct{}{}
			return fmt.Errorf("read something: %w", io.ErrUnexpectedEOF)
		}
	}))
	require.EqualValues(t, cap(ended)+1, receive(t, a.runs).Term)
	require.Equal(t, cap(ended), strings.Count(a.log.String(), `error="read something: unexpected EOF" again_in=1ms`))
}

func runTargetBacksOffFurtherWithEachFailure(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	begun := make(chan time.Duration, 100)
	f.start(f.replica(quick, []string{"x"}, func(c *Config) {
		c.RunTarget = func(context.Context, *Grant) error {
			begun <- sinceStart()
			return errors.New("no")
		}
	}))
	last := receive(t, begun)
	for _, milliseconds := range []int{20, 30, 60, 120, 225, 225} { // three quarters of 20, 40, 80, 160, 300, but 20 at least
		next := receive(t, begun)
		require.GreaterOrEqual(t, next-last, time.Duration(milliseconds)*time.Millisecond)
		last = next
	}
}

func runTargetEndsWithItsContextWhenItsLeaseWasTakenAway(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	timing := quick
	timing.MinTTL = time.Hour
	a := f.start(f.replica(timing, []string{"x"}))
	first := receive(t, a.runs)
	f.db.Exec(t, "SELECT reconciler.start_over('restored')")
	<-first.ended
	require.Equal(t, ErrLost, context.Cause(first.ctx))
	second := receive(t, a.runs)
	require.Greater(t, second.Term, first.Term)
	require.False(t, second.Clean)
	require.True(t, second.Fresh)
}

func TestRunLeader(t *testing.T) {
	t.Parallel()

	for _, test := range []struct {
		name string
		fail func() error
		log  string
	}{
		{"IsCalledAgainUnderANewTermAfterAnError", func() error { return errors.New("connection lost") }, `level=ERROR msg=run_failed lease=leadership term=1 error="connection lost" again_in=20ms`},
		{"SurvivesItsPanic", func() error { panic("no") }, `level=ERROR msg=run_panicked lease=leadership term=1 error="panic: no" stack="goroutine `},
		{"RestsWhenItEndsUnasked", func() error { return nil }, `level=WARN msg=run_ended_unasked lease=leadership term=1 again_in=20ms`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t)
			a := f.start(f.replica(steadfast, []string{"x"}, func(c *Config) {
				lead := c.RunLeader
				c.RunLeader = func(ctx context.Context, term int64) error {
					if term == 1 {
						return test.fail()
					}
					return lead(ctx, term)
				}
			}))
			require.Equal(t, int64(2), receive(t, a.leads))
			require.Contains(t, a.log.String(), test.log)
			require.NoError(t, receive(t, a.runs).ctx.Err())
		})
	}

	t.Run("IsNotCalledByAProcessThatDoesNotLead", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t)
		a := f.start(f.replica(quick, []string{"x"}, func(c *Config) { c.RunLeader = nil }))
		for range 3 {
			receive(t, a.planned)
		}
		require.True(t, value[bool](f, "SELECT owner IS NULL FROM reconciler.leases"))
	})
}

func TestHeartbeat(t *testing.T) {
	t.Parallel()

	t.Run("SaysOnceThatItFailsAndOnceThatItWorksAgain", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t)
		a := f.start(f.replica(quick, nil))
		require.NoError(t, receive(t, a.beats))
		a.wire.cut()
		for range 3 {
			a.awaitBeat(t, isFailure)
		}
		a.wire.Refuse(false)
		a.awaitBeat(t, isSuccess)
		require.Eventually(t, func() bool { return a.Status().Failing == 0 }, patience, time.Millisecond)
		require.Equal(t, 1, strings.Count(a.log.String(), "msg=heartbeat_failed"))
		require.Equal(t, 1, strings.Count(a.log.String(), "msg=heartbeat_recovered"))
		require.Positive(t, a.Status().SinceBeat)
	})

	// C67: sessions of a demoted server stay read-only for ever, new ones find the primary.
	t.Run("ConnectsAnewWhenTheServerIsReadOnly", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t)
		a := f.start(f.replica(quick, []string{"x"}))
		receive(t, a.runs)
		conn := f.db.Conn(t)
		_, err := conn.Exec(t.Context(), "ALTER DATABASE "+f.db.Name+" SET default_transaction_read_only = on")
		require.NoError(t, err)
		_, err = conn.Exec(t.Context(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
		require.NoError(t, err)
		a.awaitBeat(t, func(err error) bool { return err != nil && strings.Contains(err.Error(), "25006") })
		_, err = conn.Exec(t.Context(), "ALTER DATABASE "+f.db.Name+" RESET default_transaction_read_only")
		require.NoError(t, err)
		a.awaitBeat(t, isSuccess)
	})

	// C25: an idle process asks for nothing else.
	t.Run("IsAllThatAnIdleProcessAsksFor", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t)
		asked := new(statements)
		a := f.start(f.replica(quick, []string{"x", "y"}, asked.watch(t)))
		receiveAll(t, a.runs, 2)
		receive(t, a.leads)
		receive(t, a.planned)
		asked.reset()
		for len(asked.names()) < 5 { // a plan may be of a heartbeat from before
			receive(t, a.planned)
		}
		require.Equal(t, []string{"LeaseHeartbeat"}, slices.Compact(asked.names()))
	})

	t.Run("ComesWhenControlFiresAndNotForAFlood", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t)
		a := f.start(f.replica(still, nil))
		receive(t, a.leads)
		receive(t, a.planned)
		require.Empty(t, a.planned)
		begun := sinceStart()
		for range 5 {
			a.control <- struct{}{}
			receive(t, a.planned)
		}
		require.GreaterOrEqual(t, sinceStart()-begun, 4*controlPause)
	})

	t.Run("DoesNotSpinWhenControlIsClosed", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t)
		a := f.replica(still, nil)
		close(a.control)
		f.start(a)
		receive(t, a.planned) // the first
		receive(t, a.planned) // the end of the channel
		select {
		case <-a.planned:
			t.Fatal("a heartbeat without a reason")
		case <-time.After(10 * controlPause):
		}
		require.NoError(t, a.Stop(t.Context()))
	})
}
