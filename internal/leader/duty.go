package leader

import (
	"context"
	"time"

	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/loop"
)

// duty is one of the leader's tasks. It fails alone.
type duty struct {
	name loop.Name
	// turn does what is to be done, and returns after which time to be called again, if nobody calls before.
	turn  func(ctx context.Context) (pause time.Duration, err error)
	wake  <-chan struct{} // nil: nobody calls
	after <-chan struct{} // it begins when this is closed; nil: at once
}

// run works until ctx ends, or with an error when leadership is lost.
func (d duty) run(ctx context.Context, entry *loop.Loop, again time.Duration) error {
	if d.after != nil {
		select {
		case <-d.after:
		case <-ctx.Done():
			return nil
		}
	}
	return entry.Run(ctx, loop.Schedule{Turn: d.turn, Wake: d.wake, AgainMin: again, Ends: database.IsFenced})
}
