package apply

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pgreconciler/reconciler/internal/crash"
	"github.com/pgreconciler/reconciler/internal/driver"
)

// leaseCheck is how often a call that may not start asks whether the lease was renewed.
const leaseCheck = 50 * time.Millisecond

// staleAfter is how old a row may be when its call starts; after that it is read once more.
const staleAfter = 2 * time.Second

// work makes driver calls until the lanes are closed. Calls of the sync lane need a slot, of which there are fewer than
// workers. Live calls go first, but each fourth time the sync lane does: neither starves the other.
func (o *Owner) work(ctx context.Context) error {
	live, sync := o.calls[LaneLive], o.calls[LaneSync]
	for n := 0; live != nil || sync != nil; n++ {
		if n%4 == 3 && o.trySync(ctx, &sync) || n%4 != 3 && o.tryLive(ctx, &live) {
			continue
		}
		select {
		case group, ok := <-live:
			if live = open(live, ok); ok {
				o.callGroup(ctx, group)
			}
		case o.slots <- struct{}{}:
			sync = o.syncCall(ctx, &live, sync)
		}
	}
	return nil
}

// tryLive makes a live call if one waits.
func (o *Owner) tryLive(ctx context.Context, live *chan []look) bool {
	select {
	case group, ok := <-*live:
		if *live = open(*live, ok); ok {
			o.callGroup(ctx, group)
		}
		return true
	default:
		return false
	}
}

// trySync makes a sync call if one waits and there is a slot for it.
func (o *Owner) trySync(ctx context.Context, sync *chan []look) bool {
	select {
	case o.slots <- struct{}{}:
	default:
		return false
	}
	defer func() { <-o.slots }()
	return o.tryLive(ctx, sync)
}

// open returns nil for a channel that was closed: a select then ignores it.
func open(c chan []look, ok bool) chan []look {
	if !ok {
		return nil
	}
	return c
}

// syncCall makes one call of either lane while it holds a slot.
func (o *Owner) syncCall(ctx context.Context, live *chan []look, sync chan []look) chan []look {
	defer func() { <-o.slots }()
	select {
	case group, ok := <-*live:
		if *live = open(*live, ok); ok {
			o.callGroup(ctx, group)
		}
	case group, ok := <-sync:
		if sync = open(sync, ok); ok {
			o.callGroup(ctx, group)
		}
	}
	return sync
}

// callGroup makes a call for each look of a group (one call for all where the driver can) and settles them.
func (o *Owner) callGroup(ctx context.Context, group []look) {
	if o.queue.isStopped() { // its turn never came: it is the next owner's
		o.dropAll(group)
		return
	}
	// Looked at before and after the wait for the turn: what is out of date must not take one away.
	if !o.current(group) {
		o.requeueAll(group)
		return
	}
	callCtx, cancel, err := o.mayCall(ctx, len(group))
	if err != nil {
		o.dropAll(group)
		return
	}
	defer cancel()
	if !o.current(group) {
		o.spare.Add(int64(len(group)))
		o.requeueAll(group)
		return
	}
	for _, l := range group {
		l.item.uncalled = false
	}
	started := time.Now()
	crash.Point(crash.BeforeCall)
	outcomes := o.call(callCtx, group)
	crash.Point(crash.AfterCall)
	took := time.Since(started)
	o.setWindow(took / time.Duration(len(group)))
	for i, l := range group {
		o.finish(ctx, l, outcomes[i], took)
	}
}

// current reports whether the decision to make these calls still stands.
func (o *Owner) current(group []look) bool {
	if o.breaker.isOpen() && !probing(group) {
		return false
	}
	paused, drain := o.paused.Load(), o.draining.Load()
	for _, l := range group {
		if l.paused != paused || l.drain != drain || time.Since(l.readAt) > staleAfter || o.closing(l.operation()) {
			return false
		}
		if o.cfg.Catalog.Gone(l.item.ResourceID) { // one of the same name may be in its place, and calls for the same objects
			return false
		}
	}
	return true
}

