package throttle

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestWindowFollowsTheTimeOfACall(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		concurrency int
		call        time.Duration
		want        int
	}{
		{4, 0, 1000}, {4, time.Microsecond, 1000}, {4, time.Millisecond, 80}, {4, 20 * time.Millisecond, 4}, {4, time.Minute, 4},
		{1, time.Second, 1}, {1024, time.Second, 1024}, {1024, 0, 1024}, {16, 2 * time.Millisecond, 160},
	} {
		require.Equal(t, c.want, window(c.concurrency, c.call), "%+v", c)
	}
}

func TestPaceFollowsSlowerCallsAndFasterOnes(t *testing.T) {
	t.Parallel()
	p := &Pace{}
	require.Equal(t, 100*time.Millisecond, p.add(1600*time.Millisecond))
	for range 200 {
		p.add(time.Second)
	}
	require.InDelta(t, time.Second, p.add(time.Second), float64(time.Millisecond))
	for range 400 {
		p.add(0)
	}
	require.Less(t, p.add(0), time.Microsecond)
}

func TestWindowOfALimitedRateIsThatOfSlowCalls(t *testing.T) {
	t.Parallel()
	require.Equal(t, 1000, NewPace(4, 0).Window(0))
	require.Equal(t, 4, NewPace(4, 1).Window(0))
	require.Equal(t, 200, NewPace(4, 10_000).Window(0))
}
