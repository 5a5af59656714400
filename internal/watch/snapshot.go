package watch

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/pgreconciler/reconciler/internal/store"
)

// snapshot sends every object, a keep for each wanted object that is not published, the changes since its first page, and the end.
func (w *watcher) snapshot(ctx context.Context) error {
	w.since = nil
	if !w.at.paging {
		if err := w.begin(ctx); err != nil {
			return err
		}
	}
	for _, s := range w.filter.spans() {
		if err := w.pages(ctx, s); err != nil {
			return err
		}
	}
	w.at.at = afterResources
	if err := w.keeps(ctx); err != nil {
		return err
	}
	// Whatever was published since the first page is sent before the end: an object that was kept when its page was read, and
	// is settled by now, would otherwise be named by neither. From here on no version is below one that was sent.
	if err := w.join(ctx); err != nil {
		return err
	}
	w.at.paging, w.at.at = false, place{}
	w.hub.cfg.Metrics.StreamSnapshots.WithLabelValues(w.target.name).Inc()
	text := w.at.String()
	w.sentControls = w.controls
	return errors.Join(w.sendPlace(encodePlace("end_of_snapshot", w.at, text, w.reached, w.controls), text), w.out.flush())
}

// begin waits until the stream is complete, and takes its head: a publisher that has not finished must not look like an empty world.
func (w *watcher) begin(ctx context.Context) error {
	for due := true; ; {
		s, _, _, changed := w.target.look(w.group, 0, 0)
		w.era = s.era
		if err := w.check(s); err != nil {
			return err
		}
		if s.complete {
			b, _, err := w.changes(ctx, math.MaxInt64)
			if err != nil || b.complete {
				w.at = bookmark{stream: b.stream, epoch: b.epoch, scope: w.filter.scope(), version: b.head, paging: true}
				w.sent.Store(b.head)
				return err
			}
		}
		if due {
			if err := w.waiting(waitingIncomplete); err != nil {
				return err
			}
		}
		var err error
		if due, err = w.wait(ctx, changed); err != nil {
			return err
		}
	}
}

// pages sends the objects of a span that are not before the place of the watcher. While it sends one page it reads the next.
func (w *watcher) pages(ctx context.Context, s span) error {
	if s.from.before(w.at.at) {
		s.from = w.at.at
	}
	ctx, cancel := context.WithCancel(ctx)
	var ahead <-chan []store.StreamPageRow
	defer func() {
		cancel()
		if ahead != nil {
			<-ahead
		}
	}()
	for s.from.before(s.to) {
		var rows []store.StreamPageRow
		if ahead != nil {
			rows = <-ahead
		}
		if rows == nil {
			err := w.read(ctx, func(ctx context.Context, q *store.Queries) (err error) {
				rows, err = q.StreamPage(ctx, w.page(s))
				return err
			})
			if err != nil || len(rows) == 0 {
				return err
			}
		}
		last := rows[len(rows)-1]
		s.from = place{last.Resource, last.Key}.after()
		ahead = w.readAhead(ctx, s)
		for _, r := range rows {
			c := change{resource: r.Resource, key: r.Key, version: r.Version, revision: r.Revision, spec: r.Spec, hash: r.Hash}
			if err := w.sendEncoded(c.appendTo, ""); err != nil {
				return err
			}
		}
		w.at.at = s.from
		if err := w.checkpoint(); err != nil {
			return err
		}
		if s, _, _, _ := w.target.look(w.group, 0, 0); w.check(s) != nil {
			return w.check(s)
		}
	}
	return nil
}

func (w *watcher) page(s span) store.StreamPageParams {
	return store.StreamPageParams{
		TargetID: w.target.id, FromResource: s.from.resource, FromKey: s.from.key, ToResource: s.to.resource, ToKey: s.to.key,
		Most: w.hub.rows, MostBytes: readBytes,
	}
}

// readAhead reads a page if nothing else waits for the slot. The channel is closed without one if it is read when it is needed.
func (w *watcher) readAhead(ctx context.Context, s span) <-chan []store.StreamPageRow {
	ahead := make(chan []store.StreamPageRow, 1)
	select {
	case w.hub.slots <- struct{}{}:
	default:
		close(ahead)
		return ahead
	}
	go func() {
		defer close(ahead)
		_ = w.query(ctx, func(ctx context.Context, q *store.Queries) error {
			rows, err := q.StreamPage(ctx, w.page(s))
			if err == nil && len(rows) > 0 {
				ahead <- rows
			}
			return err
		})
	}()
	return ahead
}

// keeps sends the objects that rows want but that are not published.
func (w *watcher) keeps(ctx context.Context) error {
	resources := w.filter.resources
	if len(resources) == 0 {
		err := w.read(ctx, func(ctx context.Context, q *store.Queries) (err error) {
			resources, err = q.StreamResources(ctx)
			return err
		})
		if err != nil {
			return err
		}
	}
	for _, resource := range resources {
		if err := w.keepsOf(ctx, resource); err != nil {
			return err
		}
	}
	return nil
}

