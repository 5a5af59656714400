package apply

import (
	"context"
	"crypto/sha256"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/desired"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/loop"
)

const (
	// readAhead is how much calling time is read in advance: long enough that one round trip serves many calls of a
	// fast target, short enough that a live change never waits longer behind what was read before.
	readAhead = 20 * time.Millisecond
	// windowMost bounds what is read at once.
	windowMost = 1000
	// windowBound is more than may ever be in flight: concurrency is at most 1,024.
	windowBound = 2048
	maxKeyBytes = desired.KeyBytesMost
	// batchCalls bounds the objects of one call to a driver.BatchApplier, and batchBytes their specs, beside the last.
	batchCalls = 200
	batchBytes = 4 << 20
	// brokenFor is how long objects wait whose resource cannot be read at all.
	brokenFor = 10 * time.Second
)

// pace knows how long a call takes, as a moving average.
type pace struct {
	mu      sync.Mutex
	average time.Duration
}

func (p *pace) add(d time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.average += (d - p.average) / 16
	return p.average
}

// window is how many calls may be in flight, made or to be made, when one takes so long.
func window(concurrency int, call time.Duration) int {
	most := max(windowMost, concurrency)
	if call <= 0 {
		return most
	}
	return min(most, max(concurrency, int(int64(concurrency)*int64(readAhead)/int64(call))))
}

// setWindow counts a call, and sets how many may be in flight. With a rate limit a call takes as long as its turn does.
func (o *Owner) setWindow(took time.Duration) {
	call := o.pace.add(took)
	if o.cfg.Rate > 0 {
		call = max(call, time.Duration(float64(o.cfg.Concurrency)/o.cfg.Rate*float64(time.Second)))
	}
	o.queue.setWindow(window(o.cfg.Concurrency, call))
}

// dispatch takes objects from the queue, reads them in batches, and hands out the calls that they need.
func (o *Owner) dispatch(ctx context.Context) error {
	o.reads = windowMost
	for {
		items, err := o.queue.take(ctx, o.reads)
		if err != nil {
			return nil
		}
		if err := o.dispatchItems(ctx, items); err != nil {
			return err
		}
		o.part(loop.Dispatch).Succeeded()
	}
}

func (o *Owner) dispatchItems(ctx context.Context, items []*Item) error {
	byResource := map[int32][]*Item{}
	var order []int32
	for _, it := range items {
		if byResource[it.ResourceID] == nil {
			order = append(order, it.ResourceID)
		}
		byResource[it.ResourceID] = append(byResource[it.ResourceID], it)
	}
	for _, id := range order {
		if err := o.dispatchResource(ctx, id, byResource[id]); err != nil {
			return err
		}
	}
	return nil
}

func (o *Owner) dispatchResource(ctx context.Context, id int32, items []*Item) error {
	resource, err := o.resource(ctx, id)
	if err != nil {
		return err
	}
	if resource == nil { // untrack() has removed it and left its objects: only their ledger rows go
		return o.settleAll(ctx, items, &record{gone: true})
	}
	keys := make([]string, len(items))
	for i, it := range items {
		keys[i] = it.Key
	}
	latest, _ := o.cfg.Feed.Latest()
	o.looking.Lock()
	steering := o.steering()
	rows, err := o.readItems(ctx, resource, items, keys, steering)
	if err != nil {
		o.firsts.handedOut()
		o.looking.Unlock()
		return o.readFailed(ctx, resource, items, err)
	}
	defer o.looking.Unlock()
	looks, unopened := o.looks(resource, items, rows, latest.Revision, steering)
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
			o.queue.looked(it, true, len(l.row.Spec))
			o.queue.works(it, act == actDelete, l.operation())
			calls[it.Lane] = append(calls[it.Lane], l)
			continue
		}
		o.queue.looked(it, false, 0)
		o.cfg.Metrics.Unchanged.WithLabelValues(o.cfg.Name).Inc()
		if err := o.settle(ctx, l, rec); err != nil {
			return err
		}
	}
	o.leave(left, len(items))
	if err := o.putAside(ctx, unopened); err != nil {
		return err
	}
	if len(calls[LaneLive])+len(calls[LaneSync]) == 0 && o.breaker.isOpen() {
		o.queue.allowProbe() // an object that needs no call is no probe
	}
	return o.hand(ctx, calls)
}

