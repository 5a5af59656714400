package client

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"sync/atomic"
	"time"
)

// Handler makes one object on the far side equal to what the informer has. It gets the object by its key; if there is none, the object
// must not exist on the far side. An error is retried after the back-off, and reported with its message. It must end when ctx ends.
type Handler func(ctx context.Context, key string) (Result, error)

// Controller has a handler look at each object of a resource, or of a target, when it is new, when it has changed and when it is gone.
//
// No handler begins before the objects are complete, none while a snapshot after a reset is under way, and none while the target is
// paused. One object never runs twice at once; changes that come while it runs have it run once more.
type Controller struct {
	informer *Informer
	resource string // "": every one of the target
	handle   func(context.Context, Ref) (Result, error)
	existing func(context.Context) iter.Seq2[Ref, error]
	workers  int
	health   func(Ref) (healthy *bool, reason string) // see Health; nil: it is not known
	approve  func() int                               // see Approve
	most     int                                      // deletes; see MaxDeletes
	mostSet  bool
	remember bool   // see RememberResults
	results  string // the fingerprint of that
	queue    *queue
	lister   chan struct{} // wakes it, size one
	reporter *reporter
	problems []string // of its options

	ran atomic.Bool

	// mu of the informer guards what follows.
	made      map[Ref]struct{} // deletes that were made since a list of the far side began; nil: none is under way
	failing   map[Ref]failure  // the newest results that are neither Applied nor Absent
	suspended string           // the reason; "": it is not
}

// NewController returns a controller of a resource, of which an informer has one at most. Call it before Run of the informer: it panics
// afterwards.
func NewController(i *Informer, resource string, handle Handler, opts ...ControllerOption) *Controller {
	var byRef func(context.Context, Ref) (Result, error)
	if handle != nil {
		byRef = func(ctx context.Context, object Ref) (Result, error) { return handle(ctx, object.Key) }
	}
	c := newController(i, resource, byRef, opts)
	if i.controller(resource) != nil {
		c.problems = append(c.problems, "it has a controller already")
	}
	i.wire("NewController", resource, func() { i.controllers[resource] = c }, c.problems...)
	return c
}

// NewTargetController returns a controller of every resource of the target. An informer has either this one or controllers of resources.
// Call it before Run of the informer: it panics afterwards.
func NewTargetController(
	i *Informer, handle func(ctx context.Context, object Ref) (Result, error), opts ...ControllerOption,
) *Controller {
	c := newController(i, everyResource, handle, opts)
	if len(i.controllers) > 0 {
		c.problems = append(c.problems, "the informer has a controller already")
	}
	i.wire(wireTarget, everyResource, func() { i.controllers[everyResource] = c }, c.problems...)
	return c
}

// everyResource stands for all resources of a target.
const everyResource = ""

func newController(
	i *Informer, resource string, handle func(context.Context, Ref) (Result, error), opts []ControllerOption,
) *Controller {
	c := &Controller{
		informer: i, resource: resource, handle: handle, workers: workersDefault, queue: newQueue(), lister: make(chan struct{}, 1),
		failing: map[Ref]failure{},
	}
	c.reporter = newReporter(i.client, i.target, func() ([]Observation, error) {
		all, err := c.inventory()
		return all.Observations, err
	})
	c.queue.min, c.queue.max = backoffMinDefault, backoffMaxDefault
	for _, opt := range opts {
		opt(c)
	}
	if handle == nil {
		c.problems = append(c.problems, "it has no handler")
	}
	if c.workers < 1 {
		c.problems = append(c.problems, fmt.Sprintf("Workers is %d, and must be at least 1", c.workers))
	}
	if c.queue.min <= 0 || c.queue.max < c.queue.min {
		c.problems = append(c.problems, fmt.Sprintf(
			"Backoff is %s to %s, and must be a positive time to one that is not shorter", c.queue.min, c.queue.max))
	}
	return c
}

// name is what errors call it.
func (c *Controller) name() string {
	if c.resource == everyResource {
		return "the controller of target " + c.informer.target
	}
	return fmt.Sprintf("the controller of resource %q", c.resource)
}

// Run handles objects until ctx ends, and returns nil then. Run the informer beside it. It ends when its handlers have ended, and sends
// the last reports within 5 s. A controller runs once.
func (c *Controller) Run(ctx context.Context) error {
	if c.ran.Swap(true) {
		return fmt.Errorf("%s has begun before: make another informer and controller", c.name())
	}
	c.informer.mu.RLock() // another controller of the informer may be made beside
	wired := c.informer.controller(c.resource) == c
	c.informer.mu.RUnlock()
	if !wired {
		return fmt.Errorf("%s is not wired: Run of the informer returns why", c.name())
	}
	defer context.AfterFunc(ctx, c.queue.wake)()
	reporting, stop := context.WithCancel(context.WithoutCancel(ctx))
	var workers, reporter sync.WaitGroup
	reporter.Go(func() { c.reporter.run(reporting) })
	for range c.workers {
		workers.Go(func() { c.work(ctx) })
	}
	if c.existing != nil {
		workers.Go(func() { c.lists(ctx) })
	}
	workers.Wait()
	c.queue.stop()
	stop()
	reporter.Wait()
	return nil
}

func (c *Controller) work(ctx context.Context) {
	for {
		object, ok := c.queue.next(ctx)
		if !ok {
			return
		}
		c.reconcile(ctx, object)
	}
}

// reconcile runs the handler for an object, unless the far side must keep what it has.
func (c *Controller) reconcile(ctx context.Context, object Ref) {
	task, ok := c.informer.claim(object)
	if !ok {
		c.queue.done(object, outcome{})
		return
	}
	result, err := c.call(ctx, object)
	if err != nil && ctx.Err() != nil {
		c.queue.done(object, outcome{})
		return
	}
	c.note(object, task, result, err) // before done: a later run reports later
	c.log(object, result, err, c.queue.done(object, result.outcome(err)))
}

func (c *Controller) log(object Ref, result Result, err error, pause time.Duration) {
	log := c.informer.client.log.With("target", c.informer.target, "resource", object.Resource, "key", object.Key)
	var p *panicked
	switch {
	case errors.As(err, &p):
		log.Error("handler_panicked", "panic", fmt.Sprint(p.value), "stack", p.stack, "again_in", pause)
	case err != nil:
		log.Warn("handler_failed", "error", err.Error(), "again_in", pause)
	case result.state == StateFailed:
		log.Warn("object_failed", "reason", result.reason)
	}
}

func (c *Controller) call(ctx context.Context, object Ref) (result Result, err error) {
	err = contained(func() (err error) {
		result, err = c.handle(ctx, object)
		return err
	})
	if err != nil {
		return Result{}, err
	}
	if result == (Result{}) {
		return result, errors.New("the handler has returned neither a result nor an error")
	}
	return result, nil
}
