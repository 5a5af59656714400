package apply

import (
	"context"
	"sync"
	"time"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/store"
)

// circuit stops the calls for a target that is taken to be down, and finds out when it is back.
type circuit struct {
	*core
	mu   sync.Mutex    // taken to open or close it: breaker and queue agree about it
	trip chan struct{} // it has opened
}

// probe tries a target that is taken to be down, with growing pauses: by the driver's own check where it has one, else
// with one object.
func (c *circuit) probe(ctx context.Context) error {
	checker, can := c.cfg.Driver.(driver.Checker)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.trip:
		}
		for c.breaker.IsOpen() {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(c.breaker.Pause()):
			}
			switch {
			case !can:
				c.queue.AllowProbe()
				signal(c.wantDue) // there may be nothing in the queue to probe with
			case c.check(ctx, checker) != nil:
				c.breaker.FailedProbe()
			default:
				c.well(ctx, c.breaker.Passed)
			}
		}
	}
}

// check asks the driver whether its target answers. A panic is a no.
func (c *circuit) check(ctx context.Context, checker driver.Checker) error {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	return c.safely(func() error { return checker.Check(ctx) })
}

// failed counts a call that the target did not answer, and opens the circuit when there were too many: one fact about
// the target, not many about its objects.
func (c *circuit) failed(ctx context.Context, count func() (opened bool), cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !count() {
		return
	}
	c.queue.SetPaused(true)
	c.cfg.Metrics.CircuitOpen.WithLabelValues(c.cfg.Name).Set(1)
	c.cfg.Logger.Warn("target_down", "target", c.cfg.Name, "error", cause)
	c.record(ctx, clip(cause.Error()))
	signal(c.trip)
}

// answered counts an answer of the target; the first one closes the circuit.
func (c *circuit) answered(ctx context.Context) { c.well(ctx, c.breaker.Answered) }

// well counts what speaks for the target, and closes the circuit when that was open.
func (c *circuit) well(ctx context.Context, count func() (closed bool)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !count() {
		return
	}
	c.queue.SetPaused(false)
	c.cfg.Metrics.CircuitOpen.WithLabelValues(c.cfg.Name).Set(0)
	c.cfg.Logger.Info("target_back", "target", c.cfg.Name)
	c.record(ctx, "")
	signal(c.wantDue)
}

func (c *circuit) record(ctx context.Context, text string) {
	err := c.queries.TargetCircuit(ctx, store.TargetCircuitParams{TargetID: c.cfg.Grant.ID, Owner: c.cfg.Instance, Term: c.cfg.Grant.Term, Error: text})
	if err != nil && ctx.Err() == nil {
		c.cfg.Logger.Warn("circuit_not_recorded", "target", c.cfg.Name, "error", err)
	}
}
