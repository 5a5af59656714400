package apply

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pgreconciler/reconciler/internal/crash"
	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/throttle"
)

const (
	// leaseCheck is how often a call that may not start asks whether the lease was renewed.
	leaseCheck = 50 * time.Millisecond
	// staleAfter is how old a row may be when its call starts; after that it is read once more.
	staleAfter = 2 * time.Second
)

// caller makes the driver's calls: when their turn comes, at the rate that the target takes, while the lease outlives them.
type caller struct {
	*core
	circuit *circuit
	settler *settler
	calls   [2]chan []look
	slots   chan struct{} // calls of the sync lane at once
	rate    *throttle.Rate
	slow    throttle.Slowdown
	pace    *throttle.Pace
	refused hush        // lines about failed calls
	overran atomic.Bool // a call returned after the lease was lost
}

func newCaller(c *core, circuit *circuit, settler *settler) *caller {
	// As long as the window: handing out a call never waits, so sync calls in hand never keep live ones back.
	calls := [2]chan []look{make(chan []look, throttle.WindowBound), make(chan []look, throttle.WindowBound)}
	slots := make(chan struct{}, max(1, c.cfg.Concurrency-max(1, c.cfg.Concurrency/4)))
	return &caller{
		core: c, circuit: circuit, settler: settler, calls: calls, slots: slots,
		rate: throttle.NewRate(c.cfg.Rate), pace: throttle.NewPace(c.cfg.Concurrency, c.cfg.Rate),
	}
}

// work makes driver calls until the lanes are closed. Calls of the sync lane need a slot, of which there are fewer than
// workers. Live calls go first, but each fourth time the sync lane does: neither starves the other.
func (c *caller) work(ctx context.Context) error {
	live, sync := c.calls[LaneLive], c.calls[LaneSync]
	for n := 0; live != nil || sync != nil; n++ {
		if n%4 == 3 && c.trySync(ctx, &sync) || n%4 != 3 && c.tryLive(ctx, &live) {
			continue
		}
		select {
		case group, ok := <-live:
			if live = open(live, ok); ok {
				c.callGroup(ctx, group)
			}
		case c.slots <- struct{}{}:
			sync = c.syncCall(ctx, &live, sync)
		}
	}
	return nil
}

// tryLive makes a live call if one waits.
func (c *caller) tryLive(ctx context.Context, live *chan []look) bool {
	select {
	case group, ok := <-*live:
		if *live = open(*live, ok); ok {
			c.callGroup(ctx, group)
		}
		return true
	default:
		return false
	}
}

// trySync makes a sync call if one waits and there is a slot for it.
func (c *caller) trySync(ctx context.Context, sync *chan []look) bool {
	select {
	case c.slots <- struct{}{}:
	default:
		return false
	}
	defer func() { <-c.slots }()
	return c.tryLive(ctx, sync)
}

// open returns nil for a channel that was closed: a select then ignores it.
func open(c chan []look, ok bool) chan []look {
	if !ok {
		return nil
	}
	return c
}

// syncCall makes one call of either lane while it holds a slot.
func (c *caller) syncCall(ctx context.Context, live *chan []look, sync chan []look) chan []look {
	defer func() { <-c.slots }()
	select {
	case group, ok := <-*live:
		if *live = open(*live, ok); ok {
			c.callGroup(ctx, group)
		}
	case group, ok := <-sync:
		if sync = open(sync, ok); ok {
			c.callGroup(ctx, group)
		}
	}
	return sync
}

// callGroup makes a call for each look of a group (one call for all where the driver can) and settles them.
func (c *caller) callGroup(ctx context.Context, group []look) {
	if c.queue.IsStopped() { // its turn never came: it is the next owner's
		c.dropAll(group)
		return
	}
	// Looked at before and after the wait for the turn: what is out of date must not take one away.
	if !c.current(group) {
		c.requeueAll(group)
		return
	}
	callCtx, cancel, err := c.mayCall(ctx, len(group))
	if err != nil {
		c.dropAll(group)
		return
	}
	defer cancel()
	if !c.current(group) {
		c.rate.Return(len(group))
		c.requeueAll(group)
		return
	}
	for _, l := range group {
		l.item.Payload.uncalled = false
	}
	started := time.Now()
	crash.Point(crash.BeforeCall)
	outcomes := c.call(callCtx, group)
	crash.Point(crash.AfterCall)
	took := time.Since(started)
	c.queue.SetWindow(c.pace.Window(took / time.Duration(len(group))))
	for i, l := range group {
		c.finish(ctx, l, outcomes[i], took)
	}
}

// current reports whether the decision to make these calls still stands.
func (c *caller) current(group []look) bool {
	if c.breaker.IsOpen() && !probing(group) {
		return false
	}
	paused, drain := c.orders.paused.Load(), c.orders.draining.Load()
	for _, l := range group {
		if l.paused != paused || l.drain != drain || time.Since(l.readAt) > staleAfter || c.orders.closing(l.operation()) {
			return false
		}
		if c.cfg.Catalog.Gone(l.item.ResourceID) { // one of the same name may be in its place, and calls for the same objects
			return false
		}
	}
	return true
}

