package apply

import (
	"context"
	"fmt"
	"time"

	"github.com/pgreconciler/reconciler/internal/crash"
	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/loop"
	"github.com/pgreconciler/reconciler/internal/store"
)

const (
	// landedAgain is how often it looks whether the calls of an operation that is being stopped have ended.
	landedAgain = 20 * time.Millisecond
	// busyAgain and busyMost are the first and the longest pause before an owner asks again for its turn in an apply that somebody
	// holds: another owner for an instant, or a person in an open transaction.
	busyAgain = 5 * time.Millisecond
	busyMost  = 200 * time.Millisecond
	// taskRows is how many objects of an operation are put into the queue at once.
	taskRows = 500
)

// rollout takes the target's turns in applies.
type rollout struct {
	*core
	parking    *parking
	dispatcher *dispatcher
	settler    *settler
	later      *later
	turn       chan struct{} // ask whose turn it is in applies
}

// takeTurns does what applies ask of the target's owner: it opens gates whose turn has come, puts their objects into the
// queue, and says when nothing of an operation that is being stopped is under way any more.
func (r *rollout) takeTurns(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	pause := busyAgain
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.turn:
		case <-r.later.added:
		case <-timer.C:
		}
		again, busy, err := r.takeTurn(ctx)
		if err != nil {
			return err
		}
		r.part(loop.Turn).Succeeded()
		if !busy {
			pause = busyAgain
		} else {
			again = sooner(again, pause)
			pause = min(2*pause, busyMost)
		}
		timer.Stop()
		if again >= 0 {
			timer.Reset(again)
		}
	}
}

// sooner is the shorter of two pauses, of which a negative one has no end.
func sooner(a, b time.Duration) time.Duration {
	if a < 0 || b >= 0 && b < a {
		return b
	}
	return a
}

// takeTurn returns after which time to ask again; a negative one: when somebody says so. busy: an apply is held by somebody.
func (r *rollout) takeTurn(ctx context.Context) (again time.Duration, busy bool, err error) {
	known := r.orders.known()
	_, operations := known.Known()
	row, err := r.queries.OperationsClaim(ctx, store.OperationsClaimParams{
		TargetID: r.cfg.Grant.ID, Owner: r.cfg.Instance, Term: r.cfg.Grant.Term, Patience: inHandFor, Since: known.Since, Known: operations,
	})
	if err != nil {
		return 0, false, fmt.Errorf("ask for the turn of target %s in applies: %w", r.cfg.Name, database.Explain(err))
	}
	again = time.Duration(row.Again * float64(time.Second))
	landed, err := r.stop(ctx, row.StoppingIds)
	if err != nil {
		return 0, false, err
	}
	if !landed {
		again = sooner(again, landedAgain)
	}
	postponed, next := r.later.due(time.Now())
	again = sooner(again, next)
	for _, id := range append(row.OperationIds, postponed...) {
		crash.Point(crash.OperationClaimed)
		if err := r.enqueueTasks(ctx, id); err != nil {
			return 0, false, err
		}
	}
	return again, row.Busy, nil
}

// stop confirms those operations of which nothing is under way any more, and reports whether these are all. Their gates
// are closed in the database: whoever looks from now on finds them closed. Calls that were decided on before are not begun,
// and those that have begun are waited for.
func (r *rollout) stop(ctx context.Context, ids []int64) (all bool, err error) {
	closed := make(map[int64]bool, len(ids))
	for _, id := range ids {
		closed[id] = true
	}
	r.orders.closed.Store(&closed)
	if len(ids) == 0 {
		return true, nil
	}
	r.dispatcher.awaitReads() // what was decided on when the gates closed is handed out
	var landed []int64
	for _, id := range ids {
		if r.queue.FlyingFor(id) == 0 {
			landed = append(landed, id)
		}
	}
	if len(landed) == 0 {
		return false, nil
	}
	crash.Point(crash.BeforeConfirm)
	err = r.queries.StopsConfirm(ctx, store.StopsConfirmParams{TargetID: r.cfg.Grant.ID, Owner: r.cfg.Instance, Term: r.cfg.Grant.Term, OperationIds: landed})
	if database.Code(err) == lockNotAvailable {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("confirm that target %s has stopped: %w", r.cfg.Name, database.Explain(err))
	}
	return len(landed) == len(ids), nil
}

// enqueueTasks puts the objects of an operation into the queue, without an event: theirs may have come and gone while
// they were held, or a sync stood for them. Its deletes are counted before the first of them, as those of a batch.
func (r *rollout) enqueueTasks(ctx context.Context, operation int64) error {
	params := store.TasksPageParams{OperationID: operation, PageRows: taskRows}
	var batch *Run
	defer func() { r.parking.endBatch(ctx, &batch) }()
	for {
		rows, err := r.queries.TasksPage(ctx, params)
		if err != nil {
			return fmt.Errorf("read what target %s has to do for an apply: %w", r.cfg.Name, err)
		}
		var gone []result
		items := make([]*Item, 0, len(rows))
		for _, row := range rows {
			id := ObjectID{ResourceID: row.ResourceID, Key: row.Key}
			if !row.Tracked {
				gone = append(gone, result{item: &Item{ObjectID: id}, operation: operation, verdict: verdictFailed, cause: "its resource is not tracked any more"})
				continue
			}
			items = append(items, &Item{ObjectID: id, Lane: LaneSync})
		}
		if err := r.parking.countDeletes(ctx, items, len(rows) == taskRows, &batch); err != nil {
			return err
		}
		for _, it := range items {
			if err := r.queue.Push(ctx, it); err != nil {
				return err
			}
		}
		if len(gone) > 0 {
			if err := r.settler.record(ctx, store.SettleParams{TargetID: r.cfg.Grant.ID, Owner: r.cfg.Instance, Term: r.cfg.Grant.Term}, gone); err != nil {
				return err
			}
		}
		if len(rows) < taskRows {
			return nil
		}
		last := rows[len(rows)-1]
		params.AfterResource, params.AfterKey = last.ResourceID, last.Key
	}
}