// probing reports whether this is the one call that an open circuit lets through.
func probing(group []look) bool { return len(group) == 1 && group[0].item.probe }

// mayCall waits until the target takes calls again that asked for none, for the rate limit, and until the lease outlives
// the call: a process that is cut off from the database has made its last call before another one takes over. It returns
// the call's context, whose time begins before the look at the lease: a process that freezes in between wakes up to a
// call whose time is up.
func (o *Owner) mayCall(ctx context.Context, calls int) (context.Context, context.CancelFunc, error) {
	for wait := o.slow.remaining(); wait > 0; wait = o.slow.remaining() {
		if err := o.pause(ctx, wait); err != nil {
			return nil, nil, err
		}
	}
	for range calls {
		if err := o.token(ctx); err != nil {
			return nil, nil, err
		}
	}
	for {
		over := o.cfg.Grant.Over(o.cfg.Timeout)
		callCtx, cancel := context.WithTimeoutCause(ctx, o.cfg.Timeout, errCallTimeout)
		if o.cfg.Grant.Allows(o.cfg.Timeout) && ctx.Err() == nil {
			return punctual{callCtx, over}, cancel, nil
		}
		cancel()
		if err := o.pause(ctx, leaseCheck); err != nil {
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

// token waits until the rate limit allows one more call.
func (o *Owner) token(ctx context.Context) error {
	if o.limiter == nil {
		return nil
	}
	if o.spare.Add(-1) >= 0 {
		return nil
	}
	o.spare.Add(1)
	turn := o.limiter.Reserve()
	err := o.pause(ctx, turn.Delay())
	if err != nil {
		turn.Cancel()
	}
	return err
}

var errDraining = errors.New("the target is given up")

// pause waits with a call that has not begun. It ends early when the owner stops.
func (o *Owner) pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	select {
	case <-time.After(d):
		return nil
	case <-o.cfg.Grant.Draining():
		return errDraining
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

var errCallTimeout = errors.New("the call's time is up")

// call makes the call. A panic is a failed attempt with its stack.
func (o *Owner) call(callCtx context.Context, group []look) (outcomes []driver.Outcome) {
	defer func() {
		if o.cfg.Grant.Remaining() == 0 {
			o.overran.Store(true)
		}
	}()
	defer func() {
		if p := recover(); p != nil {
			err := driver.Panicked(p)
			o.cfg.Logger.Error("driver_panicked", "target", o.cfg.Name, "error", err)
			outcomes = repeat(driver.Backoff(err), len(group))
		}
	}()
	switch {
	case len(group) > 1:
		outcomes = o.callBatch(callCtx, group)
	case group[0].act == actDelete:
		outcomes = []driver.Outcome{o.cfg.Driver.Delete(callCtx, o.object(group[0]).Ref)}
	default:
		outcomes = []driver.Outcome{o.cfg.Driver.Apply(callCtx, o.object(group[0]))}
	}
	if errors.Is(context.Cause(callCtx), errCallTimeout) {
		for i := range outcomes {
			if unanswered(outcomes[i].Err) {
				outcomes[i] = driver.Backoff(&timeoutError{after: o.cfg.Timeout})
			}
		}
	}
	return outcomes
}

// unanswered reports whether a call failed because its time was up. What the target answered counts, however late that was.
func unanswered(err error) bool {
	return errors.Is(err, errCallTimeout) || errors.Is(err, context.DeadlineExceeded)
}

// callBatch makes one call for a group: all of it is applied, or all of it is deleted.
func (o *Owner) callBatch(ctx context.Context, group []look) (outcomes []driver.Outcome) {
	objects, refs := make([]driver.Object, len(group)), make([]driver.Ref, len(group))
	for i, l := range group {
		objects[i] = o.object(l)
		refs[i] = objects[i].Ref
	}
	if group[0].act == actDelete {
		outcomes = o.cfg.Driver.(driver.BatchDeleter).DeleteBatch(ctx, refs) //nolint:forcetypeassert // else groups has one look each
	} else {
		outcomes = o.cfg.Driver.(driver.BatchApplier).ApplyBatch(ctx, objects) //nolint:forcetypeassert // as above
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

type timeoutError struct{ after time.Duration }

func (e *timeoutError) Error() string { return fmt.Sprintf("timed out after %s", e.after) }

func (o *Owner) object(l look) driver.Object {
	ref := driver.Ref{
		Target: o.cfg.Name, Resource: l.resource.Name, Key: l.item.Key,
		Revision: max(l.item.Revision, l.now), Term: o.cfg.Grant.Term,
	}
	return driver.Object{Ref: ref, Spec: l.row.Spec, Hash: l.row.Hash}
}

// finish settles one call. What was cut short because this process stops or no longer owns the target counts for
// nothing: it is not a failure of the object.
func (o *Owner) finish(ctx context.Context, l look, out driver.Outcome, took time.Duration) {
	if ctx.Err() != nil && out.Verdict != driver.VerdictDone {
		o.dropAll([]look{l})
		return
	}
	name := map[action]string{actApply: "apply", actDelete: "delete"}[l.act]
	o.cfg.Metrics.Calls.WithLabelValues(o.cfg.Name, name, out.Verdict.String()).Inc()
	o.cfg.Metrics.CallSeconds.WithLabelValues(o.cfg.Name, name).Observe(took.Seconds())
	var late *timeoutError
	switch {
	case out.Verdict == driver.VerdictUnreachable:
		o.failed(ctx, o.breaker.unreached, out.Err)
		o.requeueAll([]look{l})
		return
	case errors.As(out.Err, &late):
		o.failed(ctx, o.breaker.timeout, fmt.Errorf("every call times out: %w", out.Err))
	default:
		o.answered(ctx)
	}
	if out.Whole && o.slow.down(out) {
		o.cfg.Logger.Warn("target_slows_down", "target", o.cfg.Name, "error", clip(out.Err.Error()), "seconds", out.After.Seconds())
	}
	var lag time.Duration
	if out.Verdict == driver.VerdictDone && !l.item.Since.IsZero() {
		lag = time.Since(l.item.Since)
		o.cfg.Metrics.Lag.WithLabelValues(o.cfg.Name).Observe(lag.Seconds())
	}
	if o.cfg.Observe != nil {
		o.cfg.Observe(Observation{
			Target: o.cfg.Name, Resource: o.object(l).Resource, Key: l.item.Key, Action: name, Verdict: out.Verdict, Err: out.Err, Took: took, Lag: lag,
		})
	}
	if out.Verdict != driver.VerdictDone {
		o.tellFailed(l, out, name)
	}
	if err := o.settle(ctx, l, l.outcome(l.act, out, o.cfg.Backoff)); err != nil {
		o.dropAll([]look{l})
	}
}

// tellFailed writes a line about a failed call, one for each cause and minute.
func (o *Owner) tellFailed(l look, out driver.Outcome, action string) {
	resource, text := o.object(l).Resource, clip(out.Err.Error())
	more, due := o.refused.due(time.Now(), l.item.Key, strings.Join([]string{resource, action, out.Verdict.String(), text}, " "))
	if due {
		o.cfg.Logger.Warn("call_failed", "target", o.cfg.Name, "resource", resource, "key", l.item.Key, "action", action,
			"verdict", out.Verdict.String(), "error", text, "alike_before", more)
	}
}

// requeueAll puts objects back that were not called, or whose target was not reached.
func (o *Owner) requeueAll(group []look) {
	for _, l := range group {
		o.queue.putBack(l.item)
	}
}

// dropAll forgets objects: this process stops working for the target. The cursor and the ledger still ask for them.
func (o *Owner) dropAll(group []look) {
	for _, l := range group {
		for _, run := range l.item.runs {
			run.done(false)
		}
		o.queue.done(l.item)
	}
}
