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

// Existing lists the keys of the objects of the controller's resource that the far side has. The controller deletes those that nothing
// wants. It asks when the objects are complete and the server has confirmed it, after each reset, after a resync of the target, and on
// List. A list with an error counts for nothing, and is asked for again.
func Existing(list func(context.Context) iter.Seq2[string, error]) ControllerOption {
	return func(c *Controller) {
		if c.resource == everyResource {
			c.problems = append(c.problems, "Existing lists the keys of one resource: use ExistingObjects")
		}
		c.existing = func(ctx context.Context) iter.Seq2[Ref, error] {
			return func(yield func(Ref, error) bool) {
				for key, err := range list(ctx) {
					if !yield(Ref{c.resource, key}, err) {
						return
					}
				}
			}
		}
	}
}

// ExistingObjects is Existing for a controller of a target. Without InformerOptions.Resources, a resource of which there is no object is
// left as it is: the token may not read it.
func ExistingObjects(list func(context.Context) iter.Seq2[Ref, error]) ControllerOption {
	return func(c *Controller) {
		if c.resource != everyResource {
			c.problems = append(c.problems, "ExistingObjects lists the objects of every resource: use Existing")
		}
		c.existing = list
	}
}

// Health has reports of applied objects show whether the far side has them healthy, and why not. The function returns what it knows at
// once, nil if that is nothing; call ReportHealth when that has changed.
func Health(of func(Ref) (healthy *bool, reason string)) ControllerOption {
	return func(c *Controller) { c.health = of }
}

// Approve has ApproveDeletes, and approve() in the database, call approve too. It lets pass what else waits for approval, and returns how
// many objects that were.
func Approve(approve func() int) ControllerOption { return func(c *Controller) { c.approve = approve } }

// MaxDeletes bounds the deletes of a resource that are concluded from absence: of objects that a snapshot after a reset does not have
// any more, or that only Existing names. If more of them are outstanding, all of them wait for ApproveDeletes. Deletes that the
// server sends do not count: they have passed its own guard. They also wait if objects are absent since the rights of the token have
// changed. The default is a tenth of the objects of the resource, and at least 10. A negative number is no limit.
func MaxDeletes(n int) ControllerOption {
	return func(c *Controller) { c.most, c.mostSet = n, true }
}

// RememberResults keeps in the store which objects have the result Applied for the spec that they have: the handler does not run for them
// after a restart. Results with another fingerprint do not count, nor those from before a resync of the target. Call ReportInventory
// after a restart, as the last reports may have been lost.
func RememberResults(fingerprint string) ControllerOption {
	return func(c *Controller) {
		c.remember, c.results = true, fingerprint
		if c.informer.opts.Store == nil {
			c.problems = append(c.problems, "RememberResults needs InformerOptions.Store")
		}
	}
}
