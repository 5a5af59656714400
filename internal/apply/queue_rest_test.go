package apply

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// wakes waits until there is something to be taken that was not there before.
func (q *queue) wakes() {
	select {
	case <-q.ready:
	default:
	}
	<-q.ready
}

// What is postponed comes back, each time later, with what came for it meanwhile, and takes no room until then.
func TestWhatIsPostponedComesBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(1)
		q.add(t, liveItem("a"), liveItem("b"))
		a := q.tryTake(1)
		var pauses []time.Duration
		for revision := range 7 {
			began := time.Now()
			q.postpone(a, time.Millisecond)
			b := q.tryTake(2)
			require.Equal(t, []string{"b"}, keysOf(b))
			q.add(t, &Item{ObjectID: object("a"), Revision: int64(revision)})
			require.Empty(t, q.tryTake(2), "one is taken, the other rests")
			q.done(b[0])
			require.Empty(t, q.tryTake(2), "there is room, and it rests")
			q.wakes()
			a = q.tryTake(1)
			q.add(t, liveItem("b"))
			require.Equal(t, []string{"a"}, keysOf(a))
			require.EqualValues(t, revision, a[0].Revision)
			pauses = append(pauses, time.Since(began))
		}
		require.Equal(t, []time.Duration{1e6, 2e6, 4e6, 8e6, 16e6, 16e6, 16e6}, pauses)
	})
}

// While too much rests nothing more is taken, which would rest, too. A queue that was given up is left alone.
func TestAsMuchRestsAsMay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(1)
		for i := range restMost + 1 {
			q.add(t, liveItem(fmt.Sprint(i)))
		}
		for range restMost {
			q.postpone(q.tryTake(1), time.Second)
		}
		require.Empty(t, q.tryTake(1))
		q.wakes()
		synctest.Wait()
		items := q.tryTake(1)
		require.Len(t, items, 1)
		q.postpone(items, time.Second)
		q.abandon()
		<-time.After(time.Minute) // of the test's clock: until its pause is over
		synctest.Wait()
		require.Empty(t, q.tryTake(1))
	})
}
