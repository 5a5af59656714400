package apply

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/desired"
	"github.com/pgreconciler/reconciler/internal/driver"
)

func never(string) bool  { return false }
func always(string) bool { return true }

// What rests is neither in flight nor in a lane: others are taken meanwhile, however much rests. It comes back with what came for it.
func TestF79_WhatRestsKeepsNobodyWaiting(t *testing.T) {
	t.Parallel()
	q := newQueue(1)
	for i := range restRows {
		q.add(t, liveItem(fmt.Sprint(i)))
		require.True(t, q.rest(q.tryTake(1)[0]))
	}
	require.Equal(t, [2]int{}, q.inFlight)
	live, sync, flying := q.depth()
	require.Equal(t, []int{0, 0, 0}, []int{live, sync, flying})
	require.NotNil(t, q.rests)

	q.add(t, liveItem("other"))
	other := q.tryTake(1)
	require.Equal(t, []string{"other"}, keysOf(other))
	require.False(t, q.rest(other[0]), "it would be one too many")
	q.done(other[0])

	q.add(t, &Item{ObjectID: object("7"), Revision: 9, Force: true})
	require.Empty(t, q.tryTake(1), "it rests")
	require.Equal(t, map[int32]bool{1: true}, q.restingResources())
	require.Zero(t, q.wake(2, never))
	require.Zero(t, q.wake(1, always))
	require.Equal(t, 1, q.wake(1, func(key string) bool { return key != "7" }))
	seven := q.tryTake(2)
	require.Equal(t, []string{"7"}, keysOf(seven))
	require.EqualValues(t, 9, seven[0].Revision)
	require.True(t, seven[0].Force)
	require.Equal(t, restRows-1, q.wake(1, never), "also when the lane has no room for others then")
	require.Empty(t, q.restingResources())
}

// What comes for an object before it rests joins it, and it moves to the lane of what came.
func TestWhatCameForAnObjectRestsWithIt(t *testing.T) {
	t.Parallel()
	q := newQueue(1)
	q.add(t, syncItem("a"))
	a := q.tryTake(1)[0]
	q.add(t, liveItem("a"))
	require.True(t, q.rest(a))
	require.Equal(t, 1, q.wake(1, never))
	live, sync, flying := q.depth()
	require.Equal(t, []int{1, 0, 0}, []int{live, sync, flying})
}

// While a circuit is open, objects that need no call are taken one after the other in search of a probe: who waits for room
// in the lane must hear of each.
func TestF82_ProbesMakeRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(1)
		for i := range queueRows {
			q.add(t, syncItem(fmt.Sprint(i)))
		}
		pushed := make(chan error, 1)
		go func() { pushed <- q.push(t.Context(), syncItem("one more")) }()
		synctest.Wait()
		require.Empty(t, pushed)
		q.setPaused(true)
		q.allowProbe()
		q.done(q.tryTake(1)[0])
		synctest.Wait()
		select {
		case err := <-pushed:
			require.NoError(t, err)
		default:
			require.Fail(t, "it still waits for room")
			q.stop()
		}
	})
}

// The probe is called also while other objects rest or are on their way to the ledger.
func TestF83_ProbesAreCalledWhileObjectsRest(t *testing.T) {
	t.Parallel()
	var called []string
	o, _ := testOwner(t, calls(func(_ context.Context, ref driver.Ref) driver.Outcome {
		called = append(called, ref.Key)
		return driver.Done()
	}), nil)
	o.queue.setWindow(10)
	o.queue.add(t, liveItem("resting"), liveItem("recorded"), liveItem("called before"), liveItem("probe"))
	items := o.queue.tryTake(3)
	require.True(t, o.queue.rest(items[0]))
	o.queue.looked(items[1], false, 0)
	for !o.breaker.IsOpen() {
		o.circuit.failed(t.Context(), o.breaker.Unreached, errors.New("refused"))
	}
	o.caller.callGroup(t.Context(), []look{o.dispatcher.look(&desired.Resource{}, items[2], wantedRow(), 1, steering{})})
	require.Empty(t, called, "it is no probe")
	o.queue.allowProbe()
	probe := o.queue.tryTake(10)
	require.Equal(t, []string{"called before"}, keysOf(probe))
	o.caller.callGroup(t.Context(), []look{o.dispatcher.look(&desired.Resource{}, probe[0], wantedRow(), 1, steering{})})
	require.Equal(t, []string{"called before"}, called)
	require.False(t, o.breaker.IsOpen())
}
