package lease

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

func TestStart(t *testing.T) {
	t.Parallel()

	t.Run("FailsWhenTheSchemaIsMissing", func(t *testing.T) {
		t.Parallel()
		f := &fleet{t: t, db: pgtest.Empty(t), owner: map[string]*run{}}
		a := f.replica(quick, []string{"x"})
		require.EqualError(t, a.Start(t.Context()), "register process host:1: the schema is missing or too old: run `reconciler migrate up` "+
			`(relation "reconciler.instances" does not exist): ERROR: relation "reconciler.instances" does not exist (SQLSTATE 42P01)`)
		require.NoError(t, a.Stop(t.Context()))
		select {
		case <-a.Started():
			t.Fatal("started")
		default:
		}
	})

	t.Run("FailsWhenTheServerIsAway", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t)
		a := f.replica(quick, []string{"x"})
		a.wire.cut()
		require.ErrorContains(t, a.Start(t.Context()), "register process host:1: ")
		a.wire.Refuse(false)
		started := a.Started()
		f.start(a)
		<-started
		receive(t, a.runs)
	})

	t.Run("FailsAtOnceWithAContextThatHasEnded", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t)
		a := f.replica(quick, []string{"x"})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, a.Start(ctx), context.Canceled)
		require.Zero(t, value[int](f, "SELECT count(*) FROM reconciler.instances"))
	})

	t.Run("IsRefusedWhileItRuns", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t)
		a := f.start(f.replica(quick, nil))
		require.Equal(t, ErrRunning, a.Start(t.Context()))
	})

	t.Run("WorksAgainAfterAStop", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t)
		a := f.replica(quick, []string{"x"})
		for term := range int64(3) {
			f.start(a)
			<-a.Started()
			require.Equal(t, term+1, receive(t, a.runs).Term)
			require.NoError(t, a.Stop(t.Context()))
			require.Equal(t, Status{}, a.Status())
		}
	})

	// A caller that gives up while the server does not answer.
	t.Run("IsGivenUpByStop", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t)
		a := f.replica(quick, []string{"x"})
		a.wire.Freeze("")
		result := make(chan error, 1)
		go func() { result <- a.Start(context.WithoutCancel(t.Context())) }()
		require.Eventually(t, func() bool {
			a.mu.Lock()
			defer a.mu.Unlock()
			return a.session != nil
		}, patience, time.Millisecond)
		require.NoError(t, a.Stop(t.Context()))
		require.Error(t, receive(t, result))
	})
}

func TestStop(t *testing.T) {
	t.Parallel()

	t.Run("DoesNothingWhenNothingRuns", stopDoesNothingWhenNothingRuns)
	t.Run("EndsTheLeaderAtOnceAndLetsTargetsDrain", stopEndsTheLeaderAtOnceAndLetsTargetsDrain)
	t.Run("CutsOffWhatDoesNotDrainInTime", stopCutsOffWhatDoesNotDrainInTime)
	t.Run("LeavesTheLeaseOfWhatDoesNotEvenReturn", stopLeavesTheLeaseOfWhatDoesNotEvenReturn)
	t.Run("SaysWhatItCouldNotRelease", stopSaysWhatItCouldNotRelease)
	t.Run("TriesAgainToReleaseALockedRow", stopTriesAgainToReleaseALockedRow)
	t.Run("TriesAgainToRemoveItsRow", stopTriesAgainToRemoveItsRow)
	t.Run("IsWhatTheEndOfTheContextOfStartDoes", stopIsWhatTheEndOfTheContextOfStartDoes)
}

func stopDoesNothingWhenNothingRuns(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	a := f.replica(quick, nil)
	require.NoError(t, a.Stop(t.Context()))
	f.start(a)
	require.NoError(t, a.Stop(t.Context()))
	require.NoError(t, a.Stop(t.Context()))
}

