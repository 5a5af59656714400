package queue

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

func never(string) bool  { return false }
func always(string) bool { return true }

// What rests is neither in flight nor in a lane: others are taken meanwhile, however much rests. It comes back with what came for it.
func TestF79_WhatRestsKeepsNobodyWaiting(t *testing.T) {
	t.Parallel()
	q := New[cargo](1, nil)
	for i := range restRows {
		q.add(t, liveItem(fmt.Sprint(i)))
		require.True(t, q.Rest(q.tryTake(1)[0]))
	}
	require.Equal(t, [2]int{}, q.inFlight)
	live, sync, flying := q.Depth()
	require.Equal(t, []int{0, 0, 0}, []int{live, sync, flying})
	require.NotNil(t, q.Rests)

	q.add(t, liveItem("other"))
	other := q.tryTake(1)
	require.Equal(t, []string{"other"}, keysOf(other))
	require.False(t, q.Rest(other[0]), "it would be one too many")
	q.Done(other[0])

	q.add(t, &item{ObjectID: object("7"), Revision: 9, Force: true})
	require.Empty(t, q.tryTake(1), "it rests")
	require.Equal(t, map[int32]bool{1: true}, q.RestingResources())
	require.Zero(t, q.Wake(2, never))
	require.Zero(t, q.Wake(1, always))
	require.Equal(t, 1, q.Wake(1, func(key string) bool { return key != "7" }))
	seven := q.tryTake(2)
	require.Equal(t, []string{"7"}, keysOf(seven))
	require.EqualValues(t, 9, seven[0].Revision)
	require.True(t, seven[0].Force)
	require.Equal(t, restRows-1, q.Wake(1, never), "also when the lane has no room for others then")
	require.Empty(t, q.RestingResources())
}

// What comes for an object before it rests joins it, and it moves to the lane of what came.
func TestWhatCameForAnObjectRestsWithIt(t *testing.T) {
	t.Parallel()
	q := New[cargo](1, nil)
	q.add(t, syncItem("a"))
	a := q.tryTake(1)[0]
	q.add(t, liveItem("a"))
	require.True(t, q.Rest(a))
	require.Equal(t, 1, q.Wake(1, never))
	live, sync, flying := q.Depth()
	require.Equal(t, []int{1, 0, 0}, []int{live, sync, flying})
}

// While a circuit is open, objects that need no call are taken one after the other in search of a probe: who waits for room
// in the lane must hear of each.
func TestF82_ProbesMakeRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := New[cargo](1, nil)
		for i := range queueRows {
			q.add(t, syncItem(fmt.Sprint(i)))
		}
		pushed := make(chan error, 1)
		go func() { pushed <- q.Push(t.Context(), syncItem("one more")) }()
		synctest.Wait()
		require.Empty(t, pushed)
		q.SetPaused(true)
		q.AllowProbe()
		q.Done(q.tryTake(1)[0])
		synctest.Wait()
		select {
		case err := <-pushed:
			require.NoError(t, err)
		default:
			require.Fail(t, "it still waits for room")
			q.Stop()
		}
	})
}
