//go:build faults

package crash

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOrdersAreReadFromText(t *testing.T) {
	t.Parallel()
	orders, err := parse("after-call:kill:3,before-settle:stop,after-call:panic")
	require.NoError(t, err)
	require.Equal(t, []*order{
		{text: "after-call:kill:3", name: AfterCall, action: "kill", left: 3},
		{text: "before-settle:stop", name: BeforeSettle, action: "stop", left: 1},
		{text: "after-call:panic", name: AfterCall, action: "panic", left: 1},
	}, orders)
	orders, err = parse("")
	require.NoError(t, err)
	require.Empty(t, orders)
}

func TestOrdersThatMeanNothingAreRefused(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"after-call":              `"after-call" is not of the form point:action or point:action:n`,
		"after-call:kill:1:2":     `"after-call:kill:1:2" is not of the form point:action or point:action:n`,
		"aftercall:kill":          `there is no point "aftercall"`,
		"after-call:exit":         `there is no action "exit": it is kill, stop or panic`,
		"after-call:kill:0":       `"0" in "after-call:kill:0" is not the number of a visit`,
		"after-call:kill:first":   `"first" in "after-call:kill:first" is not the number of a visit`,
		"after-call:kill,":        `"" is not of the form point:action or point:action:n`,
		"after-call:kill, x:kill": `there is no point " x"`,
	} {
		_, err := parse(text)
		require.EqualError(t, err, want)
	}
}

func TestPointFiresAtItsVisitOnly(t *testing.T) {
	t.Parallel()
	orders, err := parse("after-call:panic:3,after-tick:panic")
	require.NoError(t, err)
	log := filepath.Join(t.TempDir(), "log")
	a := &arms{orders: orders, log: log}
	a.reach(AfterCall)
	a.reach(AfterCall)
	a.reach(BeforeCall)
	require.NoFileExists(t, log)
	require.PanicsWithValue(t, "crash point after-call:panic:3", func() { a.reach(AfterCall) })
	a.reach(AfterCall)
	require.PanicsWithValue(t, "crash point after-tick:panic", func() { a.reach(AfterTick) })
	text, err := os.ReadFile(log)
	require.NoError(t, err)
	require.Equal(t, "after-call:panic:3\nafter-tick:panic\n", string(text))
}
