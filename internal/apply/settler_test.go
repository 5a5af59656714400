package apply

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/desired"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/throttle"
)

// startSettler runs the settler of an owner until the end of the test or of its input.
func (o *Owner) startSettler(t *testing.T) (ended <-chan error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- o.settler.run(ctx) }()
	t.Cleanup(func() {
		cancel()
		elapse(settleEvery)
		if !o.queue.IsStopped() {
			close(o.settler.settled)
		}
	})
	return done
}

// fly puts an object into flight and returns a look at it.
func (o *Owner) fly(t *testing.T, key string, pages ...*span) look {
	t.Helper()
	it := liveItem(key)
	it.Payload.pages = pages
	o.queue.SetWindow(throttle.WindowBound)
	add(t, o.queue, it)
	require.Equal(t, []*Item{it}, tryTake(o.queue, 1))
	return look{resource: &desired.Resource{}, item: it, row: wantedRow(), now: 1, act: actApply}
}

func (o *Owner) settleDone(t *testing.T, l look) {
	t.Helper()
	require.NoError(t, o.settler.settle(t.Context(), l, l.outcome(actApply, driver.Done(), testBackoff)))
}

// I4: an object whose call takes long holds the cursor for no longer than patience, also when results of others never
// stop coming.
func TestSlowObjectIsRecordedUnderConstantLoad(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o, db := testOwner(t, calls(nil), nil)
		page := o.settler.tracker.mustOpen(t, 1, "slow")
		o.settler.tracker.close(page)
		o.fly(t, "slow", page)
		o.startSettler(t)
		for i := range 300 {
			o.settleDone(t, o.fly(t, fmt.Sprint(i)))
			elapse(10 * time.Millisecond)
		}
		synctest.Wait()
		require.Equal(t, 1, db.count("LedgerInHand"))
		require.Equal(t, at(1), o.settler.tracker.reach)
	})
}

// The first result after a pause is written at once; those that follow go together.
func TestResultsAreWrittenTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o, db := testOwner(t, calls(nil), nil)
		o.startSettler(t)
		elapse(time.Second)
		o.settleDone(t, o.fly(t, "first"))
		synctest.Wait()
		require.Equal(t, 1, db.count("Settle"))
		for i := range 100 {
			elapse(settleEvery / 200)
			o.settleDone(t, o.fly(t, fmt.Sprint(i)))
		}
		synctest.Wait()
		require.Equal(t, 1, db.count("Settle"))
		elapse(settleEvery)
		require.Equal(t, 2, db.count("Settle"))
	})
}

// Nothing waits for a write that waits for more: neither objects for room among those in flight, nor a full batch.
func TestWhoWaitsForAWriteHurriesIt(t *testing.T) {
	t.Parallel()
	t.Run("objects", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			o, db := testOwner(t, calls(nil), nil)
			o.startSettler(t)
			o.settleDone(t, o.fly(t, "first"))
			synctest.Wait()
			require.Equal(t, 1, db.count("Settle"))
			l := o.fly(t, "in flight")
			o.queue.SetWindow(1)
			add(t, o.queue, liveItem("waiting"))
			o.settleDone(t, l)
			synctest.Wait()
			require.Equal(t, 1, db.count("Settle"), "nobody has asked for it")
			require.Empty(t, tryTake(o.queue, 1))
			synctest.Wait()
			require.Equal(t, 2, db.count("Settle"))
			require.Len(t, tryTake(o.queue, 1), 1)
		})
	})
	t.Run("a full batch", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			o, _ := testOwner(t, calls(nil), nil)
			o.startSettler(t)
			o.settleDone(t, o.fly(t, "first"))
			synctest.Wait()
			began := time.Now()
			for i := range settleRows + 2 {
				o.settleDone(t, o.fly(t, fmt.Sprint(i)))
			}
			require.Zero(t, time.Since(began), "nobody has waited for the clock")
		})
	})
}

// While the target is down nothing settles soon: the cursor stays, and the outbox is the buffer.
func TestNothingIsRecordedAsInHandWhileTheCircuitIsOpen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o, db := testOwner(t, calls(nil), nil)
		o.settler.tracker.close(o.settler.tracker.mustOpen(t, 1, "slow"))
		for !o.breaker.IsOpen() {
			o.circuit.failed(t.Context(), o.breaker.Unreached, errors.New("refused"))
		}
		o.startSettler(t)
		elapse(time.Minute)
		require.Zero(t, db.count("LedgerInHand"))
		o.circuit.answered(t.Context())
		elapse(time.Second)
		require.Equal(t, 1, db.count("LedgerInHand"))
	})
}

// The cursor moves soon after a page without objects for this target, and with the results of one that had some.
func TestCursorIsWrittenWithResultsOrSoonAfter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o, db := testOwner(t, calls(nil), nil)
		o.startSettler(t)
		elapse(time.Hour)
		require.Zero(t, db.count("Settle"))

		o.settler.tracker.close(o.settler.tracker.mustOpen(t, 1))
		elapse(cursorDelay)
		require.Equal(t, 1, db.count("Settle"))

		page := o.settler.tracker.mustOpen(t, 2, "a")
		o.settler.tracker.close(page)
		elapse(time.Second)
		require.Equal(t, 1, db.count("Settle"))
		o.settleDone(t, o.fly(t, "a", page))
		synctest.Wait()
		require.Equal(t, 2, db.count("Settle"))
		_, moved := o.settler.tracker.take()
		require.False(t, moved, "it went with the result")
		elapse(time.Hour)
		require.Equal(t, 2, db.count("Settle"))
	})
}

