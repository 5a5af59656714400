package lease

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// testHold returns a hold of ten seconds, the context that it ends, and how often it was lost by itself.
func testHold(t *testing.T) (h *hold, ctx context.Context, losses *int) {
	t.Helper()
	losses = new(int)
	ctx, cancel := context.WithCancelCause(t.Context())
	start := time.Now()
	clock := func() time.Duration { return time.Since(start) }
	return newHold(clock, clock()+10*time.Second, cancel, func() { *losses++ }), ctx, losses
}

func TestHold(t *testing.T) {
	t.Parallel()

	t.Run("EndsByItselfAtItsDeadline", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			h, ctx, losses := testHold(t)
			begun := time.Now()
			require.Equal(t, 10*time.Second, h.remaining())
			<-ctx.Done()
			require.Equal(t, 10*time.Second, time.Since(begun))
			require.Equal(t, ErrLost, context.Cause(ctx))
			require.Zero(t, h.remaining())
			synctest.Wait()
			require.Equal(t, 1, *losses)
			require.False(t, h.renew(time.Hour))
			require.Zero(t, h.remaining())
		})
	})

	t.Run("LivesOnWhenItIsRenewed", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			h, ctx, losses := testHold(t)
			begun := time.Now()
			for i := range 5 {
				<-time.After(8 * time.Second)
				require.True(t, h.renew(time.Duration(i+1)*8*time.Second+10*time.Second))
			}
			require.Equal(t, 10*time.Second, h.remaining())
			<-ctx.Done()
			require.Equal(t, 50*time.Second, time.Since(begun))
			synctest.Wait()
			require.Equal(t, 1, *losses)
		})
	})

	t.Run("IsNotRenewedAfterItsDeadlineEvenIfNoTimerHasFiredYet", func(t *testing.T) {
		t.Parallel()
		now := time.Duration(0)
		ctx, cancel := context.WithCancelCause(t.Context())
		h := newHold(func() time.Duration { return now }, time.Hour, cancel, func() {})
		now = time.Hour // the process was frozen: its timers come later
		require.Zero(t, h.remaining())
		require.False(t, h.renew(2*time.Hour))
		h.lose()
		require.Equal(t, ErrLost, context.Cause(ctx))
	})

	t.Run("IsSilentOnceItWasGivenUp", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			h, ctx, losses := testHold(t)
			h.end()
			require.Zero(t, h.remaining())
			<-time.After(time.Minute)
			require.NoError(t, ctx.Err())
			require.Zero(t, *losses)
		})
	})
}

func TestGrant(t *testing.T) {
	t.Parallel()

	t.Run("AllowsOnlyWhatEndsWithinItsLease", func(t *testing.T) {
		t.Parallel()
		h := newHold(func() time.Duration { return 0 }, time.Minute, func(error) {}, func() {})
		g := &Grant{hold: h}
		require.Equal(t, time.Minute, g.Remaining())
		require.True(t, g.Allows(0))
		require.True(t, g.Allows(time.Minute))
		require.False(t, g.Allows(time.Minute+1))
		h.lose()
		require.Zero(t, g.Remaining())
		require.False(t, g.Allows(0))
	})

	t.Run("ForTestsLivesAsLongAsItSays", func(t *testing.T) {
		t.Parallel()
		g := NewGrant("x", 7, "me", 3, time.Hour)
		require.True(t, g.Allows(59*time.Minute))
		require.False(t, g.Allows(time.Hour+time.Second))
		require.Equal(t, []any{"x", int32(7), "me", int64(3), true}, []any{g.Target, g.ID, g.Owner, g.Term, g.Clean})
		select {
		case <-g.Draining():
			t.Fatal("drains before it was asked to")
		default:
		}
		g.Drain()
		g.Drain()
		<-g.Draining()
		require.Zero(t, NewGrant("x", 7, "me", 3, 0).Remaining())
	})
}

func TestClock(t *testing.T) {
	t.Parallel()
	before := elapsed()
	goBefore := sinceStart()
	<-time.After(20 * time.Millisecond)
	goPassed := sinceStart() - goBefore
	passed := elapsed() - before
	require.GreaterOrEqual(t, goPassed, 20*time.Millisecond)
	require.GreaterOrEqual(t, passed, goPassed)
	require.Less(t, passed, time.Minute)
}

// I3: Go's clock stands still while the machine is suspended, and with it every timer of a call.
func TestACallIsOverWhenTheMachineWakesUpTooLate(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name      string
		suspended time.Duration
		want      bool
	}{
		{"WithinItsTime", 2 * time.Second, false},
		{"AfterItsTime", 3 * time.Second, true},
		{"AfterTheLease", time.Hour, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			now := time.Hour
			g := &Grant{hold: newHold(func() time.Duration { return now }, now+10*time.Second, func(error) {}, func() {})}
			over := g.Over(3 * time.Second)
			require.False(t, over())
			now += test.suspended
			require.Equal(t, test.want, over())
		})
	}

	t.Run("OrWhenItsLeaseIsLostBefore", func(t *testing.T) {
		t.Parallel()
		g := &Grant{hold: newHold(elapsed, elapsed()+time.Hour, func(error) {}, func() {})}
		over := g.Over(30 * time.Minute)
		g.hold.lose()
		require.True(t, over())
	})
}
