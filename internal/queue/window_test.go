package queue

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/budget"
)

// A window is one of calls: objects that turn out to need none take no room in it, so that one slow call in a hundred
// does not have the others read one by one.
func TestObjectsWithoutACallTakeNoRoom(t *testing.T) {
	t.Parallel()
	q := New[cargo](4, nil)
	for i := range 3000 {
		q.add(t, liveItem(fmt.Sprint(i)))
	}
	first := q.tryTake(1000)
	require.Len(t, first, 4)
	require.Empty(t, q.tryTake(1000))
	q.Looked(first[0], true, 0)
	for _, it := range first[1:] {
		q.Looked(it, false, 0)
	}
	require.Equal(t, [2]int{1, 0}, q.inFlight)
	taken := 0
	for range 30 {
		items := q.tryTake(1000)
		if len(items) == 0 {
			break // all of them are taken
		}
		taken = max(taken, len(items))
		for _, it := range items {
			q.Looked(it, false, 0)
			q.Done(it)
		}
	}
	require.Greater(t, taken, 100)
	require.Equal(t, [2]int{1, 0}, q.inFlight)

	// As soon as they need calls again, no more are taken than there is room for.
	for i := range 3000 {
		q.add(t, liveItem(fmt.Sprint("more", i)))
	}
	items := q.tryTake(1000)
	require.Greater(t, len(items), 100)
	for _, it := range items {
		q.Looked(it, true, 0)
	}
	require.Empty(t, q.tryTake(1000))
	for _, it := range append(items, first...) {
		q.Done(it)
	}
	require.Equal(t, [2]int{}, q.inFlight)
	for range 300 {
		for _, it := range q.tryTake(4) {
			q.Looked(it, true, 0)
			q.Done(it)
		}
	}
	require.Len(t, q.tryTake(1000), 4)
}

// What is put back counts anew when it is taken again.
func TestWhatIsPutBackTakesRoomAgain(t *testing.T) {
	t.Parallel()
	q := New[cargo](4, nil)
	q.add(t, liveItem("a"))
	it := q.tryTake(1)[0]
	q.Looked(it, false, 0)
	q.PutBack(it)
	require.Equal(t, [2]int{}, q.inFlight)
	require.Same(t, it, q.tryTake(1)[0])
	require.Equal(t, [2]int{1, 0}, q.inFlight)
	q.Done(it)
	require.Equal(t, [2]int{}, q.inFlight)
}

// F17: nothing more is taken while specs in flight have many bytes, and it goes on when calls have ended.
func TestF17_SpecsInFlightAreBoundedInBytes(t *testing.T) {
	t.Parallel()
	memory := budget.NewShares(64 * specMost)
	q := New[cargo](windowMost, memory)
	for i := range 300 {
		q.add(t, liveItem(fmt.Sprint(i)))
	}
	var flying []*item
	for len(flying) < 48 {
		it := q.tryTake(1)[0]
		q.Looked(it, true, specMost)
		flying = append(flying, it)
	}
	require.Empty(t, q.tryTake(windowMost))
	q.Looked(flying[0], false, 0)
	next := q.tryTake(1)
	require.Len(t, next, 1)
	q.Looked(next[0], true, specMost)
	require.Empty(t, q.tryTake(windowMost))
	q.PutBack(next[0])
	require.Same(t, next[0], q.tryTake(1)[0])
	q.Looked(next[0], true, 1)
	q.Done(next[0])
	for _, it := range flying {
		q.Done(it)
	}
	require.Zero(t, memory.Used())
}

// F118: the queues of slow targets leave another one room for an object, and what lands in one of them wakes it for more.
func TestF118_SpecsInFlightOfAllQueuesAreBoundedTogether(t *testing.T) {
	t.Parallel()
	memory := budget.NewShares(16 * specMost)
	fly := func(q *Queue[cargo, *cargo]) (flying []*item) {
		for {
			items := q.tryTake(1)
			if len(items) == 0 {
				return flying
			}
			room := q.Borrow(4 * specMost)
			require.Positive(t, room)
			q.Looked(items[0], true, specMost)
			q.Return(room)
			flying = append(flying, items...)
		}
	}
	fill := func() *Queue[cargo, *cargo] {
		q := New[cargo](windowMost, memory)
		for i := range 100 {
			q.add(t, liveItem(fmt.Sprint(i)))
		}
		return q
	}
	slow := make([]*Queue[cargo, *cargo], 40)
	var flying []*item
	for i := range slow {
		slow[i] = fill()
		if one := fly(slow[i]); i == 0 {
			flying = one
		} else {
			require.NotEmpty(t, one)
		}
	}
	require.Less(t, memory.Used(), int64((16+40)*specMost), "all of them together, beside an object of each")

	last := fill()
	own := fly(last)
	require.Len(t, own, 1, "it has one in flight, whatever the others have")
	select {
	case <-last.ready:
	default:
	}
	require.Empty(t, last.tryTake(1))
	last.Done(own[0])
	require.Len(t, fly(last), 1)
	select {
	case <-last.ready:
	default:
	}
	require.Zero(t, last.Borrow(1), "and no more")
	for _, q := range slow[1:] {
		q.Abandon()
	}
	for _, it := range flying {
		slow[0].Done(it)
	}
	<-last.ready
	require.Greater(t, len(fly(last)), 5)
	last.Abandon()
	slow[0].Abandon()
	require.Zero(t, memory.Used())
}
