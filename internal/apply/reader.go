package apply

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pgreconciler/reconciler/internal/crash"
	"github.com/pgreconciler/reconciler/internal/database"
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

// reader follows the outbox from the target's cursor.
type reader struct {
	*core
	parking *parking
	tracker *tracker
	start   cursor
	batch   *Run // deletes of the batch being read are parked; nil when they are not
	brought brought
	replay  int64 // events up to this revision may have been worked on by a former owner that crashed; 0: there was none
}

// read follows the outbox from the target's cursor and puts what it finds on the live lane. A full queue stops it.
func (r *reader) read(ctx context.Context) error {
	cur := r.start
	defer r.brought.forget()
	for {
		latest, wake := r.cfg.Feed.Latest()
		if cur.base.Revision == 0 && latest.Revision > 0 {
			next, err := r.startCursor(ctx, latest)
			if err != nil {
				return err
			}
			cur = next
		}
		if cur.batch.Revision == 0 && !cur.before(latest) {
			r.part(loop.Read).Succeeded()
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
		next, err := r.readPage(ctx, cur)
		if errors.Is(err, outbox.ErrBelowFloor) {
			r.cfg.Logger.Warn("cursor_below_floor", "target", r.cfg.Name, "revision", cur.base.Revision, "effect", "a full sync makes up for it")
			r.parking.endBatch(ctx, &r.batch) // what it has parked must not wait for a last page that nobody reads
			r.brought.forget()
			next, err = r.raiseCursor(ctx, cur)
		}
		if err != nil {
			return err
		}
		cur = next
		r.part(loop.Read).Succeeded()
	}
}

// before says whether there is something to read up to a tick. A cursor that was raised to the floor stands at its
// revision, and before its snapshot.
func (c cursor) before(latest outbox.Tick) bool {
	return latest.Revision > c.base.Revision || latest.Revision == c.base.Revision && latest.Snapshot != c.base.Snapshot
}

// startCursor gives the target its first cursor. What came before it is the work of the sync that is asked for with it.
func (r *reader) startCursor(ctx context.Context, tick outbox.Tick) (cursor, error) {
	err := r.queries.TargetCursorStart(ctx, store.TargetCursorStartParams{
		TargetID: r.cfg.Grant.ID, Owner: r.cfg.Instance, Term: r.cfg.Grant.Term, Revision: tick.Revision, Snapshot: tick.Snapshot,
	})
	if err != nil {
		return cursor{}, fmt.Errorf("start the cursor of target %s: %w", r.cfg.Name, database.Explain(err))
	}
	crash.Point(crash.CursorStarted)
	signal(r.wantSync)
	return cursor{base: tick}, nil
}

// raiseCursor goes on below the floor: the sync that is asked for makes up for the changes that retention dropped; those
// that are left are read, from where the cursor stands. Pages that were read before may still be open, and record a cursor
// below the floor once more when they are settled; the next page comes after them.
func (r *reader) raiseCursor(ctx context.Context, cur cursor) (cursor, error) {
	revision, err := r.queries.TargetCursorRaise(ctx, store.TargetCursorRaiseParams{TargetID: r.cfg.Grant.ID, Owner: r.cfg.Instance, Term: r.cfg.Grant.Term})
	if err != nil {
		return cursor{}, fmt.Errorf("raise the cursor of target %s to the floor: %w", r.cfg.Name, database.Explain(err))
	}
	signal(r.wantSync)
	if r.replay > 0 {
		r.replay = max(r.replay, revision+1)
	}
	return cursor{base: outbox.Tick{Revision: revision, Snapshot: cur.base.Snapshot}}, nil
}

// readPage hands out one page, or several with few events for the target, and returns the place after it.
func (r *reader) readPage(ctx context.Context, cur cursor) (cursor, error) {
	next, more, found := cur, true, newFinds()
	for more && !found.enough(time.Now()) {
		events, err := r.cfg.Feed.Read(ctx, next.base, next.batch, next.at)
		if err != nil {
			return cur, err
		}
		r.collect(events, cur, found)
		if more = events.More; more {
			next = cursor{base: cur.base, batch: cur.batch, at: events.Last}
		} else {
			next = cursor{base: cur.batch}
		}
	}
	for resourceID := range found.whole {
		if err := r.askSync(ctx, resourceID); err != nil {
			return cur, err
		}
	}
	if err := r.parking.countDeletes(ctx, found.items, more, &r.batch); err != nil {
		return cur, err
	}
	page, err := r.tracker.open(ctx, next)
	if err != nil {
		return cur, err
	}
	crash.Point(crash.BeforeHandOut)
	for i, it := range found.items {
		if i > 0 {
			crash.Point(crash.HandingOut)
		}
		r.tracker.add(page, it.ObjectID)
		it.Payload.pages = []*span{page}
		if err := r.queue.Push(ctx, it); err != nil {
			return cur, err
		}
	}
	r.tracker.close(page)
	if !more {
		r.parking.endBatch(ctx, &r.batch)
		r.brought.forget()
	}
	return next, nil
}

// replays reports whether a batch may hold events that a former owner which crashed has worked on: its last calls may
// have changed what the ledger takes for unchanged. It read up to replay at most. The batch may end beyond that, when it
// begins before.
func (r *reader) replays(cur cursor) bool { return cur.base.Revision < r.replay }

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
func (r *reader) collect(events *outbox.Page, cur cursor, found *finds) {
	now := time.Now()
	long := events.More || len(r.brought.sums) > 0
	events.For(r.cfg.Name, func(e outbox.Event) {
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
		if !long || !r.brought.again(id) {
			found.items = append(found.items, &Item{ObjectID: id, Revision: cur.batch.Revision, Since: now, Force: r.replays(cur)})
		}
	})
}
