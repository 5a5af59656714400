package throttle

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// C27: the pause doubles with each failure up to its cap.
func TestBackoffDoublesToItsCap(t *testing.T) {
	t.Parallel()
	b := Backoff{Min: 500 * time.Millisecond, Max: 5 * time.Second}
	var pauses []time.Duration
	for n := 1; n <= 6; n++ {
		pauses = append(pauses, b.Pause(n))
	}
	require.Equal(t, []time.Duration{
		500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second, 5 * time.Second, 5 * time.Second,
	}, pauses)
}

func TestBackoffStaysWithinItsBounds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		b := Backoff{
			Min: time.Duration(rapid.Int64Range(1, int64(24*time.Hour)).Draw(t, "min")),
			Max: time.Duration(rapid.Int64Range(1, int64(24*time.Hour)).Draw(t, "max")),
		}
		n := rapid.OneOf(rapid.IntRange(0, 40), rapid.IntRange(0, 1<<30)).Draw(t, "failures")
		pause, next := b.Pause(n), b.Pause(n+1)
		require.GreaterOrEqual(t, pause, min(b.Min, b.Max))
		require.LessOrEqual(t, pause, b.Max)
		require.GreaterOrEqual(t, next, pause)
		if pause < b.Max/2 && n > 0 {
			require.Equal(t, 2*pause, next)
		}
	})
}

// C27: objects that failed together do not come back together.
func TestJitterSpreadsAPauseEitherWay(t *testing.T) {
	t.Parallel()
	const pause = time.Second
	lowest, highest := pause, pause
	for range 1000 {
		j := Jittered(pause)
		require.GreaterOrEqual(t, j, 800*time.Millisecond)
		require.Less(t, j, 1200*time.Millisecond)
		lowest, highest = min(lowest, j), max(highest, j)
	}
	require.Less(t, lowest, 850*time.Millisecond)
	require.Greater(t, highest, 1150*time.Millisecond)
}
