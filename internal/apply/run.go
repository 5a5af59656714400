package apply

import (
	"context"
	"sync"

	"github.com/pgreconciler/reconciler/internal/queue"
)

// Run counts the objects that a sync has put into the queue and that are not settled. The zero Run is ready for use.
type Run struct {
	mu      sync.Mutex // guards what follows
	pending int
	parked  int64 // that came with their deletes parked
	cut     bool
	idle    chan struct{} // closed when pending falls to zero; nil when nobody waits
}

func (r *Run) add(parked bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pending++
	if parked {
		r.parked++
	}
}

// deletes returns how many objects have come with their deletes parked.
func (r *Run) deletes() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.parked
}

// done counts an object as settled, or as one that never will be.
func (r *Run) done(settled bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pending--
	r.cut = r.cut || !settled
	if r.pending == 0 && r.idle != nil {
		close(r.idle)
		r.idle = nil
	}
}

// ErrRunCut says that the owner stopped before every object of a run was settled.
var ErrRunCut = queue.ErrStopped

// Wait returns when every object of the run is settled, or with ErrRunCut when some never will be.
func (r *Run) Wait(ctx context.Context) error {
	for {
		r.mu.Lock()
		pending, cut := r.pending, r.cut
		if r.idle == nil {
			r.idle = make(chan struct{})
		}
		idle := r.idle
		r.mu.Unlock()
		if pending == 0 {
			if cut {
				return ErrRunCut
			}
			return nil
		}
		select {
		case <-idle:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// signal sends a value unless one waits already.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
