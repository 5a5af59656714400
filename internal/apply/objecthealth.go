package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/store"
)

// healthRows is how many objects are asked about before the next ones: what a round remembers, and what is written of it.
const healthRows = 100

// A health that is not known, beside the states that a driver returns.
const healthUnknown driver.HealthState = "unknown"

// round asks about objects in key order, a page at a time: the next page when all of a page are healthy. So it asks again only
// about what was not healthy, and its memory is bounded, whatever the number of objects.
type round struct {
	began   time.Time         // by the database's clock
	after   ObjectID          // the last object of the page before
	healthy map[ObjectID]bool // of this page
	next    time.Time         // when to ask again
	said    string            // the last answer: the first object that is not healthy, and why
}

// asked is an object of a page and the answer about it; "": it was not asked.
type asked struct {
	store.LedgerHealthPageRow
	driver.ObjectHealth
}

func (a asked) id() ObjectID { return ObjectID{ResourceID: a.ResourceID, Key: a.Key} }

// objects returns a turn for a target that is asked about its objects.
func (h *health) objects(reporter driver.ObjectHealthReporter) func(context.Context, []store.TargetHealthWantedRow) (time.Duration, error) {
	return func(ctx context.Context, rows []store.TargetHealthWantedRow) (again time.Duration, err error) {
		again = soon()
		rounds := make(map[int64]*round, len(rows))
		for _, row := range rows {
			r := h.rounds[row.OperationID]
			if r == nil {
				r = &round{}
			}
			rounds[row.OperationID] = r
			if !row.Due || time.Now().Before(r.next) {
				continue
			}
			more, err := h.turn(ctx, reporter, row, r)
			if err != nil || ctx.Err() != nil {
				return 0, err
			}
			if more {
				again = 0 // others have their turns in between
			} else {
				r.next = time.Now().Add(healthEvery / 2)
			}
		}
		h.rounds = rounds
		return again, nil
	}
}

// turn asks about what is left of a page and records the answers. more: there is something to ask at once.
func (h *health) turn(ctx context.Context, reporter driver.ObjectHealthReporter, wait store.TargetHealthWantedRow, r *round) (more bool, err error) {
	if r.began.IsZero() {
		r.began, r.after, r.healthy = wait.Now, ObjectID{}, map[ObjectID]bool{}
	}
	page, err := h.page(ctx, wait.OperationID, r.after)
	if err != nil {
		return false, err
	}
	open := make([]asked, 0, len(page))
	for _, row := range page {
		if one := (asked{LedgerHealthPageRow: row}); !r.healthy[one.id()] {
			open = append(open, one)
		}
	}
	h.askAll(ctx, reporter, open)
	if ctx.Err() != nil {
		return false, nil // cut short: that says nothing
	}
	params, left := h.answers(wait, open)
	passed := left == 0 && params.Unhealthy == ""
	if passed && len(page) < healthRows {
		params.Began = &r.began
	}
	recorded, err := h.queries.ObjectHealthRecord(ctx, params)
	if err != nil {
		return false, fmt.Errorf("record the health of objects in target %s: %w", h.cfg.Name, database.Explain(err))
	}
	if !recorded {
		return false, nil // somebody holds the operation
	}
	h.tell(r.said, params.Unhealthy)
	r.said = params.Unhealthy
	r.learn(open, page, passed)
	return params.Unhealthy == "" && params.Began == nil, nil
}

// answers is what is to be recorded of a turn, but for what it says of all objects, and how many were not asked.
func (h *health) answers(wait store.TargetHealthWantedRow, open []asked) (params store.ObjectHealthRecordParams, left int) {
	params = store.ObjectHealthRecordParams{
		TargetID: h.cfg.Grant.ID, Owner: h.cfg.Instance, Term: h.cfg.Grant.Term, OperationID: wait.OperationID, Since: wait.Since, AskedAt: wait.Now,
		ResourceIds: []int32{}, Keys: []string{}, States: []string{}, Reasons: []string{},
	}
	for _, one := range open {
		switch one.State {
		case "":
			left++
			continue
		case driver.Healthy:
		default:
			params.Unhealthy = cmp.Or(params.Unhealthy, clip(fmt.Sprintf("%s %s: %s", one.Resource, one.Key, one.Reason)))
		}
		params.ResourceIds, params.Keys = append(params.ResourceIds, one.ResourceID), append(params.Keys, one.Key)
		params.States, params.Reasons = append(params.States, string(one.State)), append(params.Reasons, one.Reason)
	}
	return params, left
}

