package apply

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pgreconciler/reconciler/internal/crash"
	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/desired"
	"github.com/pgreconciler/reconciler/internal/loop"
	"github.com/pgreconciler/reconciler/internal/store"
)

const (
	// settleRows bounds one write to the ledger, and settleBytes the memories in it, beside the last.
	settleRows  = 1000
	settleBytes = 4 << 20
	// settleEvery is how often the ledger is written, unless objects wait for what is written: a write costs as much as
	// many of its rows, and its processor time is the writers' too.
	settleEvery = 5 * time.Millisecond
	// inHandFor is when an object that was in hand for so long is looked at once more.
	inHandFor = 30 * time.Second
	// cursorDelay is how long a move of the cursor waits for results to go with it.
	cursorDelay = 50 * time.Millisecond
	// cursorEvery is how often the cursor is written while changes follow each other. Each move leaves a dead row behind, and
	// what a crash has read again for it costs a look.
	cursorEvery = 200 * time.Millisecond
)

// settler writes results and the cursor: the first result after a pause at once, those that follow together. What arrives
// during a write goes with the next.
type settler struct {
	*core
	retrier *retrier
	tracker *tracker
	firsts  *firstCalls
	later   *later // operations whose tasks could not be recorded
	settled chan result
	know    chan chan error // the ledger is to know what is called for
	recount chan struct{}   // receives a value when the guard must count the objects again
	wrote   chan struct{}   // closed when no more results are written

	at    time.Time         // when results were written last
	moved time.Time         // when the cursor was
	late  map[ObjectID]bool // objects that were recorded as in hand before their result came
}

func newSettler(c *core, retrier *retrier, tracker *tracker, firsts *firstCalls, later *later) *settler {
	return &settler{
		core: c, retrier: retrier, tracker: tracker, firsts: firsts, later: later,
		settled: make(chan result, settleRows), know: make(chan chan error), recount: make(chan struct{}, 1), wrote: make(chan struct{}), late: map[ObjectID]bool{},
	}
}

// run writes until its input is closed; then it writes what is left and returns.
func (s *settler) run(ctx context.Context) error {
	defer close(s.wrote)
	// The timer runs while pages are open, however many results arrive meanwhile.
	timer, armed := time.NewTimer(cursorDelay), true
	defer timer.Stop()
	for open := true; open; {
		var batch []result
		select {
		case r, ok := <-s.settled:
			if open = ok; ok {
				batch = append(batch, r)
				s.gather()
			}
		case <-s.tracker.opened:
			if !armed {
				armed = true
				timer.Reset(cursorDelay)
			}
			continue
		case done := <-s.know:
			err := s.recordInHand(ctx, s.firsts.open(), inHandFor)
			if done <- err; err != nil {
				return err
			}
			continue
		case <-s.recount: // here, where no result is written meanwhile
			objects, err := s.queries.LedgerPresent(ctx, s.cfg.Grant.ID)
			if err != nil {
				return fmt.Errorf("count the objects of target %s: %w", s.cfg.Name, database.Explain(err))
			}
			s.guard.Recount(objects)
			continue
		case <-timer.C:
			armed = false
			if err := s.recordLate(ctx); err != nil {
				return err
			}
		}
		batch, open = s.fill(batch, open)
		s.part(loop.Settle).Began()
		if err := s.write(ctx, batch, !open); err != nil {
			return err
		}
		s.part(loop.Settle).Succeeded()
		if !armed && s.tracker.busy() {
			armed = true
			timer.Reset(cursorDelay)
		}
	}
	return nil
}

// recordLate gives objects that hold the cursor for too long their ledger row. While the target is down nothing settles
// soon: then the cursor stays and the outbox is the buffer.
func (s *settler) recordLate(ctx context.Context) error {
	if s.breaker.IsOpen() {
		return nil
	}
	late, release := s.tracker.late(time.Now())
	if release == nil {
		return nil
	}
	if err := s.recordInHand(ctx, late, inHandFor); err != nil {
		return err
	}
	crash.Point(crash.LateRecorded)
	for _, id := range late {
		s.late[id] = true
	}
	release()
	return nil
}

