package apply

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"
)

// Lane is the way by which an object came into the queue.
type Lane int

// The lanes. Live changes go first; the rest has a share that is never taken away.
const (
	LaneLive Lane = iota
	LaneSync
)

const (
	// queueRows bounds each lane.
	queueRows = 8192
)

// Item is an object to look at.
type Item struct {
	ObjectID
	Lane      Lane
	Revision  int64     // newest revision that concerns it; 0 when the sync or a retry asks
	Force     bool      // call the driver even when the hash is unchanged, or (for a Delete) the ledger knows no object
	Since     time.Time // when this process learned of the change; zero when the sync or a retry asks
	Due       bool      // its next attempt has come; adds nothing to what is in flight: that says when it is due again
	passed    bool      // the guard has let its delete pass
	firsts    []int64   // records of its first call
	uncalled  bool      // it has such records, and the call has not begun: the target has not got it, whatever the ledger says
	calling   bool      // in flight, and it may need a call: it takes room in the window
	bytes     int       // of its spec, while it is called for
	deleted   bool      // in flight for its delete
	probe     bool      // in flight as the one that an open circuit lets through
	park      string    // a delete is not called but held by this: deletes are being counted
	operation int64     // in flight as a part of it; 0: of none
	pages     []*span
	runs      []*Run
}

// merge adds what another request for the same object asks for.
func (it *Item) merge(other *Item) {
	it.Revision = max(it.Revision, other.Revision)
	it.Force = it.Force || other.Force
	it.Due = it.Due || other.Due
	// The older of two changes has waited longer; what a sync or a retry asks for has no time.
	if it.Since.IsZero() || !other.Since.IsZero() && other.Since.Before(it.Since) {
		it.Since = other.Since
	}
	if it.park == "" {
		it.park = other.park
	}
	it.pages = append(it.pages, other.pages...)
	it.runs = append(it.runs, other.runs...)
	it.Lane = min(it.Lane, other.Lane)
}

// cut tells the runs that the item will not be settled.
func (it *Item) cut() {
	for _, run := range it.runs {
		run.done(false)
	}
	it.runs = nil
}

// queue holds each object at most once: waiting in a lane, in flight, or resting. A change during its flight runs it once more.
type queue struct {
	mu       sync.Mutex // guards what follows
	lanes    [2][]*Item // waiting, oldest first; promoted items leave a nil behind
	size     [2]int
	waiting  map[ObjectID]*Item
	flying   map[ObjectID]*flight
	inFlight [2]int             // that wait for a call or its result
	share    [2]float64         // of the objects looked at, how many needed a call: a moving average
	resting  map[ObjectID]*Item // taken, and put aside until wake: they take no room in a lane or in the window
	lived    time.Time          // when a live change waited last
	window   int                // most calls in flight
	bytes    int                // of the specs of calls in flight
	stopped  bool               // nothing is taken any more
	paused   bool               // circuit open: only probes are taken
	probe    bool               // one probe may be taken
	turn     int                // takes turns when the window is one
	room     chan struct{}      // closed and replaced when something was taken
	ready    chan struct{}
	crowded  chan struct{} // receives a value when objects wait until others have landed
	rests    chan struct{} // receives a value when an object rests
}

// flight is an object that was taken and is not settled.
type flight struct {
	item *Item
	next *Item // what came for it meanwhile; nil when nothing did
}

func newQueue(window int) *queue {
	return &queue{
		waiting: map[ObjectID]*Item{}, flying: map[ObjectID]*flight{}, resting: map[ObjectID]*Item{}, window: window, share: [2]float64{1, 1},
		room: make(chan struct{}), ready: make(chan struct{}, 1), crowded: make(chan struct{}, 1), rests: make(chan struct{}, 1),
	}
}

