package apply

import (
	"sync"
	"time"

	"github.com/pgreconciler/reconciler/internal/config"
)

// passBuckets is into how many parts the window is divided to count deletes.
const passBuckets = 100

// guard counts the deletes of one target.
type guard struct {
	cfg config.GuardLimits
	now func() time.Time

	mu      sync.Mutex // guards what follows
	recent  []passes   // deletes let pass within the window, oldest first
	passed  int64      // their number
	objects int64      // objects that the target has, or may have
}

// passes are deletes that were let pass at about the same time.
type passes struct {
	first, last time.Time
	deletes     int64
	objects     int64 // that the target had before the first of them
}

func newGuard(cfg config.GuardLimits, objects int64) *guard {
	return &guard{cfg: cfg, now: time.Now, objects: objects}
}

// remaining returns how many more deletes may pass now.
func (g *guard) remaining() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.remainingLocked()
}

func (g *guard) remainingLocked() int64 {
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

// take lets one delete pass, or says that it must be held.
func (g *guard) take() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.remainingLocked() < 1 {
		return false
	}
	g.passLocked(1)
	return true
}

// decide says whether n parked deletes may pass, all or none, and counts them.
func (g *guard) decide(n int64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n > g.remainingLocked() {
		return false
	}
	g.passLocked(n)
	return true
}

func (g *guard) passLocked(n int64) {
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

// count adds to the number of objects.
func (g *guard) count(delta int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.objects = max(0, g.objects+delta)
}
