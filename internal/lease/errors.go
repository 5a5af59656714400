package lease

import (
	"errors"
	"fmt"

	"github.com/pgreconciler/reconciler/internal/database"
)

var (
	// ErrLost is the cause that a run's context ends with when its lease was not renewed in time, or was seen in
	// other hands. Nothing may be started or written any more.
	ErrLost = errors.New("the lease was lost")
	// ErrStopped is the cause that a run's context ends with when the Manager stops: for the leader at once, for
	// targets when the context of Stop has run out before they had drained.
	ErrStopped = errors.New("the process is stopping")
	// ErrRunning is what Start returns when the Manager has been started and not stopped.
	ErrRunning = errors.New("ownership is already running")

	errSlowDatabase = errors.New("the database did not answer in time")
)

// IsFenced reports whether a write was refused because its term is over (SQLSTATE RC001).
func IsFenced(err error) bool { return database.IsFenced(err) }

// panicError is what a run that panicked ends with.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }
