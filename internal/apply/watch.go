package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/desired"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/loop"
	"github.com/pgreconciler/reconciler/internal/pace"
	"github.com/pgreconciler/reconciler/internal/store"
)

// lookupRows is how many objects are looked up in the ledger at once.
const lookupRows = 2000

// listEvery is how far apart the syncs of a resource are at least that a watch asks for.
var listEvery = pace.Of(time.Minute)

// watcher looks again at the objects that a driver.Watcher names.
type watcher struct {
	*core
	told hush          // lines about objects that change again and again
	more chan struct{} // receives a value when a resource is left to a sync

	mu    sync.Mutex          // guards what follows
	left  map[int32]struct{}  // resources that a sync is to be requested of
	asked map[int32]time.Time // when one was requested last
}

func newWatcher(c *core) *watcher {
	return &watcher{core: c, more: make(chan struct{}, 1), left: map[int32]struct{}{}, asked: map[int32]time.Time{}}
}

// watch runs the driver's watch.
func (w *watcher) watch(ctx context.Context) error {
	if watched, ok := w.cfg.Driver.(driver.Watcher); ok {
		driver.KeepWatching(ctx, watched, w.changed, w.note)
	}
	return nil
}

// note reports a failure of the watch, or that it works. A target that was set back has objects again that the ledger does not know any more,
// which a sync finds.
func (w *watcher) note(err error) {
	if errors.Is(err, driver.ErrRestored) {
		for _, r := range w.cfg.Catalog.All() {
			w.leave(r.ID)
		}
	}
	if panicked, ok := errors.AsType[*driver.PanicError](err); ok {
		w.cfg.Logger.Error("driver_panicked", "target", w.cfg.Name, "error", err)
		err = errors.New(panicked.Short())
	}
	w.part(loop.Watch).Done(err)
}

// changed takes in what the driver names. It does not block.
func (w *watcher) changed(resource, key string) {
	r, ok := w.cfg.Catalog.ByName(resource)
	if ok && len(key) <= maxKeyBytes && !w.rechecks.Name(ObjectID{ResourceID: r.ID, Key: key}) {
		w.leave(r.ID)
	}
}

// leave leaves a resource to a sync.
func (w *watcher) leave(resourceID int32) {
	if w.cfg.List == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.left[resourceID] = struct{}{}
	signal(w.more)
}

// recheck puts what the driver has named into the queue, and waits while that is full: the driver goes on, and what it names then is
// left to a sync.
func (w *watcher) recheck(ctx context.Context) error {
	if _, ok := w.cfg.Driver.(driver.Watcher); !ok {
		return nil
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.rechecks.Named:
		case <-w.more:
		case <-timer.C:
		}
		due, restless, next := w.rechecks.Take(time.Now())
		w.tellRestless(restless)
		if err := w.enqueue(ctx, due); err != nil {
			return err
		}
		again, err := w.requestSyncs(ctx)
		if err != nil {
			return err
		}
		if next == 0 || again > 0 && again < next {
			next = again
		}
		if next > 0 {
			timer.Reset(next)
		}
	}
}

// enqueue has those of the objects looked at that the ledger has as applied. All others have their turn, or are a sync's to find:
// what the ledger does not know is deleted only after a sync has counted it.
func (w *watcher) enqueue(ctx context.Context, due []ObjectID) error {
	keys := map[int32][]string{}
	for _, id := range due {
		keys[id.ResourceID] = append(keys[id.ResourceID], id.Key)
	}
	for resource, all := range keys {
		for chunk := range slices.Chunk(all, lookupRows) {
			rows, err := w.queries.LedgerLookup(ctx, store.LedgerLookupParams{TargetID: w.cfg.Grant.ID, ResourceID: resource, Keys: chunk})
			if err != nil {
				return fmt.Errorf("read the ledger about what changed in target %s: %w", w.cfg.Name, database.Explain(err))
			}
			for _, row := range rows {
				if row.State != string(desired.Applied) {
					continue
				}
				if err := w.one(ctx, ObjectID{ResourceID: resource, Key: row.Key}); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// one has an object looked at. A target that only reports drift is listed instead: that an object may have changed does not say
// that it differs.
func (w *watcher) one(ctx context.Context, id ObjectID) error {
	w.cfg.Metrics.WatchEvents.WithLabelValues(w.cfg.Name).Inc()
	if w.cfg.ReportOnly || !w.rechecks.Begin(id) {
		w.leave(id.ResourceID)
		return nil
	}
	return w.queue.Push(ctx, &Item{ObjectID: id, Lane: LaneSync, Payload: payload{recheck: true}})
}

// requestSyncs requests a sync of each resource that is left to one. It returns the time until the next request; 0: there is none.
func (w *watcher) requestSyncs(ctx context.Context) (again time.Duration, err error) {
	due, again := w.take(time.Now())
	for _, id := range due {
		if err := w.cfg.List(ctx, id); err != nil {
			return 0, err
		}
		signal(w.wantSync)
	}
	return again, nil
}

// take removes and returns the resources of which a sync is to be requested now.
func (w *watcher) take(now time.Time) (due []int32, again time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id := range w.left {
		if wait := listEvery - now.Sub(w.asked[id]); wait > 0 {
			if again == 0 || wait < again {
				again = wait
			}
			continue
		}
		due = append(due, id)
		w.asked[id] = now
		delete(w.left, id)
	}
	return due, again
}

// tellRestless logs objects that something changes as soon as they are applied.
func (w *watcher) tellRestless(restless []ObjectID) {
	for _, id := range restless {
		r, ok := w.cfg.Catalog.ByID(id.ResourceID)
		if !ok {
			continue
		}
		if more, due := w.told.due(time.Now(), id.Key, r.Name); due {
			w.cfg.Logger.Warn("object_keeps_changing", "target", w.cfg.Name, "resource", r.Name, "key", id.Key,
				"effect", "it is repaired less and less often", "alike_before", more)
		}
	}
}
