package apply

import (
	"context"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
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
	o.dispatcher.leave(items[6:], 10, 0)
	require.Equal(t, 3, o.dispatcher.reads)
	require.Equal(t, []string{"6", "7", "8", "9"}, keysOf(tryTake(o.queue, 10)))
	o.dispatcher.leave(nil, 3, slowRead)
	require.Equal(t, 3, o.dispatcher.reads, "a slow read is not followed by a larger one")
	o.dispatcher.leave(nil, 3, 0)
	require.Equal(t, 6, o.dispatcher.reads)
	o.dispatcher.leave(items[1:2], 1, 0)
	require.Equal(t, 1, o.dispatcher.reads)
	for range 20 {
		o.dispatcher.leave(nil, 1, 0)
	}
	require.Equal(t, throttle.WindowMost, o.dispatcher.reads)
}

// A read that PostgreSQL cancels is too large for the line or the server: the next one takes half, also that of the next owner.
func TestF101_ReadThatWasCancelledIsHalved(t *testing.T) {
	t.Parallel()
	memory := NewMemory()
	share := func(c *Config) { c.Memory = memory }
	o, db := testOwner(t, calls(func(context.Context, driver.Ref) driver.Outcome { return driver.Done() }), share)
	o.queue.SetWindow(throttle.WindowMost)
	for i := range 8 {
		add(t, o.queue, liveItem(fmt.Sprint(i)))
	}
	items := tryTake(o.queue, 8)
	cancelled := fmt.Errorf("read rows: %w", &pgconn.PgError{Code: "57014"})
	require.NoError(t, o.dispatcher.readFailed(t.Context(), &desired.Resource{}, items, time.Minute, cancelled))
	require.Equal(t, 4, o.dispatcher.reads)
	require.Empty(t, db.asked, "the objects wait in the queue, not in the ledger")
	require.Equal(t, []string{"0", "1", "2", "3", "4", "5", "6", "7"}, keysOf(tryTake(o.queue, 8)))

	broken := fmt.Errorf("read rows: %w", io.ErrUnexpectedEOF)
	require.ErrorIs(t, o.dispatcher.readFailed(t.Context(), &desired.Resource{}, items[:4], slowRead, broken), broken)
	require.Equal(t, 2, o.dispatcher.reads, "something between cut a slow read")
	require.ErrorIs(t, o.dispatcher.readFailed(t.Context(), &desired.Resource{}, items[:4], time.Second, broken), broken)
	require.Equal(t, 2, o.dispatcher.reads)

	next, _ := testOwner(t, calls(nil), share)
	stopped, stop := context.WithCancel(t.Context())
	stop()
	require.NoError(t, next.dispatcher.dispatch(stopped))
	require.Equal(t, 2, next.dispatcher.reads)
	other, _ := testOwner(t, calls(nil), func(c *Config) { c.Memory, c.Name = memory, "us" })
	require.NoError(t, other.dispatcher.dispatch(stopped))
	require.Equal(t, throttle.WindowMost, other.dispatcher.reads)
}

// F118: a read borrows for what it will find, so that many reads that wait for a connection do not use up the memory.
func TestF118_ReadBorrowsForWhatTheLastOneFound(t *testing.T) {
	t.Parallel()
	o, _ := testOwner(t, calls(nil), nil)
	d := o.dispatcher
	require.EqualValues(t, readLeast, d.expected(1))
	require.EqualValues(t, 2*objectBytes*1000, d.expected(1000))
	large := desired.Row{Spec: make([]byte, desired.SpecMost)}
	d.learn([]desired.Row{large, {Left: true}})
	require.EqualValues(t, 2*desired.SpecMost, d.expected(1))
	require.EqualValues(t, desired.ReadMost, d.expected(1000))
	d.learn([]desired.Row{{Spec: make([]byte, 100), Ledger: &desired.Entry{Memory: make([]byte, 100)}}, {}})
	require.EqualValues(t, readLeast, d.expected(8))
	require.EqualValues(t, 200*1000, d.expected(1000))
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
