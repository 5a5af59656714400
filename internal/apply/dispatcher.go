package apply

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/desired"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/loop"
	"github.com/pgreconciler/reconciler/internal/throttle"
)

const (
	// batchCalls bounds the objects of one call to a driver.BatchApplier, and batchBytes their specs and memories, beside the last.
	batchCalls = 200
	batchBytes = 4 << 20
	// brokenFor is how long objects wait whose resource cannot be read at all.
	brokenFor = 10 * time.Second
	// slowRead is how long a read may take for the next one to take more objects. PostgreSQL cancels it after 60 s.
	slowRead = 10 * time.Second
	// readLeast is for how many bytes a read borrows at least, and objectBytes how many an object is thought to have before one was read.
	readLeast   = 64 << 10
	objectBytes = 2 << 10
)

// dispatcher reads the objects that the queue gives out and decides what is to be done about each.
type dispatcher struct {
	*core
	caller  *caller
	settler *settler
	firsts  *firstCalls
	refused hush       // lines about resources that cannot be read
	reads   int        // how many objects are read at once
	bytes   int64      // of each object that was read last, on average; 0: none was
	looking sync.Mutex // held while objects are read and handed out
}

// dispatch takes objects from the queue, reads them in batches, and hands out the calls that they need.
func (d *dispatcher) dispatch(ctx context.Context) error {
	d.reads = d.cfg.Memory.readsOf(d.cfg.Name)
	for {
		items, err := d.queue.Take(ctx, d.reads)
		if err != nil {
			return nil
		}
		if err := d.dispatchItems(ctx, items); err != nil {
			return err
		}
		d.part(loop.Dispatch).Succeeded()
	}
}

func (d *dispatcher) dispatchItems(ctx context.Context, items []*Item) error {
	byResource := map[int32][]*Item{}
	var order []int32
	for _, it := range items {
		if byResource[it.ResourceID] == nil {
			order = append(order, it.ResourceID)
		}
		byResource[it.ResourceID] = append(byResource[it.ResourceID], it)
	}
	for _, id := range order {
		if err := d.dispatchResource(ctx, id, byResource[id]); err != nil {
			return err
		}
	}
	return nil
}

func (d *dispatcher) dispatchResource(ctx context.Context, id int32, items []*Item) error {
	resource, err := d.resource(ctx, id)
	if err != nil {
		return err
	}
	if resource == nil { // untrack() has removed it and left its objects: only their ledger rows go
		return d.settler.settleAll(ctx, items, &record{gone: true})
	}
	room := d.queue.Borrow(d.expected(len(items)))
	if room == 0 {
		d.putBack(items)
		return nil
	}
	defer d.queue.Return(room)
	keys := make([]string, len(items))
	for i, it := range items {
		keys[i] = it.Key
	}
	latest, _ := d.cfg.Feed.Latest()
	d.looking.Lock()
	steering := d.orders.steering()
	began := time.Now()
	rows, err := d.readItems(ctx, resource, items, keys, steering, room)
	took := time.Since(began)
	if err != nil {
		d.firsts.handedOut()
		d.looking.Unlock()
		return d.readFailed(ctx, resource, items, took, err)
	}
	defer d.looking.Unlock()
	d.learn(rows)
	looks, unopened := d.looks(resource, items, rows, latest.Revision, steering)
	var calls [2][]look
	var left []*Item
	for _, l := range looks {
		it := l.item
		if l.row.Left {
			left = append(left, it)
			continue
		}
		act, rec := decide(l)
		if len(it.Key) > maxKeyBytes {
			act, rec = actRecord, l.overlong()
		}
		if act == actApply || act == actDelete {
			l.act = act
			if d.yields(l) {
				continue
			}
			d.queue.Looked(it, true, len(l.row.Spec)+len(l.memory()))
			d.queue.Works(it, act == actDelete, l.operation())
			calls[it.Lane] = append(calls[it.Lane], l)
			continue
		}
		d.queue.Looked(it, false, 0)
		d.cfg.Metrics.Unchanged.WithLabelValues(d.cfg.Name).Inc()
		if err := d.settler.settle(ctx, l, rec); err != nil {
			return err
		}
	}
	d.leave(left, len(items), took)
	if err := d.putAside(ctx, unopened); err != nil {
		return err
	}
	if len(calls[LaneLive])+len(calls[LaneSync]) == 0 && d.breaker.IsOpen() {
		d.queue.AllowProbe() // an object that needs no call is no probe
	}
	return d.hand(ctx, calls)
}

// yields claims what an object is to have, and puts one that has something removed behind what waits, once: of the changes of one commit,
// those come first that may want what this one removes.
func (d *dispatcher) yields(l look) bool {
	claimer, ok := d.cfg.Driver.(driver.Claimer)
	if !ok {
		return false
	}
	removes := l.act == actDelete || claimer.Claim(d.caller.object(l))
	if !removes || l.item.Payload.yielded || l.item.IsProbe() {
		return false
	}
	l.item.Payload.yielded = d.settler.tracker.handedOut(l.item.Payload.pages) // else what it waits for may not wait there yet
	d.queue.PutLast(l.item)
	return true
}

func (d *dispatcher) takeDelete() bool { return d.guard.Take(1) }

