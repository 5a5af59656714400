package client

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// queue has each object at most once, and gives it to one worker at a time. An object that is added while it runs runs once more.
type queue struct {
	min, max time.Duration // of the pause after a failure

	mu      sync.Mutex // guards what follows
	changed *sync.Cond
	closed  closing // why nothing is given out; 0: it is
	ready   []Ref
	items   map[Ref]*item
	running int
}

// item is an object that waits, runs, or has failed.
type item struct {
	queued, running bool
	failed          bool // rests until the next end of a snapshot
	failures        int  // in a row
	timer           *time.Timer
}

func newQueue() *queue {
	q := &queue{closed: closedBySnapshot, items: map[Ref]*item{}}
	q.changed = sync.NewCond(&q.mu)
	return q
}

// closing is a set of reasons to give out nothing.
type closing uint8

const (
	closedBySnapshot closing = 1 << iota // one is under way
	closedByPause                        // of the target
	closedByUser                         // see Suspend
)

// add has an object run soon.
func (q *queue) add(object Ref) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.addLocked(object)
}

func (q *queue) addLocked(object Ref) {
	it := q.items[object]
	if it == nil {
		it = &item{}
		q.items[object] = it
	}
	if it.timer != nil {
		it.timer.Stop()
		it.timer = nil
	}
	if it.queued {
		return
	}
	it.queued = true
	if !it.running {
		q.ready = append(q.ready, object)
		q.changed.Broadcast()
	}
}

// next waits for an object. It returns false when ctx has ended.
func (q *queue) next(ctx context.Context) (Ref, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for ctx.Err() == nil && (q.closed != 0 || len(q.ready) == 0) {
		q.changed.Wait()
	}
	if ctx.Err() != nil {
		return Ref{}, false
	}
	object := q.ready[0]
	q.ready[0] = Ref{}
	q.ready = q.ready[1:]
	it := q.items[object]
	it.queued, it.running, it.failed = false, true, false
	q.running++
	return object, true
}

// begin notes that the handler of an object sees whatever it was added for since it was given out.
func (q *queue) begin(object Ref) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if it := q.items[object]; it != nil && it.running {
		it.queued = false
	}
}

// done ends the run of an object. It returns how long the object pauses, 0 if it does not run again by itself.
func (q *queue) done(object Ref, o outcome) (pause time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	defer q.changed.Broadcast()
	it := q.items[object]
	it.running, it.failed = false, o.failed
	q.running--
	if o.backoff {
		pause = min(q.max, q.min<<min(it.failures, 30))
		pause -= rand.N(pause/2 + 1)
		it.failures++
	} else {
		pause, it.failures = o.after, 0
	}
	switch {
	case it.queued:
		q.ready, pause = append(q.ready, object), 0
	case pause > 0:
		it.timer = time.AfterFunc(pause, func() { q.due(object, it) })
	case !it.failed:
		delete(q.items, object)
	}
	return pause
}

// due runs an object whose pause is over.
func (q *queue) due(object Ref, it *item) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.items[object] == it && it.timer != nil {
		q.addLocked(object)
	}
}

// hold has the queue give out nothing, for a reason.
func (q *queue) hold(reason closing) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed |= reason
}

// release ends a reason. When the last one has ended, the queue gives out objects.
func (q *queue) release(reason closing) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed &^= reason
	q.changed.Broadcast()
}

// retry has objects run that have failed for good and, with pausing, those that have failed otherwise or look again after a pause.
func (q *queue) retry(pausing bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for object, it := range q.items {
		if !it.queued && (it.failed || pausing && (it.timer != nil || it.failures > 0)) {
			q.addLocked(object)
		}
	}
}

// settle waits until none of the objects runs. It returns false when ctx has ended.
func (q *queue) settle(ctx context.Context, objects []Ref) bool {
	defer context.AfterFunc(ctx, q.wake)()
	q.mu.Lock()
	defer q.mu.Unlock()
	for ctx.Err() == nil && q.runs(objects) {
		q.changed.Wait()
	}
	return ctx.Err() == nil
}

func (q *queue) runs(objects []Ref) bool {
	for _, object := range objects {
		if it := q.items[object]; it != nil && it.running {
			return true
		}
	}
	return false
}

// wake has those that wait look at their context.
func (q *queue) wake() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.changed.Broadcast()
}

// stop ends every pause.
func (q *queue) stop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, it := range q.items {
		if it.timer != nil {
			it.timer.Stop()
			it.timer = nil
		}
	}
}

// counts returns how many objects wait to run, run, and have failed.
func (q *queue) counts() (ready, running, failing int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, it := range q.items {
		if it.failures > 0 || it.failed {
			failing++
		}
	}
	return len(q.ready), q.running, failing
}