// probing reports whether this is the one call that an open circuit lets through.
func probing(group []look) bool { return len(group) == 1 && group[0].item.IsProbe() }

// mayCall waits until the target takes calls again that asked for none, for the rate limit, and until the lease outlives
// the call: a process that is cut off from the database has made its last call before another one takes over. It returns
// the call's context, whose time begins before the look at the lease: a process that freezes in between wakes up to a
// call whose time is up.
func (c *caller) mayCall(ctx context.Context, calls int) (context.Context, context.CancelFunc, error) {
	for wait := c.slow.Remaining(); wait > 0; wait = c.slow.Remaining() {
		if err := c.pause(ctx, wait); err != nil {
			return nil, nil, err
		}
	}
	for range calls {
		if err := c.rate.Take(func(d time.Duration) error { return c.pause(ctx, d) }); err != nil {
			return nil, nil, err
		}
	}
	for {
		over := c.cfg.Grant.Over(c.cfg.Timeout)
		callCtx, cancel := context.WithTimeoutCause(ctx, c.cfg.Timeout, errCallTimeout)
		if c.cfg.Grant.Allows(c.cfg.Timeout) && ctx.Err() == nil {
			return punctual{callCtx, over}, cancel, nil
		}
		cancel()
		if err := c.pause(ctx, leaseCheck); err != nil {
			return nil, nil, err
		}
	}
}

// punctual is a context that is over when its time is, not only when its timer has fired: a process that was frozen
// goes on where it was, and its timers fire later. A driver that looks at Err right before it does what cannot be taken
// back has not overwritten what another process applied meanwhile. It goes by the clock that leases are judged by: Go's
// stands still while the machine is suspended.
type punctual struct {
	context.Context //nolint:containedctx // it is a context

	over func() bool
}

func (c punctual) Err() error {
	if err := c.Context.Err(); err != nil {
		return err
	}
	if c.over() {
		return context.DeadlineExceeded
	}
	return nil
}

var errDraining = errors.New("the target is given up")