// While changes follow each other the cursor is written a few times a second: the first move at once, the last soon after it,
// and what is left when the owner ends.
func TestF94_CursorIsWrittenAFewTimesASecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o, db := testOwner(t, calls(nil), nil)
		ended := o.startSettler(t)
		elapse(time.Hour)
		for revision := range int64(100) {
			o.settler.tracker.close(o.settler.tracker.mustOpen(t, revision+1))
			elapse(10 * time.Millisecond)
		}
		require.GreaterOrEqual(t, db.count("Settle"), 4)
		require.LessOrEqual(t, db.count("Settle"), 6)
		elapse(cursorEvery + cursorDelay)
		written := db.count("Settle")
		_, moved := o.settler.tracker.take()
		require.False(t, moved, "the last move is written")

		for revision := range int64(2) {
			o.settler.tracker.close(o.settler.tracker.mustOpen(t, revision+101))
			elapse(cursorDelay)
		}
		require.Equal(t, written+1, db.count("Settle"), "the second one waits")
		o.queue.Stop()
		close(o.settler.settled)
		require.NoError(t, <-ended)
		require.Equal(t, written+2, db.count("Settle"), "it waits for nothing at the end")
	})
}

// Objects that are recorded as in hand count when their results say that the target has them, once.
func TestObjectsInHandAreCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o, _ := testOwner(t, calls(nil), nil)
		page := o.settler.tracker.mustOpen(t, 1, "a", "b")
		o.settler.tracker.close(page)
		a, b := o.fly(t, "a", page), o.fly(t, "b", page)
		o.startSettler(t)
		elapse(patience + time.Second)
		_, objects := o.guard.Decide(0, 0)
		require.Zero(t, objects)

		o.settleDone(t, a)
		require.NoError(t, o.settler.settle(t.Context(), b, &record{gone: true}))
		c := o.fly(t, "c")
		o.settleDone(t, c)
		elapse(settleEvery)
		_, objects = o.guard.Decide(0, 0)
		require.EqualValues(t, 2, objects, "a and c")
	})
}

// An object that was recorded as in hand after it was read, and about which there is nothing to record, has a row now that
// says more than there is. It is looked at once more, once.
func TestObjectInHandWithNothingToRecordIsLookedAtAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o, _ := testOwner(t, calls(nil), nil)
		page := o.settler.tracker.mustOpen(t, 1, "a")
		o.settler.tracker.close(page)
		a := o.fly(t, "a", page)
		o.startSettler(t)
		elapse(patience + time.Second)
		require.NoError(t, o.settler.settle(t.Context(), a, nil))
		synctest.Wait()
		again := tryTake(o.queue, throttle.WindowMost)
		require.Len(t, again, 1)
		require.Equal(t, a.item.ObjectID, again[0].ObjectID)
		require.NoError(t, o.settler.settle(t.Context(), look{resource: &desired.Resource{}, item: again[0]}, nil))
		synctest.Wait()
		require.Empty(t, tryTake(o.queue, throttle.WindowMost))
	})
}

// C26: the retries learn of an object that failed when it is recorded.
func TestFailureSetsTheAlarm(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o, _ := testOwner(t, calls(nil), nil)
		o.startSettler(t)
		fail := func(key string, after time.Duration) {
			l := o.fly(t, key)
			elapse(settleEvery) // so that it is written at once
			require.NoError(t, o.settler.settle(t.Context(), l, l.outcome(actApply, driver.RetryAfter(after, errors.New("no")), testBackoff)))
			synctest.Wait()
		}
		o.settleDone(t, o.fly(t, "good"))
		synctest.Wait()
		require.Empty(t, o.retrier.alarm.changed)
		about := func(after time.Duration) {
			t.Helper()
			require.InEpsilon(t, float64(after)*(1+jitter/2), float64(o.retrier.alarm.remaining()), jitter)
		}
		fail("late", time.Hour)
		require.Len(t, o.retrier.alarm.changed, 1)
		about(time.Hour)
		fail("soon", time.Minute)
		about(time.Minute)
		fail("later", 10*time.Minute)
		about(time.Minute)
		o.retrier.alarm.clear()
		fail("next", 30*time.Minute)
		about(30 * time.Minute)
	})
}

// What cannot be recorded ends the owner: it starts again from what the database says.
func TestRefusedResultEndsTheSettler(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o, db := testOwner(t, calls(nil), nil)
		refused := errors.New("term is over")
		db.answer = func(query string) error {
			if query == "Settle" {
				return refused
			}
			return nil
		}
		ended := o.startSettler(t)
		o.settleDone(t, o.fly(t, "a"))
		err := <-ended
		require.ErrorIs(t, err, refused)
		require.EqualError(t, err, "record results of target eu: term is over")
	})
}

func TestSettlerWritesWhatIsLeftWhenItsInputEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o, db := testOwner(t, calls(nil), nil)
		page := o.settler.tracker.mustOpen(t, 3, "a")
		o.settler.tracker.close(page)
		l := o.fly(t, "a", page)
		o.settleDone(t, l)
		o.queue.Stop()
		close(o.settler.settled)
		ended := o.startSettler(t)
		require.NoError(t, <-ended)
		require.Equal(t, 1, db.count("Settle"))
		require.Equal(t, at(3), o.settler.tracker.reach)
	})
}
