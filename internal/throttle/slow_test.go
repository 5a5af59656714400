package throttle

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSlowdownIsTroubleWhenItGoesOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var s Slowdown
		require.Empty(t, s.Trouble())
		require.True(t, s.Down(3*time.Second, "429"))
		require.Equal(t, 3*time.Second, s.Remaining())
		require.False(t, s.Down(time.Second, "later"), "it has begun")
		require.Equal(t, 3*time.Second, s.Remaining(), "a shorter pause does not end a longer one")
		require.Empty(t, s.Trouble(), "a short pause is none")
		time.Sleep(3 * time.Second)
		require.False(t, s.Down(time.Hour, "again"), "it goes on")
		require.Equal(t, slowMost, s.Remaining())
		require.Equal(t, "it asks to be called less often (set rate to what it takes): 429", s.Trouble())
		time.Sleep(slowMost + slowShown + 1)
		require.Empty(t, s.Trouble())
		require.True(t, s.Down(time.Second, "new"))
	})
}
