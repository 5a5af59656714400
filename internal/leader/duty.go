package leader

import (
	"context"
	"time"

	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/loop"
	"github.com/pgreconciler/reconciler/internal/pace"
)

// againMin and againMax are the first and the longest pause before a duty that failed is tried again.
const againMin = 500 * time.Millisecond

var againMax = pace.Of(15 * time.Second)

// duty is one of the leader's tasks. It fails alone.
type duty struct {
	name loop.Name
	// turn does what is to be done, and returns after which time to be called again, if nobody calls before.
	turn  func(ctx context.Context) (pause time.Duration, err error)
	wake  <-chan struct{} // nil: nobody calls
	after <-chan struct{} // it begins when this is closed; nil: at once
}

// run works until ctx ends, or with an error when leadership is lost.
func (d duty) run(ctx context.Context, entry *loop.Loop, shortest time.Duration) error {
	if d.after != nil {
		select {
		case <-d.after:
		case <-ctx.Done():
			return nil
		}
	}
	again := shortest
	for ctx.Err() == nil {
		entry.Began()
		pause, err := d.turn(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case database.IsFenced(err):
			return err
		case err != nil:
			entry.Failed(database.Explain(err))
			pause, again = max(pause, again), min(2*again, againMax)
		default:
			entry.Succeeded()
			again = shortest
		}
		select {
		case <-ctx.Done():
		case <-d.wake:
		case <-time.After(pause):
		}
	}
	return nil
}