// leave puts back what a read of so many objects had no room for, in their order, and has the next reads take as many as there
// was room for; then twice as many again with each.
func (o *Owner) leave(left []*Item, of int) {
	if len(left) == 0 {
		o.reads = min(2*o.reads, windowMost)
		return
	}
	o.reads = max(1, (of-len(left))/2)
	for _, it := range slices.Backward(left) {
		o.queue.putBack(it)
	}
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

// ledgerKey is the key under which the ledger keeps an object: the object's own, unless it is too long for an index.
func ledgerKey(key string) string {
	if len(key) <= maxKeyBytes {
		return key
	}
	return fmt.Sprintf("%s... (sha256 %x)", clip(strings.ToValidUTF8(key[:200], "")), sha256.Sum256([]byte(key)))
}

var shortenedKey = regexp.MustCompile(`\.\.\. \(sha256 [0-9a-f]{64}\)$`)

// resource finds a definition, reading the catalog again when it is new. It returns nil when there is none.
func (o *Owner) resource(ctx context.Context, id int32) (*desired.Resource, error) {
	if r, ok := o.cfg.Catalog.ByID(id); ok {
		return r, nil
	}
	if _, err := o.cfg.Catalog.Reload(ctx, o.cfg.Pool); err != nil {
		return nil, err
	}
	r, _ := o.cfg.Catalog.ByID(id)
	return r, nil
}

// readFailed deals with a query that failed as a whole. When the database answers, a definition is being changed or is
// broken: its objects wait in the ledger and hold up no others.
func (o *Owner) readFailed(ctx context.Context, r *desired.Resource, items []*Item, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	if database.IsUnavailable(err) || database.IsFenced(err) {
		return err
	}
	why := database.Explain(err)
	o.part(loop.Rows).Failed(why)
	if more, due := o.refused.due(time.Now(), "", r.Name+" rows_unreadable "+why.Error()); due {
		o.cfg.Logger.Error("rows_unreadable", "target", o.cfg.Name, "resource", r.Name, "objects", len(items), "error", why, "alike_before", more)
	}
	ids := make([]ObjectID, len(items))
	for i, it := range items {
		ids[i] = it.ObjectID
	}
	if err := o.recordInHand(ctx, ids, brokenFor); err != nil {
		return err
	}
	// What is blocked or held is not in hand: a sync sees what has become of its row.
	if err := o.resync(ctx, r.ID); err != nil {
		return err
	}
	signal(o.wantSync)
	if _, err := o.cfg.Catalog.Reload(ctx, o.cfg.Pool); err != nil {
		return err
	}
	return o.settleAll(ctx, items, nil)
}

// hand gives calls to the workers, live ones first. Objects for a driver that takes many at once go in groups.
func (o *Owner) hand(ctx context.Context, calls [2][]look) error {
	for lane, looks := range calls {
		for _, group := range o.groups(looks) {
			select {
			case o.calls[lane] <- group:
			case <-ctx.Done():
				o.dropAll(group)
			}
		}
	}
	return nil
}

func (o *Owner) groups(looks []look) [][]look {
	_, applies := o.cfg.Driver.(driver.BatchApplier)
	_, deletes := o.cfg.Driver.(driver.BatchDeleter)
	most := min(batchCalls, max(1, len(looks)/o.cfg.Concurrency))
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
			bytes += len(l.row.Spec)
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

func (o *Owner) settleAll(ctx context.Context, items []*Item, rec *record) error {
	for _, it := range items {
		if err := o.settle(ctx, look{item: it}, rec); err != nil {
			return err
		}
	}
	return nil
}

// settle hands a result to the settler.
func (o *Owner) settle(ctx context.Context, l look, rec *record) error {
	r := result{item: l.item, record: rec}
	r.verdict, r.cause = l.verdict(rec)
	r.operation = l.operation()
	if e := l.row.Ledger; e != nil {
		r.before, r.guarded = e.Present, e.HeldBy != nil && *e.HeldBy == heldByGuard
	}
	select {
	case o.settled <- r:
		return nil
	default:
		signal(o.queue.crowded) // what has come together is a full batch
	}
	select {
	case o.settled <- r:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("record a result of target %s: %w", o.cfg.Name, context.Cause(ctx))
	}
}

// vanished returns the recorded objects of joined resources whose row is gone by now.
func (o *Owner) vanished(ctx context.Context, batch []result) (map[ObjectID]bool, error) {
	keys := map[int32][]string{}
	for _, r := range batch {
		if r.record == nil || r.record.gone || !r.record.wanted {
			continue
		}
		if resource, ok := o.cfg.Catalog.ByID(r.item.ResourceID); ok && resource.Joined() {
			keys[r.item.ResourceID] = append(keys[r.item.ResourceID], r.item.Key)
		}
	}
	gone := map[ObjectID]bool{}
	for id, group := range keys {
		resource, ok := o.cfg.Catalog.ByID(id)
		if !ok {
			continue
		}
		missing, err := resource.Missing(ctx, o.rows, o.cfg.Name, group)
		if err != nil && database.IsUnavailable(err) {
			return nil, err
		}
		for _, key := range missing {
			gone[ObjectID{ResourceID: id, Key: key}] = true
		}
	}
	return gone, nil
}
