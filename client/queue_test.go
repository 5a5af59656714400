package client

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// What is added before the handler begins needs no second run; what is added later does.
func TestQueueRunsAnObjectAgainForWhatCameAfterItBegan(t *testing.T) {
	t.Parallel()
	object := Ref{"app", "1"}
	for _, after := range []bool{false, true} {
		q := newQueue()
		q.release(closedBySnapshot)
		q.add(object)
		_, ok := q.next(t.Context())
		require.True(t, ok)
		q.add(object)
		q.begin(object)
		if after {
			q.add(object)
		}
		q.done(object, outcome{})
		ready, running, _ := q.counts()
		require.Equal(t, after, ready == 1)
		require.Zero(t, running)
	}
}
