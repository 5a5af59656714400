package apply

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/pgreconciler/reconciler/internal/crash"
	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/desired"
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
	// laterAgain is the pause after which tasks are recorded that could not be, because somebody held their apply.
	laterAgain = time.Second
	// lockNotAvailable is the SQLSTATE of a lock that was not to be had in time.
	lockNotAvailable = "55P03"
	// taskRows is how many objects of an operation are put into the queue at once.
	taskRows = 500
)

// What a task comes to; values of reconciler.settle_tasks().
const (
	verdictDone    = "done"
	verdictFailed  = "failed"  // for good
	verdictAttempt = "attempt" // it will be tried again, if its operation has attempts left
)

// takeTurns does what applies ask of the target's owner: it opens gates whose turn has come, puts their objects into the
// queue, and says when nothing of an operation that is being stopped is under way any more.
func (o *Owner) takeTurns(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	pause := busyAgain
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-o.turn:
		case <-timer.C:
		}
		again, busy, err := o.takeTurn(ctx)
		if err != nil {
			return err
		}
		o.part(loop.Turn).Succeeded()
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
func (o *Owner) takeTurn(ctx context.Context) (again time.Duration, busy bool, err error) {
	known := o.Gates()
	_, operations := known.Known()
	row, err := o.queries.OperationsClaim(ctx, store.OperationsClaimParams{
		TargetID: o.cfg.Grant.ID, Owner: o.cfg.Instance, Term: o.cfg.Grant.Term, Patience: inHandFor, Since: known.Since, Known: operations,
	})
	if err != nil {
		return 0, false, fmt.Errorf("ask for the turn of target %s in applies: %w", o.cfg.Name, database.Explain(err))
	}
	again = time.Duration(row.Again * float64(time.Second))
	landed, err := o.stop(ctx, row.StoppingIds)
	if err != nil {
		return 0, false, err
	}
	if !landed {
		again = sooner(again, landedAgain)
	}
	postponed, next := o.later.due(time.Now())
	again = sooner(again, next)
	for _, id := range append(row.OperationIds, postponed...) {
		crash.Point(crash.OperationClaimed)
		if err := o.enqueueTasks(ctx, id); err != nil {
			return 0, false, err
		}
	}
	return again, row.Busy, nil
}

// stop confirms those operations of which nothing is under way any more, and reports whether these are all. Their gates
// are closed in the database: whoever looks from now on finds them closed. Calls that were decided on before are not begun,
// and those that have begun are waited for.
func (o *Owner) stop(ctx context.Context, ids []int64) (all bool, err error) {
	closed := make(map[int64]bool, len(ids))
	for _, id := range ids {
		closed[id] = true
	}
	o.closed.Store(&closed)
	if len(ids) == 0 {
		return true, nil
	}
	o.awaitReads() // what was decided on when the gates closed is handed out
	var landed []int64
	for _, id := range ids {
		if o.queue.flyingFor(id) == 0 {
			landed = append(landed, id)
		}
	}
	if len(landed) == 0 {
		return false, nil
	}
	crash.Point(crash.BeforeConfirm)
	err = o.queries.StopsConfirm(ctx, store.StopsConfirmParams{TargetID: o.cfg.Grant.ID, Owner: o.cfg.Instance, Term: o.cfg.Grant.Term, OperationIds: landed})
	if database.Code(err) == lockNotAvailable {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("confirm that target %s has stopped: %w", o.cfg.Name, database.Explain(err))
	}
	return len(landed) == len(ids), nil
}

// closing reports whether an operation is being stopped.
func (o *Owner) closing(operation int64) bool {
	closed := o.closed.Load()
	return closed != nil && operation != 0 && (*closed)[operation]
}