// learn notes answers. passed: all of the page are healthy.
func (r *round) learn(open []asked, page []store.LedgerHealthPageRow, passed bool) {
	for _, one := range open {
		if one.State == driver.Healthy {
			r.healthy[one.id()] = true
		}
	}
	switch {
	case !passed:
	case len(page) < healthRows:
		r.began = time.Time{} // the end; who waits for a newer answer has a round of its own
	default:
		last := page[len(page)-1]
		r.after, r.healthy = ObjectID{ResourceID: last.ResourceID, Key: last.Key}, map[ObjectID]bool{}
	}
}

// page reads objects of an operation, or of the target as a whole, as they are now: one that is deleted holds nobody up.
func (h *health) page(ctx context.Context, operation int64, after ObjectID) ([]store.LedgerHealthPageRow, error) {
	var page []store.LedgerHealthPageRow
	var err error
	if operation == 0 {
		page, err = h.queries.LedgerHealthPage(ctx, store.LedgerHealthPageParams{
			TargetID: h.cfg.Grant.ID, AfterResource: after.ResourceID, AfterKey: after.Key, PageRows: healthRows,
		})
	} else {
		var rows []store.TasksHealthPageRow
		rows, err = h.queries.TasksHealthPage(ctx, store.TasksHealthPageParams{
			OperationID: operation, AfterResource: after.ResourceID, AfterKey: after.Key, PageRows: healthRows,
		})
		for _, row := range rows {
			page = append(page, store.LedgerHealthPageRow(row))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read which objects of target %s must be healthy: %w", h.cfg.Name, database.Explain(err))
	}
	return page, nil
}

// askAll asks about each object, about as many at once as the target may have calls, and leaves the rest for the next turn
// when that takes long.
func (h *health) askAll(ctx context.Context, reporter driver.ObjectHealthReporter, open []asked) {
	began := time.Now()
	var group errgroup.Group
	group.SetLimit(h.cfg.Concurrency)
	for i := range open {
		if ctx.Err() != nil || time.Since(began) > healthEvery {
			break
		}
		group.Go(func() error {
			open[i].ObjectHealth = h.askObject(ctx, reporter, open[i].LedgerHealthPageRow)
			return nil
		})
	}
	_ = group.Wait()
}

// askObject asks about one object. What cannot be known is not healthy.
func (h *health) askObject(ctx context.Context, reporter driver.ObjectHealthReporter, row store.LedgerHealthPageRow) driver.ObjectHealth {
	var answer driver.ObjectHealth
	err := h.call(ctx, func(ctx context.Context) (err error) {
		answer, err = reporter.ObjectHealth(ctx, driver.Ref{
			Target: h.cfg.Name, Resource: row.Resource, Key: row.Key, Revision: row.DesiredRevision, Term: h.cfg.Grant.Term, Memory: row.Memory,
		})
		return err
	})
	switch {
	case err != nil:
		text := err.Error()
		if panicked, ok := errors.AsType[*driver.PanicError](err); ok {
			text = panicked.Short()
		}
		return driver.ObjectHealth{State: healthUnknown, Reason: clip("not known: " + cmp.Or(text, noReason))}
	case answer.State == driver.Healthy:
		return driver.ObjectHealth{State: driver.Healthy}
	case answer.State == driver.Progressing || answer.State == driver.Unhealthy:
		return driver.ObjectHealth{State: answer.State, Reason: cmp.Or(clip(answer.Reason), noReason)}
	}
	return driver.ObjectHealth{State: healthUnknown, Reason: clip(fmt.Sprintf("not known: the driver returned the state %q", answer.State))}
}
