package queue

import (
	"context"
	"math"
	"time"
)

const (
	// syncMost bounds what is taken of a sync at once, for it is read at once, and what of it is in flight, for liveFor after a live
	// change: the next one waits for what is being read, and one part of the sync is read, called or recorded then, and not
	// all at once, which leaves processors to those that come next. While there are none more at once is cheaper.
	syncMost = 200
	liveFor  = time.Second
)

// sharesLocked says how many objects of each lane may be taken now. The window is one of calls: where few objects need one,
// many may be taken. A quarter of it is kept for live changes whatever a sync does; a busy live lane leaves a quarter to the
// sync. With a window of one they take turns, three to one.
func (q *Queue[P, M]) sharesLocked(most int) (live, sync int) {
	free := q.window - q.inFlight[LaneLive] - q.inFlight[LaneSync]
	if free <= 0 || q.size[LaneLive]+q.size[LaneSync] > 0 && !q.memory.Free() {
		return 0, 0
	}
	if q.window == 1 {
		if q.size[LaneSync] == 0 || q.size[LaneLive] > 0 && q.turn < 3 {
			q.turn++
			return 1, 0
		}
		q.turn = 0
		return 0, 1
	}
	kept := max(1, q.window/4)
	live = min(free, int(math.Ceil(float64(q.size[LaneLive])*q.share[LaneLive])))
	if q.size[LaneSync] > 0 {
		live = min(live, max(0, q.window-kept-q.inFlight[LaneLive]))
	}
	sync = min(free-live, max(0, q.window-kept-q.inFlight[LaneSync]))
	live = min(most, int(float64(live)/q.share[LaneLive]))
	most -= live
	if time.Since(q.lived) < liveFor {
		sync, most = min(sync, max(0, syncMost-q.inFlight[LaneSync])), min(most, syncMost)
	}
	return live, min(most, int(float64(sync)/q.share[LaneSync]))
}

// shareLeast keeps a long run of objects without a call from hiding for long that they need one again.
const shareLeast = 0.001

// Looked notes whether an object in flight needs a call, with how many bytes.
func (q *Queue[P, M]) Looked(it *Item[P], call bool, bytes int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	share := &q.share[it.Lane]
	if call {
		*share += (1 - *share) / 32
		it.bytes = bytes
		q.memory.Add(int64(bytes))
		return
	}
	*share = max(shareLeast, *share-*share/32)
	q.leaveWindowLocked(it)
}

// Borrow returns how many bytes of objects in flight may be read, at most so many. 0: none, before others have landed, here or
// for another target. Take then returns nothing before there is room. Return gives back what was borrowed.
func (q *Queue[P, M]) Borrow(most int64) int64 { return q.memory.Borrow(most) }

// Return gives bytes back. What was read of objects that are called for counts in its own right by then, see Looked.
func (q *Queue[P, M]) Return(bytes int64) { q.memory.Add(-bytes) }

// leaveWindowLocked makes room in the window for another object.
func (q *Queue[P, M]) leaveWindowLocked(it *Item[P]) {
	if it.calling {
		it.calling = false
		q.inFlight[it.Lane]--
		q.memory.Add(-int64(it.bytes))
		it.bytes = 0
	}
}

// Take returns objects to look at, waiting until there is at least one and room in the window for it.
func (q *Queue[P, M]) Take(ctx context.Context, most int) ([]*Item[P], error) {
	for {
		if items := q.tryTake(most); len(items) > 0 {
			return items, nil
		}
		select {
		case <-q.ready:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (q *Queue[P, M]) tryTake(most int) []*Item[P] {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.stopped {
		return nil
	}
	if q.paused {
		return q.takeProbeLocked()
	}
	if q.size[LaneLive] > 0 {
		q.lived = time.Now()
	}
	live, sync := q.sharesLocked(most)
	items := q.popLocked(LaneLive, live, nil)
	items = q.popLocked(LaneSync, sync, items)
	if len(items) == 0 && q.size[LaneLive]+q.size[LaneSync] > 0 {
		signal(q.Crowded)
	}
	return items
}

// takeProbeLocked takes one object while the circuit is open and a probe is due.
func (q *Queue[P, M]) takeProbeLocked() []*Item[P] {
	if !q.probe || q.inFlight[LaneLive]+q.inFlight[LaneSync] > 0 {
		return nil
	}
	items := q.popLocked(LaneLive, 1, nil)
	if len(items) == 0 {
		items = q.popLocked(LaneSync, 1, nil)
	}
	if len(items) > 0 {
		q.probe, items[0].probe = false, true
	}
	return items
}

// popLocked takes the oldest objects of a lane, at most n, and adds them to items.
func (q *Queue[P, M]) popLocked(lane Lane, n int, items []*Item[P]) []*Item[P] {
	before := len(items)
	for n > 0 && len(q.lanes[lane]) > 0 {
		it := q.lanes[lane][0]
		q.lanes[lane][0] = nil
		q.lanes[lane] = q.lanes[lane][1:]
		if it == nil {
			continue
		}
		q.size[lane]--
		n--
		delete(q.waiting, it.ObjectID)
		q.flying[it.ObjectID] = &flight[P]{item: it}
		it.calling, it.probe, it.operation = true, false, 0
		q.inFlight[lane]++
		items = append(items, it)
	}
	if len(items) > before {
		close(q.room)
		q.room = make(chan struct{})
	}
	return items
}
