package outbox

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