func stopEndsTheLeaderAtOnceAndLetsTargetsDrain(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	drained, causes := make(chan struct{}), make(chan error, 1)
	a := f.start(f.replica(quick, []string{"x"}, func(c *Config) {
		c.RunTarget = func(ctx context.Context, g *Grant) error {
			<-g.Draining()
			<-drained
			return ctx.Err()
		}
		c.RunLeader = func(ctx context.Context, _ int64) error {
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return nil
		}
	}))
	require.Eventually(t, func() bool { return a.Status().Leader && len(a.Status().Targets) == 1 }, patience, 5*time.Millisecond)
	stopped := make(chan error, 1)
	go func() { stopped <- a.Stop(context.WithoutCancel(t.Context())) }()
	require.Equal(t, ErrStopped, receive(t, causes))
	require.Eventually(t, func() bool {
		return value[bool](f, "SELECT owner IS NULL FROM reconciler.leases") && value[int](f, "SELECT count(*) FROM reconciler.instances WHERE targets = '{}'") == 1
	}, patience, 5*time.Millisecond)
	for beat := value[int64](f, "SELECT max(beat) FROM reconciler.heartbeats"); ; {
		receive(t, a.planned) // it goes on renewing
		if value[int64](f, "SELECT max(beat) FROM reconciler.heartbeats") > beat {
			break
		}
	}
	require.Empty(t, stopped)
	close(drained)
	require.NoError(t, receive(t, stopped))
	require.Equal(t, "[null, true]", value[string](f, "SELECT jsonb_build_array(owner, clean)::text FROM reconciler.targets"))
}

func stopCutsOffWhatDoesNotDrainInTime(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	causes := make(chan error, 1)
	a := f.start(f.replica(steadfast, []string{"x"}, func(c *Config) {
		c.RunTarget = func(ctx context.Context, _ *Grant) error {
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return context.Cause(ctx)
		}
	}))
	require.Eventually(t, func() bool { return len(a.Status().Targets) == 1 }, patience, 5*time.Millisecond)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("no time left"))
	require.EqualError(t, a.Stop(ctx), "stop ownership: what still ran was cut off: no time left")
	require.Equal(t, ErrStopped, receive(t, causes))
	require.Equal(t, "[null, false]", value[string](f, "SELECT jsonb_build_array(owner, clean)::text FROM reconciler.targets"))
	require.Zero(t, value[int](f, "SELECT count(*) FROM reconciler.instances"))
}

// I10: what never returns keeps its lease until it expires, and this process from owning the target again.
func stopLeavesTheLeaseOfWhatDoesNotEvenReturn(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	returns := make(chan struct{})
	timing := quick
	timing.StopGrace = 50 * time.Millisecond
	a := f.start(f.replica(timing, []string{"x"}, func(c *Config) {
		c.RunTarget = func(context.Context, *Grant) error {
			<-returns
			return nil
		}
	}))
	require.Eventually(t, func() bool { return len(a.Status().Targets) == 1 }, patience, 5*time.Millisecond)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("no time left"))
	require.EqualError(t, a.Stop(ctx), "stop ownership: what still ran was cut off: no time left\n"+
		"target x: the run has not returned 50ms after its context ended; its lease expires by itself")
	require.Equal(t, a.cfg.Instance, value[string](f, "SELECT owner::text FROM reconciler.targets"))
	require.EqualError(t, a.Start(t.Context()), "ownership is already running: runs of before have not returned (1)")
	close(returns)
	require.Eventually(t, func() bool { return a.active.Load() == 0 }, patience, time.Millisecond)
	require.NoError(t, a.Start(context.WithoutCancel(t.Context())))
	require.NoError(t, a.Stop(t.Context()))
}

func stopSaysWhatItCouldNotRelease(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	a := f.start(f.replica(quick, []string{"x"}))
	receive(t, a.runs)
	a.wire.cut()
	err := a.Stop(t.Context())
	require.ErrorContains(t, err, "stop ownership: ")
	require.ErrorContains(t, err, "target x: the lease expired before it could be released\n")
	require.ErrorContains(t, err, "remove the row of process host:1: ")
}

