package guard

import (
	"sync"
	"time"
)

// passBuckets is into how many parts the window is divided to count deletes.
const passBuckets = 100

// Guard counts the deletes of one target. Its methods may be called from several goroutines.
type Guard struct {
	cfg Limits
	now func() time.Time

	mu      sync.Mutex // guards what follows
	recent  []passes   // deletes let pass within the window, oldest first
	passed  int64      // their number
	objects int64      // objects that the target has, or may have
	// Deletes let pass that the database does not know of yet, and the objects that the target had before.
	unwritten, unwrittenOf int64
}

// passes are deletes that were let pass at about the same time.
type passes struct {
	first, last time.Time
	deletes     int64
	objects     int64 // that the target had before the first of them
}

// New returns a guard of a target with so many objects, which has let no delete pass yet.
func New(cfg Limits, objects int64) *Guard {
	return &Guard{cfg: cfg, now: time.Now, objects: objects}
}

// Remaining returns how many more deletes may pass now.
func (g *Guard) Remaining() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.remainingLocked()
}

func (g *Guard) remainingLocked() int64 {
	cut := g.now().Add(-g.cfg.Window)
	for len(g.recent) > 0 && g.recent[0].last.Before(cut) {
		g.passed -= g.recent[0].deletes
		g.recent = g.recent[1:]
	}
	// A part of the objects that were there when the window began. Not "now and deleted since": those whose delete is
	// under way would count twice, and a burst of deletes would raise its own limit.
	began := g.objects
	if len(g.recent) > 0 {
		began = max(began, g.recent[0].objects)
	}
	return max(0, g.cfg.Limit(began)-g.passed)
}

// Take lets n deletes pass, all or none, or says that they must be held.
func (g *Guard) Take(n int64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.remainingLocked() < n {
		return false
	}
	g.unwrittenOf = max(g.unwrittenOf, g.objects)
	g.unwritten += n
	g.passLocked(n)
	return true
}

// Write returns the deletes let pass since it was called last, for the next owner to know, and how many objects the target had
// before. Those of Decide are not among them: they are written with the decision.
func (g *Guard) Write() (deletes, objects int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	deletes, objects = g.unwritten, g.unwrittenOf
	g.unwritten, g.unwrittenOf = 0, 0
	return deletes, objects
}

// Remember counts deletes that a former owner let pass so long ago. It is called for the oldest first.
func (g *Guard) Remember(ago time.Duration, deletes, objects int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	at := g.now().Add(-max(0, ago))
	g.passed += deletes
	if n := len(g.recent); n > 0 && at.Sub(g.recent[n-1].first) < g.cfg.Window/passBuckets {
		g.recent[n-1].last = at
		g.recent[n-1].deletes += deletes
		return
	}
	g.recent = append(g.recent, passes{first: at, last: at, deletes: deletes, objects: objects})
}

// Decide says whether n parked deletes may pass, all or none, and counts them; held are others of the same count that do not pass now.
// objects are how many the target had before.
func (g *Guard) Decide(n, held int64) (pass bool, objects int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	objects = g.objects
	if n+held > g.remainingLocked() {
		return false, objects
	}
	g.passLocked(n)
	return true, objects
}

func (g *Guard) passLocked(n int64) {
	if n == 0 {
		return
	}
	now := g.now()
	g.passed += n
	if len(g.recent) > 0 {
		last := &g.recent[len(g.recent)-1]
		if now.Sub(last.first) < g.cfg.Window/passBuckets {
			last.last = now
			last.deletes += n
			return
		}
	}
	g.recent = append(g.recent, passes{first: now, last: now, deletes: n, objects: g.objects})
}

// Recount sets the number of objects after a resource was removed. What the target has of it no longer counts, in the current
// window neither.
func (g *Guard) Recount(objects int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	lost := max(0, g.objects-objects)
	g.objects = objects
	g.unwrittenOf = max(0, g.unwrittenOf-lost)
	for i := range g.recent {
		g.recent[i].objects = max(0, g.recent[i].objects-lost)
	}
}

// Count adds to the number of objects.
func (g *Guard) Count(delta int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.objects = max(0, g.objects+delta)
}
