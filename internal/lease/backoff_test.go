package lease

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestBackoffDoublesToItsCapAndIsJittered(t *testing.T) {
	t.Parallel()
	for failures, seconds := range map[int]int{1: 1, 2: 2, 3: 4, 4: 8, 5: 16, 6: 30, 7: 30, 40: 30, 1000: 30} {
		longest := time.Duration(seconds) * time.Second
		seen := map[time.Duration]bool{}
		for range 200 {
			pause := backoff(failures, time.Second, 30*time.Second)
			require.LessOrEqual(t, pause, longest)
			require.GreaterOrEqual(t, pause, max(time.Second, longest*3/4))
			seen[pause] = true
		}
		require.Equal(t, failures > 1, len(seen) > 1, "after %d failures", failures)
	}
}

func TestBackoffStaysWithinItsBounds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		shortest := time.Duration(rapid.Int64Range(1, int64(time.Hour)).Draw(t, "shortest"))
		longest := shortest + time.Duration(rapid.Int64Range(0, int64(24*time.Hour)).Draw(t, "more"))
		pause := backoff(rapid.IntRange(1, 1<<40).Draw(t, "failures"), shortest, longest)
		require.GreaterOrEqual(t, pause, shortest)
		require.LessOrEqual(t, pause, longest)
	})
	require.GreaterOrEqual(t, backoff(29, 1<<35, 1<<35), time.Duration(1<<34), "doubled 28 times it would be less than nothing")
}

func TestBackoffBeginsAnewAfterARunThatLasted(t *testing.T) {
	t.Parallel()
	now := time.Hour
	s := &session{cfg: Config{Clock: func() time.Duration { return now }, Timing: Timing{BackoffMin: time.Second, BackoffMax: 30 * time.Second}}}
	sl := &slot{begun: now - 30*time.Second + 1}
	for range 4 {
		s.pause(sl)
	}
	require.Equal(t, 4, sl.failures)
	sl.begun--
	require.Equal(t, time.Second, s.pause(sl))
	require.Equal(t, 1, sl.failures)
}

func TestHeartbeatsAreJitteredAndNeverLate(t *testing.T) {
	t.Parallel()
	seen := map[time.Duration]bool{}
	for range 200 {
		interval := jittered(HeartbeatInterval)
		require.LessOrEqual(t, interval, HeartbeatInterval)
		require.GreaterOrEqual(t, interval, HeartbeatInterval*9/10)
		seen[interval] = true
	}
	require.Greater(t, len(seen), 1)
}
