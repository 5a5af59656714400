package throttle

import (
	"sync"
	"time"

	"github.com/pgreconciler/reconciler/internal/pace"
)

const (
	// recheckRows is how many objects wait to be taken at most, and of how many it is known when they were looked at.
	recheckRows = 8192
	// recheckTimes is how often an object is looked at while less than recheckQuiet lies between two looks.
	recheckTimes = 5
)

var (
	// recheckPause is the pause between two looks at an object.
	recheckPause = Backoff{Min: pace.Of(time.Second), Max: pace.Of(8 * time.Second)}
	// recheckQuiet is how long an object is not looked at before its looks are forgotten.
	recheckQuiet = pace.Of(time.Minute)
)

// Rechecks are the objects that a target names as changed, each at most once. The first look at an object comes at once, further ones
// 1, 2, 4 and 8 s after the one before. After five looks the object is left alone for a minute: something changes it again and again,
// perhaps the look itself. Memory is bounded by recheckRows.
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
}

// fresh reports whether the looks still count.
func (l *looks) fresh(now time.Time) bool { return l != nil && now.Sub(l.last) < recheckQuiet }

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

// Take removes and returns the objects that are to be looked at now, and those that have been looked at too often; next is the time
// until Take has more to return, 0 if that is not known.
func (r *Rechecks[K]) Take(now time.Time) (due, worn []K, next time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for object := range r.named {
		wait, l := time.Duration(0), r.looks[object]
		switch {
		case !l.fresh(now):
		case l.open:
			wait = recheckQuiet - now.Sub(l.last) // unless it ends before
		case l.times >= recheckTimes:
			worn = append(worn, object)
			delete(r.named, object)
			continue
		default:
			wait = recheckPause.Pause(l.times) - now.Sub(l.last)
		}
		if wait <= 0 {
			due = append(due, object)
			delete(r.named, object)
		} else if next == 0 || wait < next {
			next = wait
		}
	}
	return due, worn, next
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
		} else if until := l.last.Add(recheckQuiet); until.Before(r.full) {
			r.full = until
		}
	}
}
