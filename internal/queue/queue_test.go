package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

const (
	windowMost = 1000
	specMost   = 1 << 20
)

type item = Item[cargo]

// cargo is a payload that tells tallies what becomes of it.
type cargo struct{ tallies []*tally }

func (c *cargo) Merge(other *cargo) { c.tallies = append(c.tallies, other.tallies...) }

func (c *cargo) Cut() {
	for _, one := range c.tallies {
		one.done(false)
	}
	c.tallies = nil
}

// tally counts objects that are not settled.
type tally struct {
	pending int
	cut     bool
}

func (r *tally) add() { r.pending++ }

func (r *tally) done(settled bool) {
	r.pending--
	r.cut = r.cut || !settled
}

func object(key string) ObjectID { return ObjectID{ResourceID: 1, Key: key} }

func liveItem(key string) *item { return &item{ObjectID: object(key), Lane: LaneLive} }
func syncItem(key string) *item { return &item{ObjectID: object(key), Lane: LaneSync} }

// add pushes without waiting, and fails when it would have to wait.
func (q *Queue[P, M]) add(t require.TestingT, items ...*Item[P]) {
	for _, it := range items {
		room, err := q.TryPush(it)
		require.NoError(t, err)
		require.Nil(t, room, "the lane is full")
	}
}

func keysOf(items []*item) []string {
	keys := make([]string, len(items))
	for i, it := range items {
		keys[i] = it.Key
	}
	return keys
}

func TestQueueHoldsEachObjectOnce(t *testing.T) {
	t.Parallel()
	q := New[cargo](10, nil)
	first, second, third := &tally{}, &tally{}, &tally{}
	q.add(t,
		&item{ObjectID: object("a"), Revision: 3, Payload: cargo{[]*tally{first}}},
		&item{ObjectID: object("a"), Revision: 5, Force: true, Payload: cargo{[]*tally{second}}},
		&item{ObjectID: object("a"), Lane: LaneSync, Payload: cargo{[]*tally{third}}},
	)
	items := q.tryTake(10)
	require.Equal(t, []*item{{
		ObjectID: object("a"), Revision: 5, Force: true, Payload: cargo{[]*tally{first, second, third}}, calling: true,
	}}, items)
	require.Empty(t, q.tryTake(10))
}

// A live change that joins a sync's object is counted in the lag, and of two changes the older.
func TestF87_LagCountsALiveChangeThatJoinsASyncsObject(t *testing.T) {
	t.Parallel()
	at := time.Unix(1_000_000, 0)
	since := func(second int) time.Time { return at.Add(time.Duration(second) * time.Second) }
	for name, c := range map[string]struct{ first, second, want time.Time }{
		"LiveJoinsSync": {time.Time{}, since(5), since(5)},
		"SyncJoinsLive": {since(5), time.Time{}, since(5)},
		"NewerJoins":    {since(5), since(7), since(5)},
		"OlderJoins":    {since(7), since(5), since(5)},
		"NoChange":      {time.Time{}, time.Time{}, time.Time{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := New[cargo](10, nil)
			q.add(t, &item{ObjectID: object("a"), Since: c.first}, &item{ObjectID: object("a"), Since: c.second})
			require.Equal(t, c.want, q.tryTake(10)[0].Since)
		})
	}
}

// C22, C32, I3: what comes for an object in flight waits for its end, and is one further look whatever its number.
func TestObjectInFlightIsNotTakenAgain(t *testing.T) {
	t.Parallel()
	q := New[cargo](10, nil)
	q.add(t, liveItem("a"))
	first := q.tryTake(10)
	for revision := range int64(5) {
		q.add(t, &item{ObjectID: object("a"), Revision: revision})
	}
	require.Empty(t, q.tryTake(10))
	q.Done(first[0])
	second := q.tryTake(10)
	require.Equal(t, []string{"a"}, keysOf(second))
	require.EqualValues(t, 4, second[0].Revision)
	q.Done(second[0])
	require.Empty(t, q.tryTake(10))
}

// What is being deleted has passed the guard: it is not counted again.
func TestObjectsWhoseDeleteIsInFlightAreNotDeletedAgain(t *testing.T) {
	t.Parallel()
	q := New[cargo](10, nil)
	q.add(t, liveItem("a"), liveItem("b"), liveItem("c"))
	items := q.tryTake(10)
	q.Works(items[0], true, 0)
	q.Works(items[1], false, 0)
	all := []*item{liveItem("a"), liveItem("b"), liveItem("c"), liveItem("d")}
	require.Equal(t, []string{"b", "c", "d"}, keysOf(q.NotDeleted(all)))
	q.Done(items[0])
	require.Equal(t, []string{"a", "b", "c", "d"}, keysOf(q.NotDeleted(all)))
	q.add(t, liveItem("a"))
	items = q.tryTake(10)
	q.Works(items[0], true, 0)
	q.PutBack(items[0])
	q.tryTake(10)
	require.Equal(t, []string{"a", "b", "c", "d"}, keysOf(q.NotDeleted(all)), "it was put back, and is looked at again")
}