// leave puts back what a read of so many objects had no room for, in their order, and has the next reads take as many as there
// was room for; then twice as many again with each that is not slow.
func (d *dispatcher) leave(left []*Item, of int, took time.Duration) {
	switch {
	case len(left) > 0:
		d.setReads((of - len(left)) / 2)
	case took < slowRead:
		d.setReads(2 * d.reads)
	}
	d.putBack(left)
}

// putBack puts objects back to the front of their lanes, in their order.
func (d *dispatcher) putBack(items []*Item) {
	for _, it := range slices.Backward(items) {
		d.queue.PutBack(it)
	}
}

// expected is how many bytes a read of so many objects should have room for. It borrows no more than that: it may wait for a connection
// while other targets are in want of memory. What there is no room for is read next.
func (d *dispatcher) expected(objects int) int64 {
	return min(max(2*cmp.Or(d.bytes, objectBytes)*int64(objects), readLeast), desired.ReadMost)
}

func (d *dispatcher) learn(rows []desired.Row) {
	sum, n := int64(0), int64(0)
	for _, row := range rows {
		if row.Left {
			continue
		}
		n++
		if sum += int64(len(row.Spec)); row.Ledger != nil {
			sum += int64(len(row.Ledger.Memory))
		}
	}
	d.bytes = sum / max(n, 1)
}

// setReads sets how many objects the next read takes, also that of a later owner of the target in this process.
func (d *dispatcher) setReads(n int) {
	d.reads = min(max(1, n), throttle.WindowMost)
	d.cfg.Memory.setReads(d.cfg.Name, d.reads)
}

// awaitReads returns when what is being read is handed out: what is read later is read as of later rows, and orders.
func (d *dispatcher) awaitReads() {
	d.looking.Lock()
	defer d.looking.Unlock() // a barrier
}

// readFailed deals with a query that failed as a whole. When the database answers, a definition is being changed or is
// broken: its objects wait in the ledger and hold up no others.
//
// A read that was too slow for the line or the server is tried again with half of its objects.
func (d *dispatcher) readFailed(ctx context.Context, r *desired.Resource, items []*Item, took time.Duration, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	cancelled := database.IsCancelled(err)
	if cancelled || took >= slowRead {
		d.setReads(len(items) / 2)
	}
	if cancelled && len(items) > 1 {
		d.putBack(items)
		return nil
	}
	if database.IsUnavailable(err) || database.IsFenced(err) {
		return err
	}
	why := database.Explain(err)
	d.part(loop.Rows).Failed(why)
	if more, due := d.refused.due(time.Now(), "", r.Name+" rows_unreadable "+why.Error()); due {
		d.cfg.Logger.Error("rows_unreadable", "target", d.cfg.Name, "resource", r.Name, "objects", len(items), "error", why, "alike_before", more)
	}
	ids := make([]ObjectID, len(items))
	for i, it := range items {
		ids[i] = it.ObjectID
	}
	if err := d.settler.recordInHand(ctx, ids, brokenFor); err != nil {
		return err
	}
	// What is blocked or held is not in hand: a sync sees what has become of its row.
	if err := d.askSync(ctx, r.ID); err != nil {
		return err
	}
	if _, err := d.cfg.Catalog.Reload(ctx, d.cfg.Pool); err != nil {
		return err
	}
	return d.settler.settleAll(ctx, items, nil)
}

// hand gives calls to the workers, live ones first. Objects for a driver that takes many at once go in groups.
func (d *dispatcher) hand(ctx context.Context, calls [2][]look) error {
	for lane, looks := range calls {
		for _, group := range d.groups(looks) {
			select {
			case d.caller.calls[lane] <- group:
			case <-ctx.Done():
				d.caller.dropAll(group)
			}
		}
	}
	return nil
}

func (d *dispatcher) groups(looks []look) [][]look {
	_, applies := d.cfg.Driver.(driver.BatchApplier)
	_, deletes := d.cfg.Driver.(driver.BatchDeleter)
	most := min(batchCalls, max(1, len(looks)/d.cfg.Concurrency))
	var groups [][]look
	var batches [2][]look // of applies, of deletes
	bytes := 0
	for _, l := range looks {
		kind, many := 0, applies
		if l.act == actDelete {
			kind, many = 1, deletes
		}
		batches[kind] = append(batches[kind], l)
		if l.act == actApply {
			bytes += len(l.row.Spec) + len(l.memory())
		}
		if !many || len(batches[kind]) == most || kind == 0 && bytes >= batchBytes {
			groups, batches[kind] = append(groups, batches[kind]), nil
			if kind == 0 {
				bytes = 0
			}
		}
	}
	for _, batch := range batches {
		if len(batch) > 0 {
			groups = append(groups, batch)
		}
	}
	return groups
}

// overlong is what the ledger says of an object whose key it cannot hold, under a shortened key, while there is a row.
func (l look) overlong() *record {
	if !l.row.Wanted && l.row.Err == nil || l.drain {
		return &record{gone: true}
	}
	return &record{
		state: desired.Blocked, wanted: true, desiredRevision: max(l.item.Revision, l.now), delay: -1, generation: -1,
		err: fmt.Sprintf("its key has %d bytes; the longest that can be kept has %d", len(l.item.Key), maxKeyBytes),
	}
}
