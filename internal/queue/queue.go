package queue

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/pgreconciler/reconciler/internal/budget"
)

// queueRows bounds each lane.
const queueRows = 8192

// ErrStopped says that an object was not taken any more, or will not be settled.
var ErrStopped = errors.New("the owner stopped before every object was settled")

// Queue holds each object at most once: waiting in a lane, in flight, or resting. A change during its flight runs it once more.
// P is the payload of an item, and M follows from it: queue.New[payload](window).
type Queue[P any, M Payload[P]] struct {
	Crowded chan struct{} // receives a value when objects wait until others have landed
	Rests   chan struct{} // receives a value when an object rests

	mu       sync.Mutex    // guards what follows
	lanes    [2][]*Item[P] // waiting, oldest first; promoted items leave a nil behind
	size     [2]int
	waiting  map[ObjectID]*Item[P]
	flying   map[ObjectID]*flight[P]
	inFlight [2]int                // that wait for a call or its result
	share    [2]float64            // of the objects looked at, how many needed a call: a moving average
	resting  map[ObjectID]*Item[P] // taken, and put aside until Wake: they take no room in a lane or in the window
	lived    time.Time             // when a live change waited last
	window   int                   // most calls in flight
	memory   *budget.Share         // for the specs of calls in flight
	stopped  bool                  // nothing is taken any more
	paused   bool                  // circuit open: only probes are taken
	probe    bool                  // one probe may be taken
	turn     int                   // takes turns when the window is one
	room     chan struct{}         // closed and replaced when something was taken
	ready    chan struct{}
}

// flight is an object that was taken and is not settled.
type flight[P any] struct {
	item *Item[P]
	next *Item[P] // the requests for it that arrived during the flight; nil: none
}

// New returns an empty queue that lets so many calls be in flight, with specs that memory has room for; nil: any.
func New[P any, M Payload[P]](window int, memory *budget.Shares) *Queue[P, M] {
	q := &Queue[P, M]{
		waiting: map[ObjectID]*Item[P]{}, flying: map[ObjectID]*flight[P]{}, resting: map[ObjectID]*Item[P]{},
		window: window, share: [2]float64{1, 1},
		room: make(chan struct{}), ready: make(chan struct{}, 1), Crowded: make(chan struct{}, 1), Rests: make(chan struct{}, 1),
	}
	q.memory = memory.Share(func() { signal(q.ready) })
	return q
}

// Push adds an object, waiting while its lane is full. An object that is there already is merged and takes no room.
// After Stop it fails with ErrStopped.
func (q *Queue[P, M]) Push(ctx context.Context, it *Item[P]) error {
	for {
		room, err := q.TryPush(it)
		if err != nil || room == nil {
			return err
		}
		select {
		case <-room:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// TryPush adds an object as Push does, but does not wait: when the lane is full, it returns a channel that is closed when
// something was taken.
func (q *Queue[P, M]) TryPush(it *Item[P]) (room <-chan struct{}, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.stopped {
		return nil, ErrStopped
	}
	if f, ok := q.flying[it.ObjectID]; ok {
		switch {
		case it.Due:
		case f.next == nil:
			f.next = it
		default:
			q.merge(f.next, it)
		}
		return nil, nil
	}
	if old, ok := q.resting[it.ObjectID]; ok {
		q.merge(old, it)
		return nil, nil
	}
	old, ok := q.waiting[it.ObjectID]
	if (!ok || it.Lane < old.Lane) && q.size[it.Lane] >= queueRows {
		return q.room, nil
	}
	switch {
	case !ok:
		q.appendLocked(it)
	case it.Lane < old.Lane:
		q.promoteLocked(old)
		fallthrough
	default:
		q.merge(old, it)
	}
	return nil, nil
}

func (q *Queue[P, M]) appendLocked(it *Item[P]) {
	q.waiting[it.ObjectID] = it
	q.lanes[it.Lane] = append(q.lanes[it.Lane], it)
	q.size[it.Lane]++
	signal(q.ready)
}

// promoteLocked moves an object that waits on the sync lane to the live lane.
func (q *Queue[P, M]) promoteLocked(it *Item[P]) {
	q.lanes[LaneSync][slices.Index(q.lanes[LaneSync], it)] = nil
	q.size[LaneSync]--
	it.Lane = LaneLive
	q.lanes[LaneLive] = append(q.lanes[LaneLive], it)
	q.size[LaneLive]++
	signal(q.ready)
}

// SetWindow sets how many calls may be in flight.
func (q *Queue[P, M]) SetWindow(n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.window = n
	signal(q.ready)
}

// SetPaused stops the taking, but for probes.
func (q *Queue[P, M]) SetPaused(paused bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.paused, q.probe = paused, false
	signal(q.ready)
}

// AllowProbe lets one object through while paused.
func (q *Queue[P, M]) AllowProbe() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.probe = true
	signal(q.ready)
}

// Stop ends taking and pushing for good.
func (q *Queue[P, M]) Stop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.stopped = true
	close(q.room) // whoever waits for room must hear of it
	q.room = make(chan struct{})
}

// IsStopped reports whether Stop was called.
func (q *Queue[P, M]) IsStopped() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.stopped
}

// Abandon empties the queue, for when nobody works on it any more. Payloads of what was left are Cut.
func (q *Queue[P, M]) Abandon() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, it := range q.waiting {
		M(&it.Payload).Cut()
	}
	for _, f := range q.flying {
		M(&f.item.Payload).Cut()
		if f.next != nil {
			M(&f.next.Payload).Cut()
		}
	}
	for _, it := range q.resting {
		M(&it.Payload).Cut()
	}
	clear(q.waiting)
	clear(q.flying)
	clear(q.resting)
	q.lanes, q.size, q.inFlight = [2][]*Item[P]{}, [2]int{}, [2]int{}
	q.memory.Close()
}

// Depth returns how many objects wait on each lane and how many are in flight. What rests is neither.
func (q *Queue[P, M]) Depth() (live, sync, flying int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.size[LaneLive], q.size[LaneSync], len(q.flying)
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