func (w *watcher) keepsOf(ctx context.Context, resource string) error {
	from := w.filter.prefix
	for {
		var rows []store.StreamUnsettledRow
		err := w.read(ctx, func(ctx context.Context, q *store.Queries) (err error) {
			rows, err = q.StreamUnsettled(ctx, store.StreamUnsettledParams{TargetID: w.target.id, Resource: resource, FromKey: from, Most: w.hub.rows})
			return err
		})
		if err != nil {
			return err
		}
		for _, r := range rows {
			if !w.filter.matches(resource, r.Key) {
				return nil // behind the prefix
			}
			if err := w.send(encodeKeep(resource, r.Key, r.Reason)); err != nil {
				return err
			}
		}
		if len(rows) < int(w.hub.rows) {
			return nil
		}
		from = rows[len(rows)-1].Key + "\x01"
		if err := w.out.flush(); err != nil {
			return err
		}
	}
}

// join sends what the watcher has missed since its place, and the deletes up to there that no client has confirmed: a client that has
// lost its objects, or its last report, does not know of them.
func (w *watcher) join(ctx context.Context) error {
	before := w.at.version
	if err := w.catchUp(ctx); err != nil || !w.ack {
		return err
	}
	for after, more := int64(0), true; more; {
		var rows []store.StreamUnacknowledgedRow
		err := w.read(ctx, func(ctx context.Context, q *store.Queries) (err error) {
			rows, err = q.StreamUnacknowledged(ctx, store.StreamUnacknowledgedParams{TargetID: w.target.id, After: after, Upto: before, Most: w.hub.rows})
			return err
		})
		if err != nil {
			return err
		}
		for _, r := range rows {
			after = r.Version
			if !w.filter.matches(r.Resource, r.Key) {
				continue
			}
			if err := w.sendEncoded(change{resource: r.Resource, key: r.Key, version: r.Version}.appendTo, ""); err != nil {
				return err
			}
		}
		more = len(rows) == int(w.hub.rows)
	}
	return nil
}

// catchUp sends what the table has after the place of the watcher.
func (w *watcher) catchUp(ctx context.Context) error {
	for {
		b, changes, err := w.changes(ctx, w.at.version)
		switch {
		case err != nil:
			return err
		case b.stream != w.at.stream:
			return again{resetUnknown}
		case b.epoch != w.at.epoch, b.head < w.at.version: // nobody may have noticed the restore yet
			return again{resetRestored}
		case b.floor > w.at.version:
			return again{resetExpired}
		}
		for _, c := range changes {
			if !w.filter.matches(c.resource, c.key) {
				continue
			}
			if err := w.sendEncoded(c.appendTo, ""); err != nil {
				return err
			}
		}
		if len(changes) == 0 || changes[len(changes)-1].version >= b.head {
			w.advance(b.head)
			w.reached, w.ack = b.reached, b.ack
			return nil
		}
		w.advance(changes[len(changes)-1].version)
		if err := w.checkpoint(); err != nil {
			return err
		}
	}
}

// changes reads the bounds of the stream, and what it has after a version.
func (w *watcher) changes(ctx context.Context, after int64) (b bounds, changes []change, err error) {
	var rows []store.StreamChangesRow
	err = w.read(ctx, func(ctx context.Context, q *store.Queries) (err error) {
		rows, err = q.StreamChanges(ctx, store.StreamChangesParams{TargetIds: []int32{w.target.id}, Afters: []int64{after}, Most: w.hub.rows, MostBytes: readBytes})
		return err
	})
	if err != nil {
		return b, nil, err
	}
	b, changes, gone := parse(rows)
	if gone {
		return b, nil, ended{closedReleased}
	}
	w.obey(b.controls)
	return b, changes, nil
}

// read reads from the database when it is this watcher's turn, and again while the database does not answer.
func (w *watcher) read(ctx context.Context, query func(context.Context, *store.Queries) error) error {
	for {
		if err := w.ending(); err != nil {
			return err
		}
		if err := w.turn(ctx); err != nil {
			return err
		}
		err := w.query(ctx, query)
		if err == nil || ctx.Err() != nil {
			return err
		}
		if err := w.waiting(waitingDatabase); err != nil {
			return err
		}
		again := make(chan struct{})
		timer := time.AfterFunc(readAgain, func() { close(again) })
		_, err = w.wait(ctx, again)
		timer.Stop()
		if err != nil {
			return err
		}
	}
}

func (w *watcher) query(ctx context.Context, query func(context.Context, *store.Queries) error) error {
	defer func() { <-w.hub.slots }()
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return query(ctx, store.New(w.hub.cfg.DB))
}

// turn waits for a slot. Snapshots and watchers that are behind share a few, so that they cannot delay the others.
func (w *watcher) turn(ctx context.Context) error {
	for {
		select {
		case w.hub.slots <- struct{}{}:
			return nil
		case <-w.beat.C:
			w.beat.Reset(pause())
			if err := w.waiting(waitingQueue); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-w.stop:
			return ended{closedDraining}
		case <-w.limit:
			return ended{closedTimeout}
		}
	}
}