// push adds an object, waiting while its lane is full. An object that is there already is merged and takes no room.
// After stop it fails with ErrRunCut.
func (q *queue) push(ctx context.Context, it *Item) error {
	for {
		room, err := q.tryPush(it)
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

// tryPush returns, when the lane is full, a channel that is closed when something was taken.
func (q *queue) tryPush(it *Item) (room <-chan struct{}, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.stopped {
		return nil, ErrRunCut
	}
	if f, ok := q.flying[it.ObjectID]; ok {
		switch {
		case it.Due:
		case f.next == nil:
			f.next = it
		default:
			f.next.merge(it)
		}
		return nil, nil
	}
	if old, ok := q.resting[it.ObjectID]; ok {
		old.merge(it)
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
		old.merge(it)
	}
	return nil, nil
}

func (q *queue) appendLocked(it *Item) {
	q.waiting[it.ObjectID] = it
	q.lanes[it.Lane] = append(q.lanes[it.Lane], it)
	q.size[it.Lane]++
	signal(q.ready)
}

// promoteLocked moves an object that waits on the sync lane to the live lane.
func (q *queue) promoteLocked(it *Item) {
	q.lanes[LaneSync][slices.Index(q.lanes[LaneSync], it)] = nil
	q.size[LaneSync]--
	it.Lane = LaneLive
	q.lanes[LaneLive] = append(q.lanes[LaneLive], it)
	q.size[LaneLive]++
	signal(q.ready)
}

// take returns objects to look at, waiting until there is at least one and room in the window for it.
func (q *queue) take(ctx context.Context, most int) ([]*Item, error) {
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

func (q *queue) tryTake(most int) []*Item {
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
		signal(q.crowded)
	}
	return items
}

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
func (q *queue) sharesLocked(most int) (live, sync int) {
	free := q.window - q.inFlight[LaneLive] - q.inFlight[LaneSync]
	if free <= 0 || q.bytes >= flightBytes {
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

// flightBytes is from how many bytes of specs in flight on nothing more is taken.
const flightBytes = 64 << 20

// shareLeast keeps a long run of objects without a call from hiding for long that they need one again.
const shareLeast = 0.001

// looked notes whether an object in flight needs a call, with how many bytes.
func (q *queue) looked(it *Item, call bool, bytes int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	share := &q.share[it.Lane]
	if call {
		*share += (1 - *share) / 32
		it.bytes = bytes
		q.bytes += bytes
		return
	}
	*share = max(shareLeast, *share-*share/32)
	q.leaveWindowLocked(it)
}

// leaveWindowLocked makes room in the window for another object.
func (q *queue) leaveWindowLocked(it *Item) {
	if it.calling {
		it.calling = false
		q.inFlight[it.Lane]--
		q.bytes -= it.bytes
		it.bytes = 0
	}
}

// works notes what an object is in flight for: its delete, and as a part of which operation.
func (q *queue) works(it *Item, deleted bool, operation int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	it.deleted, it.operation = deleted, operation
}

// notDeleted leaves out the objects whose delete is in flight.
func (q *queue) notDeleted(items []*Item) []*Item {
	q.mu.Lock()
	defer q.mu.Unlock()
	left := make([]*Item, 0, len(items))
	for _, it := range items {
		if f := q.flying[it.ObjectID]; f == nil || !f.item.deleted {
			left = append(left, it)
		}
	}
	return left
}

// flyingFor returns how many objects are in flight as parts of an operation.
func (q *queue) flyingFor(operation int64) (n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, f := range q.flying {
		if f.item.operation == operation {
			n++
		}
	}
	return n
}

// takeProbeLocked takes one object while the circuit is open and a probe is due.
func (q *queue) takeProbeLocked() []*Item {
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
func (q *queue) popLocked(lane Lane, n int, items []*Item) []*Item {
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
		q.flying[it.ObjectID] = &flight{item: it}
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

// done ends the flight of an object. What came for it meanwhile is queued.
func (q *queue) done(it *Item) {
	q.mu.Lock()
	defer q.mu.Unlock()
	next := q.landLocked(it)
	if next != nil {
		q.appendLocked(next)
	}
	signal(q.ready)
}

// goesOn reports whether something came for an object during its flight.
func (q *queue) goesOn(it *Item) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	f := q.flying[it.ObjectID]
	return f != nil && f.next != nil
}

// putBack ends the flight of an object that was not settled: it goes back to the front of its lane.
func (q *queue) putBack(it *Item) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if next := q.landLocked(it); next != nil {
		it.merge(next)
	}
	q.waiting[it.ObjectID] = it
	q.lanes[it.Lane] = slices.Insert(q.lanes[it.Lane], 0, it)
	q.size[it.Lane]++
	signal(q.ready)
}

// landLocked ends a flight and returns what came meanwhile.
func (q *queue) landLocked(it *Item) (next *Item) {
	next = q.flying[it.ObjectID].next
	it.deleted = false
	delete(q.flying, it.ObjectID)
	q.leaveWindowLocked(it)
	return next
}

// setWindow sets how many calls may be in flight.
func (q *queue) setWindow(n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.window = n
	signal(q.ready)
}

// setPaused stops the taking, but for probes.
func (q *queue) setPaused(paused bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.paused, q.probe = paused, false
	signal(q.ready)
}

// allowProbe lets one object through while paused.
func (q *queue) allowProbe() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.probe = true
	signal(q.ready)
}

// stop ends taking and pushing for good.
func (q *queue) stop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.stopped = true
	close(q.room) // whoever waits for room must hear of it
	q.room = make(chan struct{})
}

func (q *queue) isStopped() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.stopped
}

// abandon empties the queue, for when nobody works on it any more. Runs learn that what was left is not settled.
func (q *queue) abandon() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, it := range q.waiting {
		it.cut()
	}
	for _, f := range q.flying {
		f.item.cut()
		if f.next != nil {
			f.next.cut()
		}
	}
	for _, it := range q.resting {
		it.cut()
	}
	clear(q.waiting)
	clear(q.flying)
	clear(q.resting)
	q.lanes, q.size, q.inFlight, q.bytes = [2][]*Item{}, [2]int{}, [2]int{}, 0
}

// depth returns how many objects wait on each lane and how many are in flight. What rests is neither.
func (q *queue) depth() (live, sync, flying int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.size[LaneLive], q.size[LaneSync], len(q.flying)
}
