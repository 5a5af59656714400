package throttle

import (
	"sync"
	"time"

	"github.com/pgreconciler/reconciler/internal/pace"
)

const (
	// recheckRows is how many objects wait to be taken at most, and of how many it is known when they were looked at.
	recheckRows = 8192
	// recheckTimes is after how many looks in a row an object counts as one that keeps changing.
	recheckTimes = 5
)

var (
	// recheckPause is the pause between two looks at an object.
	recheckPause = Backoff{Min: pace.Of(time.Second), Max: pace.Of(10 * time.Minute)}
	// recheckQuiet is how long an object is not looked at, at least, before its looks are forgotten.
	recheckQuiet = pace.Of(time.Minute)
)

// Rechecks are the objects that a target names as changed, each at most once. The first look at an object comes at once, further ones
// 1, 2, 4, 8 s and so on after the one before, 10 minutes at last: something changes it again and again, perhaps the look itself. What
// was not looked at for a minute, or twice its pause, begins anew. Memory is bounded by recheckRows.
type Rechecks[K comparable] struct {
	Named chan struct{} // receives a value when an object waits to be taken

	mu    sync.Mutex // guards what follows
	named map[K]struct{}
	looks map[K]*looks
	full  time.Time // until then no looks can be forgotten
}

// looks are those at one object.
type looks struct {
	last  time.Time
	times int
	open  bool // the last one has not ended
	told  bool // that the object keeps changing
}

// fresh reports whether the looks still count.
func (l *looks) fresh(now time.Time) bool { return l != nil && now.Sub(l.last) < l.memory() }

func (l *looks) memory() time.Duration { return max(recheckQuiet, 2*recheckPause.Pause(l.times)) }

// NewRechecks returns Rechecks without objects.
func NewRechecks[K comparable]() *Rechecks[K] {
	return &Rechecks[K]{Named: make(chan struct{}, 1), named: map[K]struct{}{}, looks: map[K]*looks{}}
}

// Name adds an object. It returns false if there is no room for it. It does not block.
func (r *Rechecks[K]) Name(object K) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.named[object]; !ok && len(r.named) >= recheckRows {
		return false
	}
	r.named[object] = struct{}{}
	r.wakeLocked()
	return true
}

func (r *Rechecks[K]) wakeLocked() {
	select {
	case r.Named <- struct{}{}:
	default:
	}
}

// Take removes and returns the objects that are to be looked at now. It returns each object once that keeps changing: it waits for longer
// and longer. next is the time until Take has more to return, 0 if that is not known.
func (r *Rechecks[K]) Take(now time.Time) (due, restless []K, next time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for object := range r.named {
		wait, l := time.Duration(0), r.looks[object]
		switch {
		case !l.fresh(now):
		case l.open:
			wait = l.memory() - now.Sub(l.last) // unless it ends before
		default:
			wait = recheckPause.Pause(l.times) - now.Sub(l.last)
			if l.times >= recheckTimes && !l.told {
				l.told = true
				restless = append(restless, object)
			}
		}
		if wait <= 0 {
			due = append(due, object)
			delete(r.named, object)
		} else if next == 0 || wait < next {
			next = wait
		}
	}
	return due, restless, next
}

// Begin notes that an object will be looked at. It returns false if there is no room to remember that; do not look at it then.
func (r *Rechecks[K]) Begin(object K) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	l := r.looks[object]
	if !l.fresh(now) {
		if l == nil && len(r.looks) >= recheckRows {
			if r.forgetLocked(now); len(r.looks) >= recheckRows {
				return false
			}
		}
		l = &looks{}
		r.looks[object] = l
	}
	l.last, l.open = now, true
	l.times++
	return true
}

// Ended notes that the look at an object has ended.
func (r *Rechecks[K]) Ended(object K) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.looks[object]
	if l == nil {
		return
	}
	l.last, l.open = time.Now(), false
	if _, ok := r.named[object]; ok {
		r.wakeLocked()
	}
}

// forgetLocked forgets looks that do not count any more.
func (r *Rechecks[K]) forgetLocked(now time.Time) {
	if now.Before(r.full) {
		return
	}
	r.full = now.Add(recheckQuiet)
	for object, l := range r.looks {
		if !l.fresh(now) {
			delete(r.looks, object)
		} else if until := l.last.Add(l.memory()); until.Before(r.full) {
			r.full = until
		}
	}
}
