package loop

import (
	"cmp"
	"context"
	"time"

	"github.com/pgreconciler/reconciler/internal/pace"
)

// againMin is the default pause after the first failure, againMax the longest.
const againMin = 500 * time.Millisecond

var againMax = pace.Of(15 * time.Second)

// Schedule says when a loop takes its turns.
type Schedule struct {
	// Turn does what is due. It returns the pause before the next turn; a negative one lasts until Wake.
	Turn func(ctx context.Context) (pause time.Duration, err error)
	Wake <-chan struct{} // ends a pause; nil: nothing does
	// First is the pause before the first turn; a negative one lasts until Wake.
	First time.Duration
	// AgainMin is the least pause after a failure, doubled with each further one up to AgainMax. Defaults 0.5 s and 15 s.
	AgainMin, AgainMax time.Duration
	// Ends reports whether an error ends the loop; nil: none does.
	Ends func(error) bool
}

// Run takes turns and reports each, until ctx ends, or with an error that ends the loop.
func (l *Loop) Run(ctx context.Context, s Schedule) error {
	least, most := cmp.Or(s.AgainMin, againMin), cmp.Or(s.AgainMax, againMax)
	timer := time.NewTimer(s.First)
	defer timer.Stop()
	again, pause := least, s.First
	for {
		due := timer.C
		if pause < 0 {
			due = nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.Wake:
		case <-due:
		}
		l.Began()
		var err error
		pause, err = s.Turn(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && s.Ends != nil && s.Ends(err):
			return err
		case err != nil:
			l.Failed(err)
			pause, again = max(pause, again), min(2*again, most)
		default:
			l.Succeeded()
			again = least
		}
		timer.Reset(pause)
	}
}
