package leader

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// A window tells its count once, when it has ended: all of it, or the share of one window where nobody asked for longer.
func TestRateCountsByWindows(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		window := time.Duration(rapid.Int64Range(1, int64(time.Second)).Draw(t, "window"))
		start := time.Unix(0, 0)
		r := rate{window: window, start: start}
		var count int64
		now := start
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.Int64Range(0, 5*int64(window)).Draw(t, "step")))
			added := rapid.Int64Range(0, 1_000_000).Draw(t, "added")
			r.add(added)
			count += added
			took := now.Sub(start)
			told, ended := r.ended(now)
			require.Equal(t, took >= window, ended)
			if !ended {
				require.Zero(t, told)
				continue
			}
			want := count
			if took > 2*window {
				want = count * int64(window) / int64(took)
			}
			require.Equal(t, want, told)
			_, again := r.ended(now)
			require.False(t, again, "a window has ended twice")
			start, count = now, 0
		}
	})
}

// The leader looks less often the more changes come, within bounds, and soon as often as before when they stop.
func TestPollFollowsTheCrowd(t *testing.T) {
	t.Parallel()
	now := time.Unix(0, 0)
	var c crowd
	look := func(rate float64, for_ time.Duration) {
		for end := now.Add(for_); now.Before(end); {
			pause := c.poll()
			now = now.Add(pause)
			c.add(now, int(rate*pause.Seconds()))
		}
	}
	require.Equal(t, awakePoll, c.poll())
	look(1000, time.Second)
	require.Equal(t, awakePoll, c.poll())
	look(2000, time.Second)
	require.InDelta(t, 5*time.Millisecond, c.poll(), float64(time.Millisecond))
	look(20_000, time.Second)
	require.Equal(t, awakePollMost, c.poll())
	c.add(now.Add(time.Microsecond), 5_000_000) // a giant transaction
	look(0, 250*time.Millisecond)
	require.Equal(t, awakePoll, c.poll())
}
