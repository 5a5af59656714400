package client

import (
	"context"
	"iter"
	"time"
)

const (
	// The defaults of a controller.
	workersDefault    = 4
	backoffMinDefault = time.Second
	backoffMaxDefault = 5 * time.Minute
)

// ControllerOption changes a Controller.
type ControllerOption func(*Controller)

// Workers is how many objects are handled at once. The default is 4.
func Workers(n int) ControllerOption { return func(c *Controller) { c.workers = n } }

// Backoff bounds the pause after an error: it is doubled with each error in a row, and shortened by up to half at random. The default is
// 1 s to 5 min.
func Backoff(first, most time.Duration) ControllerOption {
	return func(c *Controller) { c.queue.min, c.queue.max = first, most }
}

// Existing lists the keys of the objects that the far side has. The controller deletes those that nothing wants. It asks when the objects
// are complete and the server has confirmed it, and after each reset. A list with an error counts for nothing, and is asked for again.
func Existing(list func(context.Context) iter.Seq2[string, error]) ControllerOption {
	return func(c *Controller) { c.existing = list }
}

// MaxDeletes bounds the deletes that are concluded from absence: an object that a snapshot after a reset does not have any more, or one
// that only Existing names. If more of them are outstanding, all of them wait for ApproveDeletes. Deletes that the server sends do not
// count: they have passed its own guard. They also wait if objects are absent since the rights of the token have
// changed. The default is a tenth of the objects, and at least 10. A negative number is no limit.
func MaxDeletes(n int) ControllerOption {
	return func(c *Controller) { c.most, c.mostSet = n, true }
}
