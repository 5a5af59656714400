package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pgreconciler/reconciler/internal/crash"
	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/desired"
	"github.com/pgreconciler/reconciler/internal/loop"
	"github.com/pgreconciler/reconciler/internal/outbox"
	"github.com/pgreconciler/reconciler/internal/store"
)

const (
	// A target that few events of each page are for has them gathered from the pages of a batch: it would read rows and record
	// results for each page anew. gatherRows is how many objects are enough, gatherFor the longest that they wait for that.
	gatherRows = 200
	gatherFor  = 100 * time.Millisecond
)

// read follows the outbox from the target's cursor and puts what it finds on the live lane. A full queue stops it.
func (o *Owner) read(ctx context.Context) error {
	cur := o.start
	defer o.brought.forget()
	for {
		latest, wake := o.cfg.Feed.Latest()
		if cur.base.Revision == 0 && latest.Revision > 0 {
			next, err := o.startCursor(ctx, latest)
			if err != nil {
				return err
			}
			cur = next
		}
		if cur.batch.Revision == 0 && !cur.before(latest) {
			o.part(loop.Read).Succeeded()
			select {
			case <-wake:
				continue
			case <-ctx.Done():
				return nil
			}
		}
		if cur.batch.Revision == 0 {
			cur.batch = latest
		}
		next, err := o.readPage(ctx, cur)
		if errors.Is(err, outbox.ErrBelowFloor) {
			o.cfg.Logger.Warn("cursor_below_floor", "target", o.cfg.Name, "revision", cur.base.Revision, "effect", "a full sync makes up for it")
			o.endBatch(ctx, &o.batch) // what it has parked must not wait for a last page that nobody reads
			o.brought.forget()
			next, err = o.raiseCursor(ctx, cur)
		}
		if err != nil {
			return err
		}
		cur = next
		o.part(loop.Read).Succeeded()
	}
}

// before says whether there is something to read up to a tick. A cursor that was raised to the floor stands at its
// revision, and before its snapshot.
func (c cursor) before(latest outbox.Tick) bool {
	return latest.Revision > c.base.Revision || latest.Revision == c.base.Revision && latest.Snapshot != c.base.Snapshot
}

// startCursor gives the target its first cursor. What came before it is the work of the sync that is asked for with it.
func (o *Owner) startCursor(ctx context.Context, tick outbox.Tick) (cursor, error) {
	err := o.queries.TargetCursorStart(ctx, store.TargetCursorStartParams{
		TargetID: o.cfg.Grant.ID, Owner: o.cfg.Instance, Term: o.cfg.Grant.Term, Revision: tick.Revision, Snapshot: tick.Snapshot,
	})
	if err != nil {
		return cursor{}, fmt.Errorf("start the cursor of target %s: %w", o.cfg.Name, database.Explain(err))
	}
	crash.Point(crash.CursorStarted)
	signal(o.wantSync)
	return cursor{base: tick}, nil
}

// raiseCursor goes on below the floor: the sync that is asked for makes up for the changes that retention dropped; those
// that are left are read, from where the cursor stands. Pages that were read before may still be open, and record a cursor
// below the floor once more when they are settled; the next page comes after them.
func (o *Owner) raiseCursor(ctx context.Context, cur cursor) (cursor, error) {
	revision, err := o.queries.TargetCursorRaise(ctx, store.TargetCursorRaiseParams{TargetID: o.cfg.Grant.ID, Owner: o.cfg.Instance, Term: o.cfg.Grant.Term})
	if err != nil {
		return cursor{}, fmt.Errorf("raise the cursor of target %s to the floor: %w", o.cfg.Name, database.Explain(err))
	}
	signal(o.wantSync)
	if o.replay > 0 {
		o.replay = max(o.replay, revision+1)
	}
	return cursor{base: outbox.Tick{Revision: revision, Snapshot: cur.base.Snapshot}}, nil
}

// readPage hands out one page, or several with few events for the target, and returns the place after it.
func (o *Owner) readPage(ctx context.Context, cur cursor) (cursor, error) {
	next, more, found := cur, true, newFinds()
	for more && !found.enough(time.Now()) {
		events, err := o.cfg.Feed.Read(ctx, next.base, next.batch, next.at)
		if err != nil {
			return cur, err
		}
		o.collect(events, cur, found)
		if more = events.More; more {
			next = cursor{base: cur.base, batch: cur.batch, at: events.Last}
		} else {
			next = cursor{base: cur.batch}
		}
	}
	for resourceID := range found.whole {
		if err := o.resync(ctx, resourceID); err != nil {
			return cur, err
		}
		signal(o.wantSync)
	}
	if err := o.countDeletes(ctx, found.items, more, &o.batch); err != nil {
		return cur, err
	}
	page, err := o.tracker.open(ctx, next)
	if err != nil {
		return cur, err
	}
	crash.Point(crash.BeforeHandOut)
	for i, it := range found.items {
		if i > 0 {
			crash.Point(crash.HandingOut)
		}
		o.tracker.add(page, it.ObjectID)
		it.pages = []*span{page}
		if err := o.queue.push(ctx, it); err != nil {
			return cur, err
		}
	}
	o.tracker.close(page)
	if !more {
		o.endBatch(ctx, &o.batch)
		o.brought.forget()
	}
	return next, nil
}

// countDeletes looks ahead at a page that has more objects than deletes may pass: if it would delete too much, none
// of it is deleted. In a batch of several pages the deletes are parked until the last page has been counted; more: this
// is not the last, and batch are those that are parked, nil before the first.
func (o *Owner) countDeletes(ctx context.Context, items []*Item, more bool, batch **Run) error {
	several := more || *batch != nil
	if !several && int64(len(items)) <= o.guard.remaining() {
		return nil
	}
	byResource := map[int32][]*Item{}
	for _, it := range items {
		byResource[it.ResourceID] = append(byResource[it.ResourceID], it)
	}
	var doomed []*Item
	for id, group := range byResource {
		found, err := o.doomed(ctx, id, group)
		if err != nil {
			return err
		}
		doomed = append(doomed, found...)
	}
	if len(doomed) == 0 {
		return nil
	}
	holder := heldByGuard
	if several {
		holder = heldByBatch
		if *batch == nil {
			*batch = &Run{}
		}
	} else if int64(len(doomed)) <= o.guard.remaining() {
		return nil
	}
	for _, it := range doomed {
		it.park = holder
		if several {
			(*batch).add()
			it.runs = append(it.runs, *batch)
		}
	}
	if holder == heldByGuard {
		o.tellHeld(int64(len(doomed)))
	}
	return nil
}

// doomed returns the objects that a look at them now would delete, without those that are being deleted: these have passed the
// guard. Of a resource that cannot be read it returns none: rows that cannot be read are no reason to delete, and the
// dispatcher deals with the resource.
func (o *Owner) doomed(ctx context.Context, resourceID int32, items []*Item) ([]*Item, error) {
	resource, err := o.resource(ctx, resourceID)
	if err != nil || resource == nil {
		return nil, err
	}
	var doomed []*Item
	// Asked before the ledger is read: of one that landed in between the row is gone.
	for chunk := range slices.Chunk(o.queue.notDeleted(items), settleRows) {
		rows, err := o.unwanted(ctx, resource, chunk)
		if ctx.Err() != nil || database.IsUnavailable(err) {
			return nil, err
		}
		if err != nil {
			return nil, nil
		}
		for _, it := range chunk {
			row, ok := rows[it.Key]
			if ok && !row.Wanted && row.Err == nil && row.Ledger != nil && row.Ledger.Present && !row.Ledger.Approved {
				doomed = append(doomed, it)
			}
		}
	}
	return doomed, nil
}

// unwanted reads those objects that no running row asks for, by key. Most are asked for: to see that costs half of what it
// costs to read one.
func (o *Owner) unwanted(ctx context.Context, resource *desired.Resource, items []*Item) (map[string]desired.Row, error) {
	keys := make([]string, len(items))
	for i, it := range items {
		keys[i] = it.Key
	}
	missing, err := resource.Missing(ctx, o.rows, o.cfg.Name, keys)
	if err != nil || len(missing) == 0 {
		return nil, err
	}
	rows, err := resource.ReadKnowing(ctx, o.rows, o.cfg.Name, o.cfg.Grant.ID, missing, o.Gates())
	if err != nil {
		return nil, err
	}
	byKey := make(map[string]desired.Row, len(rows))
	for i, row := range rows {
		byKey[missing[i]] = row
	}
	return byKey, nil
}

// endBatch decides on the deletes that a batch of several pages parked, once all of them are recorded. It is not the
// reader's work to wait for that. A crash before it leaves them parked; Load decides then.
func (o *Owner) endBatch(ctx context.Context, parked **Run) {
	batch := *parked
	if batch == nil {
		return
	}
	*parked = nil
	o.parked.Go(func() {
		if err := batch.Wait(ctx); err != nil {
			return
		}
		if err := o.decideParked(context.WithoutCancel(ctx), heldByBatch); err != nil {
			o.cfg.Logger.Warn("held_deletes_undecided", "target", o.cfg.Name, "error", err)
		}
	})
}

// replays reports whether a batch may hold events that a former owner which crashed has worked on: its last calls may
// have changed what the ledger takes for unchanged. It read up to replay at most. The batch may end beyond that, when it
// begins before.
func (o *Owner) replays(cur cursor) bool { return cur.base.Revision < o.replay }

// finds are what pages of a batch ask of a target.
type finds struct {
	since time.Time
	items []*Item // in the order in which each object was first seen
	seen  map[ObjectID]bool
	whole map[int32]bool // resources of which everything is to be looked at
}

func newFinds() *finds {
	return &finds{since: time.Now(), seen: map[ObjectID]bool{}, whole: map[int32]bool{}}
}

// enough reports whether no further page is to be read before these are handed out.
func (f *finds) enough(now time.Time) bool {
	return len(f.items) >= gatherRows || now.Sub(f.since) >= gatherFor
}

// collect coalesces the events of a page by object, and leaves out those that former pages of the batch have brought.
func (o *Owner) collect(events *outbox.Page, cur cursor, found *finds) {
	now := time.Now()
	long := events.More || len(o.brought.sums) > 0
	events.For(o.cfg.Name, func(e outbox.Event) {
		if e.Whole() {
			found.whole[e.ResourceID] = true
			return
		}
		if e.Key == nil {
			return // a row of a base table: the leader finds the objects and marks them
		}
		id := ObjectID{ResourceID: e.ResourceID, Key: *e.Key}
		if found.seen[id] {
			return
		}
		found.seen[id] = true
		if !long || !o.brought.again(id) {
			found.items = append(found.items, &Item{ObjectID: id, Revision: cur.batch.Revision, Since: now, Force: o.replays(cur)})
		}
	})
}
