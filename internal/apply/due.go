package apply

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/loop"
	"github.com/pgreconciler/reconciler/internal/store"
)

const (
	// dueRows is how many due objects are taken from the ledger at once. They are not kept in memory before: a million
	// failing objects cost nothing while they wait.
	dueRows = 500
	// dueEvery is the longest time between two looks.
	dueEvery = time.Minute
	// dueAgain is the time until the next look when there were more than dueRows.
	dueAgain = 200 * time.Millisecond
	// dueMargin is how much earlier than what was seen last something may be due all the same: it was said in a transaction
	// that took so long. What took longer is found within dueEvery.
	dueMargin = time.Minute
)

// horizon is the time before which nothing is due, as far as is known. Behind it lie the entries of all attempts since somebody's
// transaction began, which PostgreSQL keeps: they are walked every dueEvery, and not at every look. Its zero value knows nothing.
type horizon struct {
	at    time.Time
	whole time.Time // when everything was looked at
}

// back returns how many seconds a look at a time has to go back; nil: to the beginning.
func (h *horizon) back(now time.Time) *float64 {
	if h.whole.IsZero() || now.Sub(h.whole) >= dueEvery {
		h.whole = now
		return nil
	}
	return new((now.Sub(h.at) + dueMargin).Seconds())
}

// saw moves it to the oldest of what a look at a time found: due since so many seconds; zero: nothing.
func (h *horizon) saw(now time.Time, oldest float64) {
	h.at = now.Add(-time.Duration(oldest * float64(time.Second)))
}

// alarm is the time at which an object is due next, as far as is known.
type alarm struct {
	changed chan struct{} // receives a value when the time was moved forward

	mu sync.Mutex // guards at
	at time.Time  // zero: none
}

// set moves the alarm to a time, if that is earlier.
func (a *alarm) set(at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.at.IsZero() || at.Before(a.at) {
		a.at = at
		signal(a.changed)
	}
}

func (a *alarm) clear() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.at = time.Time{}
}

func (a *alarm) remaining() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return time.Until(a.at)
}

// retryDue puts objects whose next attempt has come on the sync lane: however many fail, live changes go first.
func (o *Owner) retryDue(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var seen horizon
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-o.alarm.changed:
			timer.Reset(o.alarm.remaining())
			continue
		case <-o.poke:
		case <-timer.C:
		}
		// Cleared before the ledger is read: what is recorded meanwhile sets it again.
		o.alarm.clear()
		wait, err := o.enqueueDue(ctx, &seen)
		if err != nil {
			return err
		}
		o.part(loop.Due).Succeeded()
		o.alarm.set(time.Now().Add(wait))
	}
}

// enqueueDue returns the time until the next object is due. While the circuit is open it takes no more than the probe
// needs: one object, if none waits already.
func (o *Owner) enqueueDue(ctx context.Context, seen *horizon) (time.Duration, error) {
	most := int32(dueRows)
	if o.breaker.isOpen() {
		if live, sync, flying := o.queue.depth(); live+sync+flying > 0 {
			return dueEvery, nil
		}
		most = 1
	}
	now := time.Now()
	rows, err := o.queries.LedgerDue(ctx, store.LedgerDueParams{TargetID: o.cfg.Grant.ID, MaxRows: most, Back: seen.back(now)})
	if err != nil {
		return 0, fmt.Errorf("read due objects of target %s: %w", o.cfg.Name, err)
	}
	wait, due, oldest := dueEvery, 0, 0.
	for _, row := range rows {
		if row.Seconds > 0 {
			wait = min(dueEvery, time.Duration(row.Seconds*float64(time.Second)))
			continue
		}
		due++
		oldest = max(oldest, -row.Seconds)
		it := &Item{ObjectID: ObjectID{ResourceID: row.ResourceID, Key: row.Key}, Lane: LaneSync, Due: true, Force: !o.clean.Load()}
		if err := o.queue.push(ctx, it); err != nil {
			return 0, err
		}
	}
	seen.saw(now, oldest)
	if due == dueRows {
		return dueAgain, nil
	}
	return wait, nil
}

// probe tries a target that is taken to be down, with growing pauses: by the driver's own check where it has one, else
// with one object.
func (o *Owner) probe(ctx context.Context) error {
	checker, can := o.cfg.Driver.(driver.Checker)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-o.trip:
		}
		for o.breaker.isOpen() {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(o.breaker.pause()):
			}
			switch {
			case !can:
				o.queue.allowProbe()
				signal(o.poke) // there may be nothing in the queue to probe with
			case o.check(ctx, checker) != nil:
				o.breaker.failedProbe()
			default:
				o.well(ctx, o.breaker.passed)
			}
		}
	}
}

// check asks the driver whether its target answers. A panic is a no.
func (o *Owner) check(ctx context.Context, checker driver.Checker) error {
	ctx, cancel := context.WithTimeout(ctx, o.cfg.Timeout)
	defer cancel()
	return o.safely(func() error { return checker.Check(ctx) })
}

// safely calls the driver. A panic is an error, and logged.
func (o *Owner) safely(call func() error) error {
	err := driver.Safely(call)
	if _, ok := errors.AsType[*driver.PanicError](err); ok {
		o.cfg.Logger.Error("driver_panicked", "target", o.cfg.Name, "error", err)
	}
	return err //nolint:wrapcheck // the driver's
}

// failed counts a call that the target did not answer, and opens the circuit when there were too many: one fact about
// the target, not many about its objects.
func (o *Owner) failed(ctx context.Context, count func() (opened bool), cause error) {
	o.circuit.Lock()
	defer o.circuit.Unlock()
	if !count() {
		return
	}
	o.queue.setPaused(true)
	o.cfg.Metrics.CircuitOpen.WithLabelValues(o.cfg.Name).Set(1)
	o.cfg.Logger.Warn("target_down", "target", o.cfg.Name, "error", cause)
	o.recordCircuit(ctx, clip(cause.Error()))
	signal(o.trip)
}

// answered counts an answer of the target; the first one closes the circuit.
func (o *Owner) answered(ctx context.Context) { o.well(ctx, o.breaker.answered) }

// well counts what speaks for the target, and closes the circuit when that was open.
func (o *Owner) well(ctx context.Context, count func() (closed bool)) {
	o.circuit.Lock()
	defer o.circuit.Unlock()
	if !count() {
		return
	}
	o.queue.setPaused(false)
	o.cfg.Metrics.CircuitOpen.WithLabelValues(o.cfg.Name).Set(0)
	o.cfg.Logger.Info("target_back", "target", o.cfg.Name)
	o.recordCircuit(ctx, "")
	signal(o.poke)
}

func (o *Owner) recordCircuit(ctx context.Context, text string) {
	err := o.queries.TargetCircuit(ctx, store.TargetCircuitParams{TargetID: o.cfg.Grant.ID, Owner: o.cfg.Instance, Term: o.cfg.Grant.Term, Error: text})
	if err != nil && ctx.Err() == nil {
		o.cfg.Logger.Warn("circuit_not_recorded", "target", o.cfg.Name, "error", err)
	}
}
