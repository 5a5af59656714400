package apply

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/desired"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/throttle"
)

// F17: nothing more is taken while specs in flight have many bytes, and it goes on when calls have ended.
func TestF17_SpecsInFlightAreBoundedInBytes(t *testing.T) {
	t.Parallel()
	q := newQueue(throttle.WindowMost)
	for i := range 300 {
		q.add(t, liveItem(fmt.Sprint(i)))
	}
	var flying []*Item
	for len(flying) < 64 {
		it := q.tryTake(1)[0]
		q.looked(it, true, desired.SpecMost)
		flying = append(flying, it)
	}
	require.Empty(t, q.tryTake(throttle.WindowMost))
	q.looked(flying[0], false, 0)
	next := q.tryTake(1)
	require.Len(t, next, 1)
	q.looked(next[0], true, desired.SpecMost)
	require.Empty(t, q.tryTake(throttle.WindowMost))
	q.putBack(next[0])
	require.Same(t, next[0], q.tryTake(1)[0])
	q.looked(next[0], true, 1)
	q.done(next[0])
	for _, it := range flying {
		q.done(it)
	}
	require.Zero(t, q.bytes)
}

// F17: what a read had no room for is put back in its order, and the next reads take fewer, until there is room again.
func TestF17_ReadsTakeWhatThereIsRoomFor(t *testing.T) {
	t.Parallel()
	o, _ := testOwner(t, calls(func(context.Context, driver.Ref) driver.Outcome { return driver.Done() }), nil)
	o.queue.setWindow(throttle.WindowMost)
	for i := range 10 {
		o.queue.add(t, liveItem(fmt.Sprint(i)))
	}
	items := o.queue.tryTake(10)
	o.dispatcher.reads = throttle.WindowMost
	o.dispatcher.leave(items[6:], 10)
	require.Equal(t, 3, o.dispatcher.reads)
	require.Equal(t, []string{"6", "7", "8", "9"}, keysOf(o.queue.tryTake(10)))
	o.dispatcher.leave(nil, 3)
	require.Equal(t, 6, o.dispatcher.reads)
	o.dispatcher.leave(items[1:2], 1)
	require.Equal(t, 1, o.dispatcher.reads)
	for range 20 {
		o.dispatcher.leave(nil, 1)
	}
	require.Equal(t, throttle.WindowMost, o.dispatcher.reads)
}

// F17: one call to a driver that takes many objects at once has no more than some bytes, beside one object.
func TestF17_BatchesOfADriverAreBoundedInBytes(t *testing.T) {
	t.Parallel()
	o, _ := testOwner(t, batching{}, func(c *Config) { c.Concurrency = 1 })
	looks := make([]look, 10)
	for i := range looks {
		looks[i].act = actApply
		looks[i].row.Spec = make([]byte, desired.SpecMost)
	}
	looks[9].row.Spec = nil
	var sizes []int
	for _, group := range o.dispatcher.groups(looks) {
		sizes = append(sizes, len(group))
	}
	require.Equal(t, []int{4, 4, 2}, sizes)
}
