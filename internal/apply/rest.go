package apply

import (
	"context"
	"fmt"
	"time"

	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/store"
)

const (
	// restRows bounds the objects that rest in memory. What is more rests in the ledger.
	restRows = queueRows
	// openedAgain and openedMost are the first and the longest pause before an owner looks again whether the applies are open
	// that have changed the objects that rest.
	openedAgain = 5 * time.Millisecond
	openedMost  = 80 * time.Millisecond
)

// rest puts an object in flight aside until wake. What comes for it meanwhile joins it. It returns false when too many rest.
func (q *queue) rest(it *Item) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.resting) >= restRows {
		return false
	}
	if next := q.landLocked(it); next != nil {
		it.merge(next)
	}
	q.resting[it.ObjectID] = it
	signal(q.rests)
	signal(q.ready)
	return true
}

// wake puts the objects of a resource that rest, and need not wait any more, behind those that wait in their lanes. It
// returns how many.
func (q *queue) wake(resourceID int32, waits func(key string) bool) (woken int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for id, it := range q.resting {
		if id.ResourceID != resourceID || waits(id.Key) {
			continue
		}
		delete(q.resting, id)
		q.appendLocked(it)
		woken++
	}
	return woken
}

// restingResources are the resources of which objects rest.
func (q *queue) restingResources() map[int32]bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	resources := map[int32]bool{}
	for id := range q.resting {
		resources[id.ResourceID] = true
	}
	return resources
}

// watchResting looks, while objects rest, whether the applies that have changed them are open. One question for all objects of a
// resource costs less than to read each of them anew.
func (d *dispatcher) watchResting(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.queue.rests:
		}
		pause := openedAgain
		for resources := d.queue.restingResources(); len(resources) > 0; resources = d.queue.restingResources() {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(pause):
			}
			woken, err := d.wakeOpened(ctx, resources)
			if err != nil {
				return err
			}
			if pause = min(2*pause, openedMost); woken > 0 {
				pause = openedAgain
			}
		}
	}
}

// wakeOpened wakes what rests although its apply is open, and returns how many objects that were.
func (d *dispatcher) wakeOpened(ctx context.Context, resources map[int32]bool) (woken int, err error) {
	known := d.orders.known()
	applies, _ := known.Known()
	for id := range resources {
		unopened, err := d.queries.UnopenedKeys(ctx, store.UnopenedKeysParams{ResourceID: id, Since: known.Since, Known: applies})
		if err != nil {
			return woken, fmt.Errorf("ask which objects of target %s wait for an apply to be open: %w", d.cfg.Name, database.Explain(err))
		}
		keys := make(map[string]bool, len(unopened.Keys))
		for _, key := range unopened.Keys {
			keys[key] = true
		}
		woken += d.queue.wake(id, func(key string) bool { return unopened.Everything || keys[key] })
	}
	return woken, nil
}

// putAside has objects rest whose apply is not open. Those for which there is no room in memory wait in the ledger, as what
// is not settled soon does.
func (d *dispatcher) putAside(ctx context.Context, items []*Item) error {
	var ids []ObjectID
	var left []*Item
	for _, it := range items {
		if !d.queue.rest(it) {
			ids, left = append(ids, it.ObjectID), append(left, it)
		}
	}
	if err := d.settler.recordInHand(ctx, ids, brokenFor); err != nil {
		return err
	}
	return d.settler.settleAll(ctx, left, nil)
}
