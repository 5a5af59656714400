package apply

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/queue"
)

func object(key string) ObjectID { return ObjectID{ResourceID: 1, Key: key} }

func liveItem(key string) *Item { return &Item{ObjectID: object(key), Lane: LaneLive} }
func syncItem(key string) *Item { return &Item{ObjectID: object(key), Lane: LaneSync} }

// add pushes without waiting, and fails when it would have to wait.
func add(t require.TestingT, q *queue.Queue[payload, *payload], items ...*Item) {
	for _, it := range items {
		room, err := q.TryPush(it)
		require.NoError(t, err)
		require.Nil(t, room, "the lane is full")
	}
}

// tryTake takes without waiting.
func tryTake(q *queue.Queue[payload, *payload], most int) []*Item {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	items, _ := q.Take(ctx, most)
	return items
}

func keysOf(items []*Item) []string {
	keys := make([]string, len(items))
	for i, it := range items {
		keys[i] = it.Key
	}
	return keys
}

// What comes for an object that waits joins it: its pages, its runs, and that its delete is counted first.
func TestRequestsForAnObjectAreMerged(t *testing.T) {
	t.Parallel()
	q := queue.New[payload](10, nil)
	p1, p2 := &span{}, &span{}
	run := &Run{}
	run.add(false)
	add(t, q,
		&Item{ObjectID: object("a"), Payload: payload{pages: []*span{p1}}},
		&Item{ObjectID: object("a"), Payload: payload{pages: []*span{p2}}},
		&Item{ObjectID: object("a"), Lane: LaneSync, Payload: payload{park: heldBySync, runs: []*Run{run}}},
	)
	items := tryTake(q, 10)
	require.Len(t, items, 1)
	require.Equal(t, payload{pages: []*span{p1, p2}, park: heldBySync, runs: []*Run{run}}, items[0].Payload)
	q.Stop()
	q.Abandon()
	require.ErrorIs(t, run.Wait(t.Context()), ErrRunCut)
}
