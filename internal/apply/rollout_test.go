package apply

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What could not be recorded is left out until its time, and no longer.
func TestLater(t *testing.T) {
	t.Parallel()
	var l later
	results := taskResults{operations: []int64{7, 8, 7}, resources: []int32{1, 1, 2}, keys: []string{"a", "b", "c"}, verdicts: []string{"done", "failed", "attempt"}, errs: []string{"", "boom", "bang"}}
	require.Equal(t, results, l.rest(results))
	now := time.Now()
	operations, next := l.due(now)
	require.Empty(t, operations)
	require.Negative(t, next)

	l.add([]int64{7, 7}, now.Add(time.Second))
	l.add([]int64{9}, now.Add(time.Minute))
	require.Equal(t, taskResults{operations: []int64{8}, resources: []int32{1}, keys: []string{"b"}, verdicts: []string{"failed"}, errs: []string{"boom"}}, l.rest(results))
	operations, next = l.due(now)
	require.Empty(t, operations)
	require.Equal(t, time.Second, next)
	operations, next = l.due(now.Add(time.Second))
	require.Equal(t, []int64{7}, operations)
	require.Equal(t, 59*time.Second, next)
	require.Equal(t, results, l.rest(results))
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
