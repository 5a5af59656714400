package apply

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/pgreconciler/reconciler/internal/crash"
	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/desired"
	"github.com/pgreconciler/reconciler/internal/store"
)

// countRows is how many objects are read at once to count deletes.
const countRows = 1000

// parking holds deletes back until those of their batch, sync or operation have been counted: all of them pass the guard, or none.
type parking struct {
	*core
	parked  sync.WaitGroup // batches whose deletes are not decided on
	holding atomic.Bool    // it was told that the guard holds deletes
}

// countDeletes looks ahead at a page that has more objects than deletes may pass: if it would delete too much, none
// of it is deleted. In a batch of several pages the deletes are parked until the last page has been counted; more: this
// is not the last, and batch are those that are parked, nil before the first. What cannot be read now is parked as well: it is
// counted when it has been read.
func (p *parking) countDeletes(ctx context.Context, items []*Item, more bool, batch **Run) error {
	several := more || *batch != nil
	// Asked before the objects are: what passes the guard during the count is counted.
	remaining := p.guard.Remaining()
	if !several && int64(len(items)) <= remaining {
		return nil
	}
	byResource := map[int32][]*Item{}
	for _, it := range p.queue.NotDeleted(items) { // before the ledger: of a delete that lands in between the row is gone
		byResource[it.ResourceID] = append(byResource[it.ResourceID], it)
	}
	var doomed []*Item
	for id, group := range byResource {
		found, unread, err := p.doomed(ctx, id, group)
		if err != nil {
			return err
		}
		doomed = append(append(doomed, found...), unread...)
		several = several || len(unread) > 0
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
	} else if int64(len(doomed)) <= remaining {
		return nil
	}
	for _, it := range doomed {
		it.Payload.park = holder
		if several {
			(*batch).add(true)
			it.Payload.runs = append(it.Payload.runs, *batch)
		}
	}
	if holder == heldByGuard {
		p.tellHeld(int64(len(doomed)))
	}
	return nil
}

// doomed returns the objects that a look at them now would delete, without those that are protected, and those that PostgreSQL does not
// let be read: a lock on their rows may be gone when the dispatcher reads them.
func (p *parking) doomed(ctx context.Context, resourceID int32, items []*Item) (doomed, unread []*Item, err error) {
	resource, err := p.resource(ctx, resourceID)
	if err != nil || resource == nil {
		return nil, nil, err
	}
	for chunk := range slices.Chunk(items, countRows) {
		rows, err := p.unwanted(ctx, resource, chunk)
		if ctx.Err() != nil || database.IsUnavailable(err) {
			return nil, nil, err
		}
		if err != nil {
			unread = append(unread, chunk...)
			continue
		}
		for _, it := range chunk {
			row, ok := rows[it.Key]
			if ok && !row.Wanted && row.Err == nil && row.Ledger != nil && row.Ledger.Present && !row.Ledger.Approved && !row.Protected {
				doomed = append(doomed, it)
			}
		}
	}
	return doomed, unread, nil
}

// unwanted reads those objects that no running row asks for, by key. Most are asked for: to see that costs half of what it
// costs to read one.
func (p *parking) unwanted(ctx context.Context, resource *desired.Resource, items []*Item) (map[string]desired.Row, error) {
	keys := make([]string, len(items))
	for i, it := range items {
		keys[i] = it.Key
	}
	missing, err := resource.Missing(ctx, p.rows, p.cfg.Name, keys)
	if err != nil || len(missing) == 0 {
		return nil, err
	}
	rows, err := resource.ReadKnowing(ctx, p.rows, p.cfg.Name, p.cfg.Grant.ID, missing, p.orders.known(), desired.ReadMost)
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
func (p *parking) endBatch(ctx context.Context, parked **Run) {
	batch := *parked
	if batch == nil {
		return
	}
	*parked = nil
	p.parked.Go(func() {
		if err := batch.Wait(ctx); err != nil {
			return
		}
		if _, err := p.decide(context.WithoutCancel(ctx), heldByBatch, batch.deletes()); err != nil {
			p.cfg.Logger.Warn("held_deletes_undecided", "target", p.cfg.Name, "error", err)
		}
	})
}

// decide ends a count that has found so many deletes. Those that another count has parked or held first are counted with it: else what
// is left of too many could pass.
func (p *parking) decide(ctx context.Context, by string, found int64) (held int64, err error) {
	count, err := p.queries.ParkedCount(ctx, store.ParkedCountParams{TargetID: p.cfg.Grant.ID, ParkedBy: by})
	if err != nil {
		return 0, fmt.Errorf("count the deletes of target %s: %w", p.cfg.Name, err)
	}
	if count.Parked == 0 {
		return 0, nil
	}
	crash.Point(crash.DeletesParked)
	params := store.ParkedDecideParams{
		TargetID: p.cfg.Grant.ID, Owner: p.cfg.Instance, Term: p.cfg.Grant.Term, ParkedBy: by, Allow: true, GuardWindow: p.cfg.Guard.Window.Seconds(),
	}
	if !p.orders.draining.Load() {
		params.Counted = true
		params.Allow, params.Objects = p.guard.Decide(count.Parked, min(count.Elsewhere, max(0, found-count.Parked)))
	}
	n, err := p.queries.ParkedDecide(ctx, params)
	if err != nil {
		return 0, fmt.Errorf("decide on the deletes of target %s: %w", p.cfg.Name, err)
	}
	crash.Point(crash.DeletesDecided)
	signal(p.wantDue)
	if params.Allow {
		return 0, nil
	}
	p.tellHeld(n)
	return n, nil
}

// tellHeld says that deletes wait for approval: once, until none waits any more, however many join them.
func (p *parking) tellHeld(deletes int64) {
	if p.holding.CompareAndSwap(false, true) {
		p.cfg.Logger.Warn("deletes_held", "target", p.cfg.Name, "deletes", deletes, "remedy", fmt.Sprintf("SELECT reconciler.approve('%s')", p.cfg.Name))
	}
}
