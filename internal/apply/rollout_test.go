package apply

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What could not be recorded is left out until its time, and no longer.
func TestLater(t *testing.T) {
	t.Parallel()
	var l later
	results := []result{{item: liveItem("a"), operation: 7}, {item: liveItem("b"), operation: 8}, {item: liveItem("c"), operation: 7}}
	rest := func() []result { return l.rest(slices.Clone(results)) }
	require.Equal(t, results, rest())
	now := time.Now()
	operations, next := l.due(now)
	require.Empty(t, operations)
	require.Negative(t, next)

	l.add([]int64{7, 7}, now.Add(time.Second))
	l.add([]int64{9}, now.Add(time.Minute))
	require.Equal(t, results[1:2], rest())
	operations, next = l.due(now)
	require.Empty(t, operations)
	require.Equal(t, time.Second, next)
	operations, next = l.due(now.Add(time.Second))
	require.Equal(t, []int64{7}, operations)
	require.Equal(t, 59*time.Second, next)
	require.Equal(t, results, rest())
}

func TestSooner(t *testing.T) {
	t.Parallel()
	require.Equal(t, time.Second, sooner(time.Second, time.Minute))
	require.Equal(t, time.Second, sooner(time.Minute, time.Second))
	require.Equal(t, time.Second, sooner(-1, time.Second))
	require.Equal(t, time.Second, sooner(time.Second, -1))
	require.Equal(t, time.Duration(0), sooner(time.Second, 0))
	require.Negative(t, sooner(-1, -1))
}