// An object that is due is not asked for while it is being called: the result says when it is due next.
func TestWhatIsDueAddsNothingToAFlight(t *testing.T) {
	t.Parallel()
	q := New[cargo](10, nil)
	q.add(t, syncItem("a"))
	items := q.tryTake(10)
	q.add(t, &item{ObjectID: object("a"), Lane: LaneSync, Due: true})
	q.Done(items[0])
	require.Empty(t, q.tryTake(10))
}

// An object that is due, and for which something else asks as well, is not only due.
func TestWhatIsDueAndChangesHasChanged(t *testing.T) {
	t.Parallel()
	due := func(key string) *item { return &item{ObjectID: object(key), Lane: LaneSync, Due: true} }
	q := New[cargo](10, nil)
	q.add(t, due("a"), due("a"), due("b"), syncItem("b"), syncItem("c"), due("c"))
	items := q.tryTake(10)
	require.Equal(t, []string{"a", "b", "c"}, keysOf(items))
	require.Equal(t, []bool{true, false, false}, []bool{items[0].Due, items[1].Due, items[2].Due})
}

func TestLiveChangeTakesItsObjectOutOfTheSyncLane(t *testing.T) {
	t.Parallel()
	q := New[cargo](1, nil)
	q.add(t, syncItem("a"), syncItem("b"), syncItem("c"), liveItem("b"))
	live, sync, flying := q.Depth()
	require.Equal(t, []int{1, 2, 0}, []int{live, sync, flying})
	var order []string
	for range 3 {
		items := q.tryTake(1)
		order = append(order, keysOf(items)...)
		q.Done(items[0])
	}
	require.Equal(t, []string{"b", "a", "c"}, order)
}

// A change that came by the sync lane does not push a live one back.
func TestSyncLeavesALiveObjectWhereItIs(t *testing.T) {
	t.Parallel()
	q := New[cargo](10, nil)
	q.add(t, liveItem("a"), syncItem("a"))
	live, sync, _ := q.Depth()
	require.Equal(t, []int{1, 0}, []int{live, sync})
	require.Equal(t, LaneLive, q.tryTake(1)[0].Lane)
}

// I11: each lane has a share that the other never takes.
func TestLanesHaveTheirShares(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		window, live, sync int
		takenLive          int
		takenSync          int
	}{
		{window: 8, live: 100, sync: 0, takenLive: 8, takenSync: 0},
		{window: 8, live: 0, sync: 100, takenLive: 0, takenSync: 6},
		{window: 8, live: 100, sync: 100, takenLive: 6, takenSync: 2},
		{window: 8, live: 3, sync: 100, takenLive: 3, takenSync: 5},
		{window: 8, live: 7, sync: 1, takenLive: 6, takenSync: 1},
		{window: 4, live: 100, sync: 100, takenLive: 3, takenSync: 1},
		{window: 3, live: 100, sync: 100, takenLive: 2, takenSync: 1},
		{window: 2, live: 100, sync: 100, takenLive: 1, takenSync: 1},
		{window: 2, live: 0, sync: 100, takenLive: 0, takenSync: 1},
		{window: 1, live: 100, sync: 100, takenLive: 1, takenSync: 0},
		{window: 1, live: 0, sync: 100, takenLive: 0, takenSync: 1},
	} {
		t.Run(fmt.Sprintf("Window%dLive%dSync%d", c.window, c.live, c.sync), func(t *testing.T) {
			t.Parallel()
			q := New[cargo](c.window, nil)
			for i := range c.live {
				q.add(t, liveItem(fmt.Sprintf("live %d", i)))
			}
			for i := range c.sync {
				q.add(t, syncItem(fmt.Sprintf("sync %d", i)))
			}
			q.tryTake(1000)
			require.Equal(t, [2]int{c.takenLive, c.takenSync}, q.inFlight)
		})
	}
}

