package throttle

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// waits sleeps on the clock of the bubble.
func waits(d time.Duration) error {
	time.Sleep(d)
	return nil
}

func TestRateMakesCallsWait(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rate float64
		want time.Duration // until the 101st call
	}{
		"NoLimit": {0, 0},
		"Burst":   {100, 910 * time.Millisecond},
		"Slow":    {0.5, 200 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r, began := NewRate(c.rate), time.Now()
				for range 101 {
					require.NoError(t, r.Take(waits))
				}
				require.InDelta(t, c.want, time.Since(began), float64(time.Millisecond))
			})
		})
	}
}

// A call that is not made takes no turn away from others.
func TestRateTakesBackWhatWasNotUsed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, began := NewRate(1), time.Now()
		require.NoError(t, r.Take(waits))
		r.Return(1)
		require.NoError(t, r.Take(waits))
		require.Zero(t, time.Since(began), "the token that came back")
		stopped := errors.New("stopped")
		require.Equal(t, stopped, r.Take(func(time.Duration) error { return stopped }))
		require.NoError(t, r.Take(waits))
		require.InDelta(t, time.Second, time.Since(began), float64(time.Millisecond), "the turn that was given up")
	})
}
