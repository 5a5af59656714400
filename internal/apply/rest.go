package apply

import (
	"context"
	"fmt"
	"time"

	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/store"
)

const (
	// openedAgain and openedMost are the first and the longest pause before an owner looks again whether the applies are open
	// that have changed the objects that rest.
	openedAgain = 5 * time.Millisecond
	openedMost  = 80 * time.Millisecond
)

// watchResting looks, while objects rest, whether the applies that have changed them are open. One question for all objects of a
// resource costs less than to read each of them anew.
func (d *dispatcher) watchResting(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.queue.Rests:
		}
		pause := openedAgain
		for resources := d.queue.RestingResources(); len(resources) > 0; resources = d.queue.RestingResources() {
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
		woken += d.queue.Wake(id, func(key string) bool { return unopened.Everything || keys[key] })
	}
	return woken, nil
}

// putAside has objects rest whose apply is not open. Those for which there is no room in memory wait in the ledger, as what
// is not settled soon does.
func (d *dispatcher) putAside(ctx context.Context, items []*Item) error {
	var ids []ObjectID
	var left []*Item
	for _, it := range items {
		if !d.queue.Rest(it) {
			ids, left = append(ids, it.ObjectID), append(left, it)
		}
	}
	if err := d.settler.recordInHand(ctx, ids, brokenFor); err != nil {
		return err
	}
	return d.settler.settleAll(ctx, left, nil)
}
