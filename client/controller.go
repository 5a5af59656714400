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

// Controller has a handler look at each object of a resource when it is new, when it has changed and when it is gone.
//
// No handler begins before the objects are complete, and none while a snapshot after a reset is under way. One key never runs twice at
// once; changes that come while it runs have it run once more.
type Controller struct {
	informer *Informer
	resource string
	handle   Handler
	existing func(context.Context) iter.Seq2[string, error]
	workers  int
	most     int // deletes; see MaxDeletes
	mostSet  bool
	queue    *queue
	lister   chan struct{} // wakes it, size one
	reporter *reporter

	ran atomic.Bool

	made map[string]struct{} // deletes that were made since a list of the far side began; nil: none is under way. mu of the informer guards it
}

// NewController returns a controller of a resource, of which an informer has one at most. Call it before Run of the informer: it panics
// afterwards.
func NewController(i *Informer, resource string, handle Handler, opts ...ControllerOption) *Controller {
	c := &Controller{
		informer: i, resource: resource, handle: handle, workers: workersDefault,
		queue: newQueue(), lister: make(chan struct{}, 1), reporter: newReporter(i.client, i.target),
	}
	c.queue.min, c.queue.max = backoffMinDefault, backoffMaxDefault
	for _, opt := range opts {
		opt(c)
	}
	var problems []string
	if handle == nil {
		problems = append(problems, "it has no handler")
	}
	if c.workers < 1 {
		problems = append(problems, fmt.Sprintf("Workers is %d, and must be at least 1", c.workers))
	}
	if c.queue.min <= 0 || c.queue.max < c.queue.min {
		problems = append(problems, fmt.Sprintf(
			"Backoff is %s to %s, and must be a positive time to one that is not shorter", c.queue.min, c.queue.max))
	}
	if i.controllers[resource] != nil {
		problems = append(problems, "it has a controller already")
	}
	i.wire("NewController", resource, func() { i.controllers[resource] = c }, problems...)
	return c
}

// Run handles objects until ctx ends, and returns nil then. Run the informer beside it. It ends when its handlers have ended, and sends
// the last reports within 5 s. A controller runs once.
func (c *Controller) Run(ctx context.Context) error {
	if c.ran.Swap(true) {
		return fmt.Errorf("the controller of resource %q has begun before: make another informer and controller", c.resource)
	}
	c.informer.mu.RLock() // another controller of the informer may be made beside
	wired := c.informer.controllers[c.resource] == c
	c.informer.mu.RUnlock()
	if !wired {
		return fmt.Errorf("the controller of resource %q is not wired: Run of the informer returns why", c.resource)
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
		key, ok := c.queue.next(ctx)
		if !ok {
			return
		}
		c.reconcile(ctx, key)
	}
}

// reconcile runs the handler for a key, unless the far side must keep what it has.
func (c *Controller) reconcile(ctx context.Context, key string) {
	r := ref{c.resource, key}
	version, gone, ok := c.informer.claim(r)
	if !ok {
		c.queue.done(key, outcome{})
		return
	}
	result, err := c.call(ctx, key)
	if err != nil && ctx.Err() != nil {
		c.queue.done(key, outcome{})
		return
	}
	if gone != nil && err == nil && (result.state == StateAbsent || result.state == StateApplied) {
		c.informer.forget(r, *gone)
	}
	c.report(key, version, result, err) // before done: a later run reports later
	c.log(key, result, err, c.queue.done(key, result.outcome(err)))
}

func (c *Controller) report(key string, version int64, result Result, err error) {
	o := Observation{Resource: c.resource, Key: key, Version: version, State: result.state, Message: result.reason}
	if err != nil {
		o.State, o.Message = StateFailed, err.Error()
	}
	if o.State != "" && version > 0 {
		c.reporter.add(o)
	}
}

func (c *Controller) log(key string, result Result, err error, pause time.Duration) {
	log := c.informer.client.log.With("target", c.informer.target, "resource", c.resource, "key", key)
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

func (c *Controller) call(ctx context.Context, key string) (result Result, err error) {
	err = contained(func() (err error) {
		result, err = c.handle(ctx, key)
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
