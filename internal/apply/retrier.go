package apply

import (
	"context"
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
	dueRows = 2000
	// dueEvery is the longest time between two looks.
	dueEvery = time.Minute
	// dueAgain is the time until the next look when there were more than dueRows.
	dueAgain = 200 * time.Millisecond
	// dueMargin is how much earlier than what was seen last something may be due all the same: it was said in a transaction
	// that took so long. What took longer is found within dueEvery.
	dueMargin = time.Minute
)

// retrier puts objects into the queue whose next attempt has come.
type retrier struct {
	*core
	parking *parking
	alarm   alarm
	batch   *Run // deletes of the pages being read are parked; nil when they are not
}

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
func (d *retrier) retryDue(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var seen horizon
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.alarm.changed:
			timer.Reset(d.alarm.remaining())
			continue
		case <-d.wantDue:
		case <-timer.C:
		}
		// Cleared before the ledger is read: what is recorded meanwhile sets it again.
		d.alarm.clear()
		wait, err := d.enqueueDue(ctx, &seen)
		if err != nil {
			return err
		}
		d.part(loop.Due).Succeeded()
		d.alarm.set(time.Now().Add(wait))
	}
}

// enqueueDue returns the time until the next object is due. While the circuit is open it takes no more than the probe
// needs: one object, if none waits already.
func (d *retrier) enqueueDue(ctx context.Context, seen *horizon) (time.Duration, error) {
	most := int32(dueRows)
	if d.breaker.IsOpen() {
		if live, sync, flying := d.queue.Depth(); live+sync+flying > 0 {
			return dueEvery, nil
		}
		most = 1
	}
	now := time.Now()
	rows, err := d.queries.LedgerDue(ctx, store.LedgerDueParams{TargetID: d.cfg.Grant.ID, MaxRows: most, Back: seen.back(now), Longest: d.cfg.Backoff.Longest(driver.RetryAfterMax)})
	if err != nil {
		return 0, fmt.Errorf("read due objects of target %s: %w", d.cfg.Name, err)
	}
	wait, oldest := dueEvery, 0.
	var due, uncounted []*Item
	for _, row := range rows {
		if row.Seconds > 0 {
			wait = min(dueEvery, time.Duration(row.Seconds*float64(time.Second)))
			continue
		}
		oldest = max(oldest, -row.Seconds)
		it := &Item{ObjectID: ObjectID{ResourceID: row.ResourceID, Key: row.Key}, Lane: LaneSync, Due: true, Force: !d.orders.clean.Load()}
		if due = append(due, it); row.Uncounted {
			uncounted = append(uncounted, it)
		}
	}
	full := len(due) >= dueRows
	if err := d.countAndPush(ctx, due, uncounted, full); err != nil {
		return 0, err
	}
	seen.saw(now, oldest)
	if full {
		return dueAgain, nil
	}
	return wait, nil
}

// countAndPush puts a page of what is due into the queue. Deletes that nothing has counted are counted first: those that a pause has
// held, or rows that could not be read. A count goes on while pages are full and have such.
func (d *retrier) countAndPush(ctx context.Context, due, uncounted []*Item, full bool) error {
	if err := d.parking.countDeletes(ctx, uncounted, full, &d.batch); err != nil {
		return err
	}
	parked := false
	for _, it := range due {
		if it.Payload.park != "" {
			parked, it.Due = true, false // it is waited for
		}
		if err := d.queue.Push(ctx, it); err != nil {
			return err
		}
	}
	if !full || !parked {
		d.parking.endBatch(ctx, &d.batch)
	}
	return nil
}