// recordInHand gives objects their ledger row: pending, to be looked at again after a while.
func (s *settler) recordInHand(ctx context.Context, ids []ObjectID, again time.Duration) error {
	for chunk := range slices.Chunk(ids, settleRows) {
		params := store.LedgerInHandParams{TargetID: s.cfg.Grant.ID, Owner: s.cfg.Instance, Term: s.cfg.Grant.Term, Patience: again}
		for _, id := range chunk {
			params.ResourceIds = append(params.ResourceIds, id.ResourceID)
			params.Keys = append(params.Keys, ledgerKey(id.Key))
			params.Called = append(params.Called, s.firsts.has(id))
		}
		if err := s.queries.LedgerInHand(ctx, params); err != nil {
			return fmt.Errorf("record what target %s has in hand: %w", s.cfg.Name, database.Explain(err))
		}
	}
	return nil
}

// knowCalls returns when the ledger knows every object that is called for and was handed out before.
func (s *settler) knowCalls(ctx context.Context) error {
	done := make(chan error, 1)
	select {
	case s.know <- done: // who writes results does it, so that none is overwritten
		return <-done
	case <-s.wrote:
		return ErrRunCut
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// settle hands a result to the settler.
func (s *settler) settle(ctx context.Context, l look, rec *record) error {
	r := result{item: l.item, record: rec}
	r.verdict, r.cause = l.verdict(rec)
	r.operation, r.spec = l.operation(), l.spec()
	if e := l.row.Ledger; e != nil {
		r.before, r.guarded = e.Present, e.HeldBy != nil && *e.HeldBy == heldByGuard
	}
	select {
	case s.settled <- r:
		return nil
	default:
		signal(s.queue.Crowded) // what has come together is a full batch
	}
	select {
	case s.settled <- r:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("record a result of target %s: %w", s.cfg.Name, context.Cause(ctx))
	}
}

func (s *settler) settleAll(ctx context.Context, items []*Item, rec *record) error {
	for _, it := range items {
		if err := s.settle(ctx, look{item: it}, rec); err != nil {
			return err
		}
	}
	return nil
}

// gather lets results come together: until the next write is due, or objects wait for this one.
func (s *settler) gather() {
	wait := time.Until(s.at.Add(settleEvery))
	if wait <= 0 {
		return
	}
	due := time.NewTimer(wait)
	defer due.Stop()
	select {
	case <-due.C:
	case <-s.queue.Crowded:
	}
}

// fill takes what has already arrived.
func (s *settler) fill(batch []result, open bool) ([]result, bool) {
	bytes := 0
	for open && len(batch) < settleRows && bytes < settleBytes {
		select {
		case r, ok := <-s.settled:
			if !ok {
				return batch, false
			}
			batch = append(batch, r)
			if r.record != nil {
				bytes += len(r.record.memory)
			}
		default:
			return batch, true
		}
	}
	return batch, open
}

// write records a batch. Its pages count as settled before, so that the cursor moves in the same transaction: if that
// fails, the owner starts again from what the database says. After the last one the cursor stands where it can.
func (s *settler) write(ctx context.Context, batch []result, last bool) error {
	params := store.SettleParams{TargetID: s.cfg.Grant.ID, Owner: s.cfg.Instance, Term: s.cfg.Grant.Term, GuardWindow: s.cfg.Guard.Window.Seconds()}
	params.Passed, params.PassedOf = s.guard.Write()
	var tasks []result // that a task governs
	var objects int64
	soonest := -1.0 // seconds until the first of the objects is due; negative: none will be
	for _, r := range batch {
		s.tracker.settle(r.item.ObjectID, r.item.Payload.pages)
		s.firsts.settles(r.item)
		if r.verdict != "" {
			tasks = append(tasks, r)
		}
		if r.record == nil {
			continue
		}
		if s.late[r.item.ObjectID] && s.queue.GoesOn(r.item) {
			r.record = r.record.inHand()
		}
		addRecord(&params, r)
		params.CountGuard = params.CountGuard || r.guarded || r.record.heldBy == heldByGuard
		objects += presence(r)
		if d := r.record.delay; !r.record.gone && d >= 0 && (soonest < 0 || d < soonest) {
			soonest = d
		}
	}
	cur, moved := s.cursor(last)
	if moved {
		addCursor(&params, cur)
	}
	params.EndedCalls = s.firsts.over()
	if rows := len(params.Results) + len(params.GoneKeys); rows > 0 || moved || len(tasks) > 0 || params.Passed > 0 || len(params.EndedCalls) > 0 {
		crash.Point(crash.BeforeSettle)
		if err := s.record(ctx, params, tasks); err != nil {
			return fmt.Errorf("record results of target %s: %w", s.cfg.Name, database.Explain(err))
		}
		crash.Point(crash.AfterSettle)
		s.at = time.Now()
		s.cfg.Metrics.LedgerWrites.WithLabelValues(s.cfg.Name).Add(float64(rows))
	}
	if moved {
		s.cfg.Metrics.Cursor.WithLabelValues(s.cfg.Name).Set(float64(cur.base.Revision))
	}
	s.guard.Count(objects)
	if soonest >= 0 {
		s.retrier.alarm.set(time.Now().Add(time.Duration(soonest * float64(time.Second))))
	}
	return s.finish(ctx, batch)
}

// record writes results, and what they mean for applies, in one statement. Most have no meaning for any. What an apply that
// somebody holds is to know is recorded later.
func (s *settler) record(ctx context.Context, p store.SettleParams, tasks []result) error {
	alone := p
	for _, r := range s.later.rest(tasks) {
		p.TaskOperationIds, p.TaskResourceIds, p.TaskKeys = append(p.TaskOperationIds, r.operation), append(p.TaskResourceIds, r.item.ResourceID), append(p.TaskKeys, r.item.Key)
		p.TaskVerdicts, p.TaskErrors, p.TaskSpecs = append(p.TaskVerdicts, r.verdict), append(p.TaskErrors, r.cause), append(p.TaskSpecs, r.spec)
	}
	came, err := s.queries.Settle(ctx, p)
	if len(p.TaskKeys) > 0 && database.Code(err) == lockNotAvailable {
		s.later.add(p.TaskOperationIds, time.Now().Add(laterAgain))
		return s.record(ctx, alone, nil)
	}
	if err != nil || len(p.TaskKeys) == 0 {
		return err //nolint:wrapcheck // by the caller
	}
	crash.Point(crash.TasksRecorded)
	s.cfg.Metrics.ApplyTasks.WithLabelValues(s.cfg.Name, "completed").Add(float64(came.Completed))
	s.cfg.Metrics.ApplyTasks.WithLabelValues(s.cfg.Name, "failed").Add(float64(came.Failed))
	return nil
}

// cursor returns the cursor when it is to be written: after a pause at once, then every cursorEvery. Until it is taken the
// tracker is busy, and the timer comes.
func (s *settler) cursor(last bool) (cursor, bool) {
	if !last && time.Since(s.moved) < cursorEvery {
		return cursor{}, false
	}
	cur, moved := s.tracker.take()
	if moved {
		s.moved = time.Now()
	}
	return cur, moved
}

// inHand is what the ledger says of an object that was recorded as in hand and is to be looked at once more, for a change that the
// cursor may have passed: not yet that all is well. Its protection is that of the row before the change, so the ledger's stays.
func (r *record) inHand() *record {
	in := *r
	switch {
	case r.gone:
		in = record{state: desired.Pending, wanted: true, delay: inHandFor.Seconds(), called: r.called, generation: -1}
	case r.state == desired.Applied:
		in.state, in.delay = desired.Pending, inHandFor.Seconds()
	}
	// A delete that passed the guard unprotected is not approved if it has become protected.
	in.earlier, in.approved = true, r.approved && r.protected
	return &in
}

// finish ends the flight of what was recorded. Objects of joined resources are looked at once more if their row is
// gone by now: a change of a base table between reading the row and writing the ledger could find neither. So are those
// with nothing to record that were recorded as in hand after they were read: that was too early to see it.
func (s *settler) finish(ctx context.Context, batch []result) error {
	vanished, err := s.vanished(ctx, batch)
	if err != nil {
		return err
	}
	for _, r := range batch {
		if vanished[r.item.ObjectID] || r.record == nil && s.late[r.item.ObjectID] {
			_, _ = s.queue.TryPush(&Item{ObjectID: r.item.ObjectID}) // has room: it is in flight
		}
		delete(s.late, r.item.ObjectID)
		s.queue.Done(r.item)
		if r.item.Payload.recheck {
			s.rechecks.Ended(r.item.ObjectID)
		}
		for _, run := range r.item.Payload.runs {
			run.done(true)
		}
	}
	return nil
}

// vanished returns the recorded objects of joined resources whose row is gone by now.
func (s *settler) vanished(ctx context.Context, batch []result) (map[ObjectID]bool, error) {
	keys := map[int32][]string{}
	for _, r := range batch {
		if r.record == nil || r.record.gone || !r.record.wanted {
			continue
		}
		if resource, ok := s.cfg.Catalog.ByID(r.item.ResourceID); ok && resource.Joined() {
			keys[r.item.ResourceID] = append(keys[r.item.ResourceID], r.item.Key)
		}
	}
	gone := map[ObjectID]bool{}
	for id, group := range keys {
		resource, ok := s.cfg.Catalog.ByID(id)
		if !ok {
			continue
		}
		missing, err := resource.Missing(ctx, s.rows, s.cfg.Name, group)
		if err != nil && database.IsUnavailable(err) {
			return nil, err
		}
		for _, key := range missing {
			gone[ObjectID{ResourceID: id, Key: key}] = true
		}
	}
	return gone, nil
}

// presence is how a result changes the number of objects that the target has.
func presence(r result) int64 {
	after := !r.record.gone && r.record.present
	switch {
	case after && !r.before:
		return 1
	case !after && r.before:
		return -1
	}
	return 0
}

func addRecord(p *store.SettleParams, r result) {
	if r.record.gone {
		p.GoneResourceIds = append(p.GoneResourceIds, r.item.ResourceID)
		p.GoneKeys = append(p.GoneKeys, ledgerKey(r.item.Key))
		return
	}
	p.Results = append(p.Results, r.row())
}

// row is a result as a value of the type reconciler.ledger_result, as text: for the binary format each connection would have to look
// the type up.
func (r result) row() string {
	rec, protected := r.record, ""
	if !rec.earlier {
		protected = strconv.FormatBool(rec.protected)
	}
	return fmt.Sprintf(`(%d,"%s",%s,%t,%t,%d,%d,%s,%s,%d,%s,%s,%t,%s,%g,%t,%s,%d,%s)`,
		r.item.ResourceID, fieldEscapes.Replace(ledgerKey(r.item.Key)), rec.state, rec.wanted, rec.present, rec.desiredRevision, rec.appliedRevision,
		byteaField(rec.appliedHash), byteaField(rec.failedHash), rec.attempts, textField(rec.err), rec.heldBy, rec.approved, protected,
		rec.delay, rec.called, textField(rec.match), rec.generation, byteaField(rec.memory))
}

var fieldEscapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

// textField is NULL for an empty text.
func textField(s string) string {
	if s == "" {
		return ""
	}
	return `"` + fieldEscapes.Replace(s) + `"`
}

func byteaField(b []byte) string {
	if b == nil {
		return "" // NULL
	}
	return `\\x` + hex.EncodeToString(b)
}

func addCursor(p *store.SettleParams, c cursor) {
	p.CursorRevision, p.CursorSnapshot = &c.base.Revision, &c.base.Snapshot
	if c.batch.Revision > 0 {
		p.BatchRevision, p.BatchSnapshot, p.BatchXid, p.BatchSeq = &c.batch.Revision, &c.batch.Snapshot, &c.at.Xid, &c.at.Seq
	}
}