func stopTriesAgainToReleaseALockedRow(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	a := f.start(f.replica(quick, []string{"x"}))
	receive(t, a.runs)
	tx, err := f.db.Conn(t).Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "SELECT FROM reconciler.targets FOR UPDATE")
	require.NoError(t, err)
	stopped := make(chan error, 1)
	go func() { stopped <- a.Stop(context.WithoutCancel(t.Context())) }()
	require.Eventually(t, func() bool { return value[bool](f, "SELECT owner IS NULL FROM reconciler.leases") }, patience, time.Millisecond)
	require.NoError(t, tx.Rollback(t.Context()))
	require.NoError(t, receive(t, stopped))
	require.Empty(t, f.owners())
}

func stopTriesAgainToRemoveItsRow(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	a := f.start(f.replica(quick, []string{"x"}))
	receive(t, a.runs)
	f.db.Exec(t, `CREATE SEQUENCE tries;
		CREATE FUNCTION refuse_once() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF nextval('tries') = 1 THEN RAISE 'not now'; END IF; RETURN OLD; END $$;
		CREATE TRIGGER refuse_once BEFORE DELETE ON reconciler.instances FOR EACH ROW EXECUTE FUNCTION refuse_once()`)
	require.NoError(t, a.Stop(t.Context()))
	require.Equal(t, "[0, 2]", value[string](f, "SELECT jsonb_build_array((SELECT count(*) FROM reconciler.instances), (SELECT last_value FROM tries))::text"))
}

func stopIsWhatTheEndOfTheContextOfStartDoes(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	owned, causes := make(chan struct{}), make(chan error, 1)
	a := f.replica(quick, []string{"x"}, func(c *Config) {
		c.RunTarget = func(ctx context.Context, _ *Grant) error {
			close(owned)
			<-ctx.Done() // it is asked to drain, too, at the same moment
			causes <- context.Cause(ctx)
			return context.Cause(ctx)
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	require.NoError(t, a.Start(ctx))
	receive(t, owned)
	cancel()
	require.Equal(t, context.Canceled, receive(t, causes))
	require.NoError(t, a.Stop(t.Context()))
	require.Equal(t, "[null, false]", value[string](f, "SELECT jsonb_build_array(owner, clean)::text FROM reconciler.targets"))
}

// A loop whose context is done must neither spin nor hang, and a Stop at any moment leaves nothing behind.
func TestStartsAndStopsAtRandom(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	replicas := []*replica{f.replica(quick, []string{"x", "y", "z"}), f.replica(quick, []string{"x", "y", "z"})}
	f.connectControl(replicas...)
	var people sync.WaitGroup
	for _, r := range replicas {
		for range 3 {
			people.Go(func() { startAndStop(t, r, 20) })
		}
	}
	people.Wait()
	for _, r := range replicas {
		require.NoError(t, r.Stop(t.Context()))
	}
	// A stop without patience may have left its row behind; one with patience takes it away.
	for _, r := range replicas {
		f.start(r)
	}
	require.Eventually(t, func() bool { return len(f.owners()) == 3 }, patience, 5*time.Millisecond)
	for _, r := range replicas {
		require.NoError(t, r.Stop(t.Context()))
	}
	require.Zero(t, value[int](f, "SELECT count(*) FROM reconciler.instances"))
	require.Empty(t, f.owners())
}

// startAndStop is one of several who do so at the same time, with more or less patience.
func startAndStop(t *testing.T, r *replica, rounds int) {
	for range rounds {
		ctx, cancel := context.WithTimeout(t.Context(), rand.N(100*time.Millisecond))
		if rand.N(2) == 0 {
			_ = r.Start(ctx) // refused, cut off, or running until ctx ends
		} else if r.Start(context.WithoutCancel(t.Context())) == nil {
			select {
			case <-ctx.Done():
			case <-r.planned:
			}
		}
		if rand.N(2) == 0 {
			_ = r.Stop(ctx) // may be cut off
		}
		cancel()
	}
}