// enqueueTasks puts the objects of an operation into the queue, without an event: theirs may have come and gone while
// they were held, or a sync stood for them. Its deletes are counted before the first of them, as those of a batch.
func (o *Owner) enqueueTasks(ctx context.Context, operation int64) error {
	params := store.TasksPageParams{OperationID: operation, PageRows: taskRows}
	var batch *Run
	defer func() { o.endBatch(ctx, &batch) }()
	for {
		rows, err := o.queries.TasksPage(ctx, params)
		if err != nil {
			return fmt.Errorf("read what target %s has to do for an apply: %w", o.cfg.Name, err)
		}
		var gone taskResults
		items := make([]*Item, 0, len(rows))
		for _, row := range rows {
			id := ObjectID{ResourceID: row.ResourceID, Key: row.Key}
			if !row.Tracked {
				gone.add(result{item: &Item{ObjectID: id}, operation: operation, verdict: verdictFailed, cause: "its resource is not tracked any more"})
				continue
			}
			items = append(items, &Item{ObjectID: id, Lane: LaneSync})
		}
		if err := o.countDeletes(ctx, items, len(rows) == taskRows, &batch); err != nil {
			return err
		}
		for _, it := range items {
			if err := o.queue.push(ctx, it); err != nil {
				return err
			}
		}
		if len(gone.keys) > 0 {
			if err := o.record(ctx, store.SettleParams{TargetID: o.cfg.Grant.ID, Owner: o.cfg.Instance, Term: o.cfg.Grant.Term}, gone); err != nil {
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

// operation is the one that what is done about the object belongs to; 0: none, or one whose gate is closed.
func (l look) operation() int64 {
	if l.row.Task == nil || !l.row.Task.Open {
		return 0
	}
	return l.row.Task.Operation
}

// verdict says what a look at an object means for the task that governs it: the one that was read with the row, so that
// a task of a later change is not taken for done.
func (l look) verdict(rec *record) (verdict, cause string) {
	if l.row.Task == nil || !l.row.Task.Open {
		return "", ""
	}
	e := l.row.Ledger
	switch {
	case rec != nil && rec.gone, rec == nil && e == nil:
		return verdictDone, ""
	case rec != nil && rec.state == desired.Applied, rec == nil && e.State == desired.Applied:
		return verdictDone, ""
	case rec != nil && rec.state == desired.Blocked:
		return verdictFailed, rec.err
	case rec == nil && e.State == desired.Blocked:
		if e.LastError != nil {
			cause = *e.LastError
		}
		return verdictFailed, cause
	case rec != nil && rec.state == desired.Failing && rec.called:
		return verdictAttempt, rec.err
	}
	return "", ""
}

// taskResults are what came of objects that a task governs.
type taskResults struct {
	operations     []int64
	resources      []int32
	keys           []string
	verdicts, errs []string
}

func (t *taskResults) add(r result) {
	if r.verdict == "" {
		return
	}
	t.operations = append(t.operations, r.operation)
	t.resources = append(t.resources, r.item.ResourceID)
	t.keys = append(t.keys, r.item.Key)
	t.verdicts = append(t.verdicts, r.verdict)
	t.errs = append(t.errs, r.cause)
}

// without returns the results but for those of some operations.
func (t taskResults) without(operations map[int64]time.Time) (rest taskResults) {
	for i, operation := range t.operations {
		if _, is := operations[operation]; is {
			continue
		}
		rest.operations = append(rest.operations, operation)
		rest.resources = append(rest.resources, t.resources[i])
		rest.keys = append(rest.keys, t.keys[i])
		rest.verdicts = append(rest.verdicts, t.verdicts[i])
		rest.errs = append(rest.errs, t.errs[i])
	}
	return rest
}

// later are operations whose tasks are not recorded for a while, because somebody holds their apply: a person, in an open
// transaction. The target goes on without them. Their objects are looked at again then, and found as they should be.
type later struct {
	mu    sync.Mutex
	until map[int64]time.Time
}

// rest takes away the results that are not recorded now.
func (l *later) rest(t taskResults) taskResults {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.until) == 0 {
		return t
	}
	return t.without(l.until)
}

func (l *later) add(operations []int64, until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.until == nil {
		l.until = map[int64]time.Time{}
	}
	for _, operation := range operations {
		l.until[operation] = until
	}
}

// due takes out the operations whose time has come, and says in which time the next one's comes; a negative one: never.
func (l *later) due(now time.Time) (operations []int64, next time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	next = -1
	for operation, until := range l.until {
		wait := until.Sub(now)
		switch {
		case wait <= 0:
			operations = append(operations, operation)
			delete(l.until, operation)
		case next < 0 || wait < next:
			next = wait
		}
	}
	slices.Sort(operations)
	return operations, next
}

// record writes results, and what they mean for applies, in one statement. Most have no meaning for any.
func (o *Owner) record(ctx context.Context, p store.SettleParams, tasks taskResults) error {
	tasks = o.later.rest(tasks)
	if len(tasks.keys) == 0 {
		return o.queries.Settle(ctx, p) //nolint:wrapcheck // by the caller
	}
	err := o.settleTasks(ctx, p, tasks)
	if database.Code(err) == lockNotAvailable {
		o.later.add(tasks.operations, time.Now().Add(laterAgain))
		signal(o.turn)
		return o.queries.Settle(ctx, p) //nolint:wrapcheck // by the caller
	}
	return err
}

func (o *Owner) settleTasks(ctx context.Context, p store.SettleParams, tasks taskResults) error {
	came, err := o.queries.SettleTasks(ctx, store.SettleTasksParams{
		TargetID: p.TargetID, Owner: p.Owner, Term: p.Term,
		ResourceIds: p.ResourceIds, Keys: p.Keys, States: p.States, Wanted: p.Wanted, Present: p.Present, DesiredRevisions: p.DesiredRevisions,
		AppliedRevisions: p.AppliedRevisions, AppliedHashes: p.AppliedHashes, FailedHashes: p.FailedHashes, Attempts: p.Attempts, Errors: p.Errors,
		HeldBy: p.HeldBy, Approved: p.Approved, Delays: p.Delays, Called: p.Called, Matches: p.Matches, Generations: p.Generations, GoneResourceIds: p.GoneResourceIds, GoneKeys: p.GoneKeys,
		CursorRevision: p.CursorRevision, CursorSnapshot: p.CursorSnapshot, BatchRevision: p.BatchRevision, BatchSnapshot: p.BatchSnapshot, BatchXid: p.BatchXid,
		BatchSeq: p.BatchSeq, CountGuard: p.CountGuard, Passed: p.Passed, PassedOf: p.PassedOf, GuardWindow: p.GuardWindow, EndedCalls: p.EndedCalls,
		TaskOperationIds: tasks.operations, TaskResourceIds: tasks.resources, TaskKeys: tasks.keys, TaskVerdicts: tasks.verdicts, TaskErrors: tasks.errs,
	})
	if err != nil {
		return err //nolint:wrapcheck // by the caller
	}
	crash.Point(crash.TasksRecorded)
	o.cfg.Metrics.ApplyTasks.WithLabelValues(o.cfg.Name, "completed").Add(float64(came.Completed))
	o.cfg.Metrics.ApplyTasks.WithLabelValues(o.cfg.Name, "failed").Add(float64(came.Failed))
	return nil
}
