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

// F17: what a read had no room for is put back in its order, and the next reads take fewer, until there is room again.
func TestF17_ReadsTakeWhatThereIsRoomFor(t *testing.T) {
	t.Parallel()
	o, _ := testOwner(t, calls(func(context.Context, driver.Ref) driver.Outcome { return driver.Done() }), nil)
	o.queue.SetWindow(throttle.WindowMost)
	for i := range 10 {
		add(t, o.queue, liveItem(fmt.Sprint(i)))
	}
	items := tryTake(o.queue, 10)
	o.dispatcher.reads = throttle.WindowMost
	o.dispatcher.leave(items[6:], 10)
	require.Equal(t, 3, o.dispatcher.reads)
	require.Equal(t, []string{"6", "7", "8", "9"}, keysOf(tryTake(o.queue, 10)))
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
