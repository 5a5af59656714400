package client

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// queue has each key at most once, and gives a key to one worker at a time. A key that is added while it runs runs once more.
type queue struct {
	min, max time.Duration // of the pause after a failure

	mu      sync.Mutex // guards what follows
	changed *sync.Cond
	open    bool // keys are given out
	ready   []string
	items   map[string]*item
	running int
}

// item is a key that waits, runs, or has failed.
type item struct {
	queued, running bool
	failed          bool // rests until the next end of a snapshot
	failures        int  // in a row
	timer           *time.Timer
}

func newQueue() *queue {
	q := &queue{items: map[string]*item{}}
	q.changed = sync.NewCond(&q.mu)
	return q
}

// add has a key run soon.
func (q *queue) add(key string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.addLocked(key)
}

func (q *queue) addLocked(key string) {
	it := q.items[key]
	if it == nil {
		it = &item{}
		q.items[key] = it
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
		q.ready = append(q.ready, key)
		q.changed.Broadcast()
	}
}

// next waits for a key. It returns false when ctx has ended.
func (q *queue) next(ctx context.Context) (string, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for ctx.Err() == nil && (!q.open || len(q.ready) == 0) {
		q.changed.Wait()
	}
	if ctx.Err() != nil {
		return "", false
	}
	key := q.ready[0]
	q.ready[0] = ""
	q.ready = q.ready[1:]
	it := q.items[key]
	it.queued, it.running, it.failed = false, true, false
	q.running++
	return key, true
}

// done ends the run of a key. It returns how long the key pauses, 0 if it does not run again by itself.
func (q *queue) done(key string, o outcome) (pause time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	defer q.changed.Broadcast()
	it := q.items[key]
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
		q.ready, pause = append(q.ready, key), 0
	case pause > 0:
		it.timer = time.AfterFunc(pause, func() { q.due(key, it) })
	case !it.failed:
		delete(q.items, key)
	}
	return pause
}

// due runs a key whose pause is over.
func (q *queue) due(key string, it *item) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.items[key] == it && it.timer != nil {
		q.addLocked(key)
	}
}

// hold has the queue give out nothing.
func (q *queue) hold() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.open = false
}

// release has the queue give out keys, also those that have failed for good.
func (q *queue) release() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for key, it := range q.items {
		if it.failed && !it.queued {
			q.addLocked(key)
		}
	}
	q.open = true
	q.changed.Broadcast()
}

// settle waits until none of the keys runs. It returns false when ctx has ended.
func (q *queue) settle(ctx context.Context, keys map[string]struct{}) bool {
	defer context.AfterFunc(ctx, q.wake)()
	q.mu.Lock()
	defer q.mu.Unlock()
	for ctx.Err() == nil && q.runs(keys) {
		q.changed.Wait()
	}
	return ctx.Err() == nil
}

func (q *queue) runs(keys map[string]struct{}) bool {
	for key := range keys {
		if it := q.items[key]; it != nil && it.running {
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

// counts returns how many keys wait to run, run, and have failed.
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
