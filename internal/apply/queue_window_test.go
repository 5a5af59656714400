package apply

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// A window is one of calls: objects that turn out to need none take no room in it, so that one slow call in a hundred
// does not have the others read one by one.
func TestObjectsWithoutACallTakeNoRoom(t *testing.T) {
	t.Parallel()
	q := newQueue(4)
	for i := range 3000 {
		q.add(t, liveItem(fmt.Sprint(i)))
	}
	first := q.tryTake(1000)
	require.Len(t, first, 4)
	require.Empty(t, q.tryTake(1000))
	q.looked(first[0], true, 0)
	for _, it := range first[1:] {
		q.looked(it, false, 0)
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
			q.looked(it, false, 0)
			q.done(it)
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
		q.looked(it, true, 0)
	}
	require.Empty(t, q.tryTake(1000))
	for _, it := range append(items, first...) {
		q.done(it)
	}
	require.Equal(t, [2]int{}, q.inFlight)
	for range 300 {
		for _, it := range q.tryTake(4) {
			q.looked(it, true, 0)
			q.done(it)
		}
	}
	require.Len(t, q.tryTake(1000), 4)
}

// What is put back counts anew when it is taken again.
func TestWhatIsPutBackTakesRoomAgain(t *testing.T) {
	t.Parallel()
	q := newQueue(4)
	q.add(t, liveItem("a"))
	it := q.tryTake(1)[0]
	q.looked(it, false, 0)
	q.putBack(it)
	require.Equal(t, [2]int{}, q.inFlight)
	require.Same(t, it, q.tryTake(1)[0])
	require.Equal(t, [2]int{1, 0}, q.inFlight)
	q.done(it)
	require.Equal(t, [2]int{}, q.inFlight)
}
