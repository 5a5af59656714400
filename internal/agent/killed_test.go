package agent

import (
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Calls of a process that was killed may be under way for as long as a call may take. I3.
func TestAgentCallsNothingWhileCallsOfAKilledProcessMayBeUnderWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.lines = "  timeout: 10s\n"
		b.Set("app", "a", spec(1))
		r := b.start(t)
		after(time.Minute)
		require.Equal(t, []string{"a"}, b.far.called(), "nothing was there before the first process")
		left, err := os.ReadFile(r.identity.path)
		require.NoError(t, err)
		require.NoError(t, r.stop())
		b.Set("app", "a", spec(2))
		require.NoError(t, b.start(t).stop())
		require.Equal(t, []string{"a"}, b.far.called(), "the process before has ended in good order")

		require.NoError(t, os.WriteFile(r.identity.path, left, 0o600)) // as a kill leaves it
		b.Set("app", "a", spec(3))
		r = b.start(t)
		after(9 * time.Second)
		require.Empty(t, b.far.called())
		require.Equal(t, StateSuspended, r.target().State)
		require.Regexp(t, `^calls of a process that was killed may be under way until \d\d:\d\d:\d\d UTC$`, r.target().Trouble)
		require.NoError(t, r.stop())
		r = b.start(t)
		after(9 * time.Second)
		require.Empty(t, b.far.called(), "the wait was not over when the process in between ended")
		after(2 * time.Second)
		require.Equal(t, []string{"a"}, b.far.called())
		require.Equal(t, StateOK, r.target().State)
		require.Equal(t, `app/a={"n":3}`, b.far.has())
	})
}