// pause waits with a call that has not begun. It ends early when the owner stops.
func (c *caller) pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	select {
	case <-time.After(d):
		return nil
	case <-c.cfg.Grant.Draining():
		return errDraining
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

var errCallTimeout = errors.New("the call's time is up")

// call makes the call. A panic is a failed attempt with its stack.
func (c *caller) call(callCtx context.Context, group []look) (outcomes []driver.Outcome) {
	defer func() {
		if c.cfg.Grant.Remaining() == 0 {
			c.overran.Store(true)
		}
	}()
	defer func() {
		if p := recover(); p != nil {
			err := driver.Panicked(p)
			c.cfg.Logger.Error("driver_panicked", "target", c.cfg.Name, "error", err)
			outcomes = repeat(driver.Backoff(err), len(group))
		}
	}()
	switch {
	case len(group) > 1:
		outcomes = c.callBatch(callCtx, group)
	case group[0].act == actDelete:
		outcomes = []driver.Outcome{c.cfg.Driver.Delete(callCtx, c.object(group[0]).Ref)}
	default:
		outcomes = []driver.Outcome{c.cfg.Driver.Apply(callCtx, c.object(group[0]))}
	}
	if errors.Is(context.Cause(callCtx), errCallTimeout) {
		for i := range outcomes {
			if unanswered(outcomes[i].Err) {
				outcomes[i] = driver.Backoff(&timeoutError{after: c.cfg.Timeout}).Remember(outcomes[i].Memory)
			}
		}
	}
	for i, out := range outcomes {
		outcomes[i] = out.Bounded()
	}
	return outcomes
}

// unanswered reports whether a call failed because its time was up. What the target answered counts, however late that was.
func unanswered(err error) bool {
	return errors.Is(err, errCallTimeout) || errors.Is(err, context.DeadlineExceeded)
}

// callBatch makes one call for a group: all of it is applied, or all of it is deleted.
func (c *caller) callBatch(ctx context.Context, group []look) (outcomes []driver.Outcome) {
	objects, refs := make([]driver.Object, len(group)), make([]driver.Ref, len(group))
	for i, l := range group {
		objects[i] = c.object(l)
		refs[i] = objects[i].Ref
	}
	if group[0].act == actDelete {
		outcomes = c.cfg.Driver.(driver.BatchDeleter).DeleteBatch(ctx, refs) //nolint:forcetypeassert // else groups has one look each
	} else {
		outcomes = c.cfg.Driver.(driver.BatchApplier).ApplyBatch(ctx, objects) //nolint:forcetypeassert // as above
	}
	if len(outcomes) != len(group) {
		return repeat(driver.Backoff(fmt.Errorf("the driver gave %d outcomes for %d objects", len(outcomes), len(group))), len(group))
	}
	return outcomes
}

func repeat(out driver.Outcome, n int) []driver.Outcome {
	outcomes := make([]driver.Outcome, n)
	for i := range outcomes {
		outcomes[i] = out
	}
	return outcomes
}

func (c *caller) object(l look) driver.Object {
	ref := driver.Ref{
		Target: c.cfg.Name, Resource: l.resource.Name, Key: l.item.Key,
		Revision: max(l.item.Revision, l.now), Term: c.cfg.Grant.Term, Memory: l.memory(), Approved: l.approved(), Owner: c,
	}
	return driver.Object{Ref: ref, Spec: l.row.Spec, Hash: l.row.Hash}
}

// MayRemove implements driver.Caller.
func (c *caller) MayRemove(n int) bool { return c.guard.Take(int64(n)) }

// Wanted implements driver.Caller.
func (c *caller) Wanted(ctx context.Context, resource, key string) (json.RawMessage, error) {
	r, ok := c.cfg.Catalog.ByName(resource)
	if !ok {
		if _, err := c.cfg.Catalog.Reload(ctx, c.cfg.Pool); err != nil {
			return nil, err //nolint:wrapcheck // it says what it read
		}
		r, ok = c.cfg.Catalog.ByName(resource)
	}
	if !ok || c.orders.draining.Load() {
		return nil, nil
	}
	rows, err := r.Read(ctx, c.rows, c.cfg.Name, c.cfg.Grant.ID, []string{key})
	switch {
	case err != nil:
		return nil, fmt.Errorf("its row cannot be read: %w", database.Explain(err))
	case rows[0].Err != nil:
		return nil, rows[0].Err
	case !rows[0].Wanted:
		return nil, nil
	}
	return rows[0].Spec, nil
}

// finish settles one call. What was cut short because this process stops or no longer owns the target counts for
// nothing: it is not a failure of the object.
func (c *caller) finish(ctx context.Context, l look, out driver.Outcome, took time.Duration) {
	if ctx.Err() != nil && out.Verdict != driver.VerdictDone {
		c.dropAll([]look{l})
		return
	}
	name := map[action]string{actApply: "apply", actDelete: "delete"}[l.act]
	c.cfg.Metrics.Calls.WithLabelValues(c.cfg.Name, name, out.Verdict.String()).Inc()
	c.cfg.Metrics.CallSeconds.WithLabelValues(c.cfg.Name, name).Observe(took.Seconds())
	var late *timeoutError
	switch {
	case out.Verdict == driver.VerdictUnreachable:
		c.circuit.failed(ctx, c.breaker.Unreached, out.Err)
		if l.news(out.Memory) == nil {
			c.requeueAll([]look{l})
			return
		}
	case errors.As(out.Err, &late):
		c.circuit.failed(ctx, c.breaker.Timeout, fmt.Errorf("every call times out: %w", out.Err))
	default:
		c.circuit.answered(ctx)
	}
	if out.Whole {
		if text := clip(out.Err.Error()); c.slow.Down(out.After, text) {
			c.cfg.Logger.Warn("target_slows_down", "target", c.cfg.Name, "error", text, "seconds", out.After.Seconds())
		}
	}
	var lag time.Duration
	if out.Verdict == driver.VerdictDone && !l.item.Since.IsZero() {
		lag = time.Since(l.item.Since)
		c.cfg.Metrics.Lag.WithLabelValues(c.cfg.Name).Observe(lag.Seconds())
	}
	if c.cfg.Observe != nil {
		c.cfg.Observe(Observation{
			Target: c.cfg.Name, Resource: c.object(l).Resource, Key: l.item.Key, Action: name, Verdict: out.Verdict, Err: out.Err, Took: took, Lag: lag,
		})
	}
	if out.Verdict != driver.VerdictDone && out.Verdict != driver.VerdictWaiting {
		c.tellFailed(l, out, name)
	}
	if err := c.settler.settle(ctx, l, l.outcome(l.act, out, c.cfg.Backoff)); err != nil {
		c.dropAll([]look{l})
	}
}

// tellFailed writes a line about a failed call, one for each cause and minute.
func (c *caller) tellFailed(l look, out driver.Outcome, action string) {
	resource, text := c.object(l).Resource, clip(out.Err.Error())
	more, due := c.refused.due(time.Now(), l.item.Key, strings.Join([]string{resource, action, out.Verdict.String(), text}, " "))
	if due {
		c.cfg.Logger.Warn("call_failed", "target", c.cfg.Name, "resource", resource, "key", l.item.Key, "action", action,
			"verdict", out.Verdict.String(), "error", text, "alike_before", more)
	}
}

// requeueAll puts objects back that were not called, or whose target was not reached.
func (c *caller) requeueAll(group []look) {
	for _, l := range group {
		c.queue.PutBack(l.item)
	}
}

// dropAll forgets objects: this process stops working for the target. The cursor and the ledger still ask for them.
func (c *caller) dropAll(group []look) {
	for _, l := range group {
		for _, run := range l.item.Payload.runs {
			run.done(false)
		}
		c.queue.Done(l.item)
	}
}