// What is taken together is read together, and a live change that comes meanwhile waits for that. While some come, a sync has
// little in flight.
func TestLittleOfASyncIsTakenAtOnce(t *testing.T) {
	t.Parallel()
	q := New[cargo](windowMost, nil)
	for i := range 3 * windowMost {
		q.add(t, syncItem(fmt.Sprint(i)))
	}
	first := q.tryTake(windowMost)
	require.Len(t, first, windowMost*3/4, "a quarter is kept for live changes")
	require.Empty(t, q.tryTake(windowMost))
	q.add(t, liveItem("live"))
	require.Equal(t, []string{"live"}, keysOf(q.tryTake(windowMost)))
	for _, it := range first {
		q.Done(it)
	}
	second := q.tryTake(windowMost)
	require.Len(t, second, syncMost)
	require.Empty(t, q.tryTake(windowMost))
	for _, it := range second {
		q.Looked(it, false, 0)
	}
	require.Len(t, q.tryTake(windowMost), syncMost, "also of those that hardly ever need a call")
	q.lived = q.lived.Add(-liveFor) // that long ago
	require.Greater(t, len(q.tryTake(windowMost)), syncMost)
}

func TestWindowOfOneTakesThreeLiveObjectsForOneOfTheSync(t *testing.T) {
	t.Parallel()
	q := New[cargo](1, nil)
	for i := range 10 {
		q.add(t, liveItem(fmt.Sprintf("l%d", i)), syncItem(fmt.Sprintf("s%d", i)))
	}
	var order []string
	for range 8 {
		items := q.tryTake(10)
		require.Len(t, items, 1)
		order = append(order, items[0].Key)
		q.Done(items[0])
	}
	require.Equal(t, []string{"l0", "l1", "l2", "s0", "l3", "l4", "l5", "s1"}, order)
}

func TestWhatWasPutBackComesFirst(t *testing.T) {
	t.Parallel()
	q := New[cargo](1, nil)
	q.add(t, liveItem("a"), liveItem("b"))
	items := q.tryTake(1)
	q.add(t, &item{ObjectID: object("a"), Revision: 7})
	q.PutBack(items[0])
	again := q.tryTake(1)
	require.Equal(t, []string{"a"}, keysOf(again))
	require.EqualValues(t, 7, again[0].Revision)
	q.Done(again[0])
	require.Equal(t, []string{"b"}, keysOf(q.tryTake(1)))
}

func TestWhatIsPutLastComesAfterWhatWaits(t *testing.T) {
	t.Parallel()
	q := New[cargo](1, nil)
	q.add(t, liveItem("a"), liveItem("b"))
	items := q.tryTake(1)
	q.add(t, &item{ObjectID: object("a"), Revision: 7})
	q.PutLast(items[0])
	first := q.tryTake(1)
	require.Equal(t, []string{"b"}, keysOf(first))
	q.Done(first[0])
	again := q.tryTake(1)
	require.Equal(t, []string{"a"}, keysOf(again))
	require.EqualValues(t, 7, again[0].Revision)
}

// A sync's object that a live change came for during its flight is put back as a live one.
func TestWhatIsPutBackChangesItsLaneWithWhatCame(t *testing.T) {
	t.Parallel()
	q := New[cargo](4, nil)
	q.add(t, syncItem("a"))
	items := q.tryTake(1)
	q.add(t, liveItem("a"))
	q.PutBack(items[0])
	live, sync, flying := q.Depth()
	require.Equal(t, []int{1, 0, 0}, []int{live, sync, flying})
	require.Equal(t, [2]int{}, q.inFlight)
}

// I9: a full lane makes its source wait; what merges needs no room; promotions do not go past the bound.
func TestFullLaneMakesItsSourceWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := New[cargo](4, nil)
		for i := range queueRows {
			q.add(t, liveItem(fmt.Sprint(i)))
		}
		q.add(t, syncItem("waits"), liveItem("0"))

		pushed := make(chan string, 2)
		for _, key := range []string{"new", "waits"} {
			go func() {
				if err := q.Push(t.Context(), liveItem(key)); err == nil {
					pushed <- key
				}
			}()
		}
		synctest.Wait()
		require.Empty(t, pushed)
		live, sync, _ := q.Depth()
		require.Equal(t, []int{queueRows, 1}, []int{live, sync})

		require.Len(t, q.tryTake(1), 1)
		synctest.Wait()
		require.Len(t, pushed, 1, "one place was made, one is taken")
		require.Len(t, q.tryTake(1), 1)
		synctest.Wait()
		require.Len(t, pushed, 2)
		live, sync, _ = q.Depth()
		require.Equal(t, []int{queueRows, 0}, []int{live, sync})
	})
}

func TestPushAndTakeEndWithTheirContext(t *testing.T) {
	t.Parallel()
	why := errors.New("why")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	q := New[cargo](1, nil)
	_, err := q.Take(ctx, 1)
	require.ErrorIs(t, err, why)
	for i := range queueRows {
		q.add(t, liveItem(fmt.Sprint(i)))
	}
	require.ErrorIs(t, q.Push(ctx, liveItem("one more")), why)
}

func TestStoppedQueueTakesAndGivesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := New[cargo](1, nil)
		for i := range queueRows {
			q.add(t, liveItem(fmt.Sprint(i)))
		}
		waits := make(chan error, 1)
		go func() { waits <- q.Push(t.Context(), liveItem("one more")) }()
		synctest.Wait()
		q.Stop()
		require.ErrorIs(t, <-waits, ErrStopped)
		require.ErrorIs(t, q.Push(t.Context(), liveItem("0")), ErrStopped)
		require.Empty(t, q.tryTake(1))
	})
}

func TestPausedQueueGivesOneProbeAtATime(t *testing.T) {
	t.Parallel()
	q := New[cargo](10, nil)
	q.add(t, syncItem("s"), liveItem("a"), liveItem("b"))
	q.SetPaused(true)
	require.Empty(t, q.tryTake(10))
	q.AllowProbe()
	probe := q.tryTake(10)
	require.Equal(t, []string{"a"}, keysOf(probe))
	require.Empty(t, q.tryTake(10))
	q.AllowProbe()
	require.Empty(t, q.tryTake(10), "a probe is on its way")
	q.Done(probe[0])
	require.Equal(t, []string{"b"}, keysOf(q.tryTake(10)))
	q.SetPaused(false)
	require.Equal(t, []string{"s"}, keysOf(q.tryTake(10)))
}

// checkQueue compares everything that the queue counts with what it holds.
func checkQueue(t require.TestingT, q *Queue[cargo, *cargo]) {
	for lane := range q.lanes {
		held := slices.DeleteFunc(slices.Clone(q.lanes[lane]), func(it *item) bool { return it == nil })
		require.Len(t, held, q.size[lane])
		for _, it := range held {
			require.Same(t, it, q.waiting[it.ObjectID])
			require.Equal(t, Lane(lane), it.Lane)
			require.NotContains(t, q.flying, it.ObjectID)
		}
	}
	require.Len(t, q.waiting, q.size[0]+q.size[1])
	inFlight := [2]int{}
	for id, f := range q.flying {
		require.Equal(t, id, f.item.ObjectID)
		require.True(t, f.item.calling)
		inFlight[f.item.Lane]++
	}
	for id := range q.resting {
		require.NotContains(t, q.flying, id)
		require.NotContains(t, q.waiting, id)
	}
	require.Equal(t, inFlight, q.inFlight)
	require.LessOrEqual(t, inFlight[0]+inFlight[1], q.window)
}

// Whatever happens to an item (taken, merged, put back, promoted, abandoned), its run hears of it exactly once.
func TestEveryItemOfARunEndsOnce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		q := New[cargo](rapid.IntRange(1, 6).Draw(t, "window"), nil)
		run := &tally{}
		var flying []*item
		asked, settled := 0, 0
		land := func(t *rapid.T) *item {
			if len(flying) == 0 {
				return nil
			}
			i := rapid.IntRange(0, len(flying)-1).Draw(t, "which")
			it := flying[i]
			flying = slices.Delete(flying, i, i+1)
			return it
		}
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				it := &item{ObjectID: object(rapid.StringOfN(rapid.RuneFrom([]rune("abcdef")), 1, 1, 1).Draw(t, "key"))}
				it.Lane = rapid.SampledFrom([]Lane{LaneLive, LaneSync}).Draw(t, "lane")
				if rapid.Bool().Draw(t, "counted") {
					asked++
					run.add()
					it.Payload.tallies = []*tally{run}
				}
				q.add(t, it)
			},
			"take": func(t *rapid.T) { flying = append(flying, q.tryTake(rapid.IntRange(1, 6).Draw(t, "most"))...) },
			"settle": func(t *rapid.T) {
				it := land(t)
				if it == nil {
					return
				}
				q.Done(it)
				for _, r := range it.Payload.tallies {
					settled++
					r.done(true)
				}
			},
			"put back": func(t *rapid.T) {
				if it := land(t); it != nil {
					q.PutBack(it)
				}
			},
			"rest": func(t *rapid.T) {
				if it := land(t); it != nil {
					require.True(t, q.Rest(it))
				}
			},
			"wake": func(t *rapid.T) {
				key := rapid.StringOfN(rapid.RuneFrom([]rune("abcdef")), 1, 1, 1).Draw(t, "above")
				q.Wake(1, func(other string) bool { return other > key })
			},
			"": func(t *rapid.T) {
				checkQueue(t, q)
				require.Equal(t, asked-settled, run.pending)
			},
		})
		q.Stop()
		q.Abandon()
		require.Zero(t, run.pending)
		require.Equal(t, asked > settled, run.cut)
		live, sync, inFlight := q.Depth()
		require.Equal(t, []int{0, 0, 0}, []int{live, sync, inFlight})
	})
}
