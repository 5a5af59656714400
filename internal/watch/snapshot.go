package watch

import (
	"context"
	"math"
	"time"

	"github.com/pgreconciler/reconciler/internal/budget"
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
	return w.sendNow(encodePlace("end_of_snapshot", w.at, text, w.reached, w.controls), text)
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
	var ahead <-chan page
	defer func() {
		cancel()
		if ahead != nil {
			(<-ahead).drop()
		}
	}()
	for s.from.before(s.to) {
		var next page
		if ahead != nil {
			next, ahead = <-ahead, nil
		}
		if next.rows == nil {
			err := w.read(ctx, func(ctx context.Context, q *store.Queries, most int64) (bytes int64, err error) {
				next.rows, err = q.StreamPage(ctx, w.page(s, most))
				return pageSize(next.rows), err
			})
			if err != nil || len(next.rows) == 0 {
				return err
			}
		} else {
			w.hold(next.loan)
		}
		last := next.rows[len(next.rows)-1]
		s.from = place{last.Resource, last.Key}.after()
		ahead = w.readAhead(ctx, s)
		for _, r := range next.rows {
			c := change{resource: r.Resource, key: r.Key, version: r.Version, revision: r.Revision, spec: r.Spec, hash: r.Hash}
			if err := w.sendChange(c); err != nil {
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

// page is one that was read ahead.
type page struct {
	rows []store.StreamPageRow // nil: none was
	loan *budget.Loan
}

func (p page) drop() {
	if p.loan != nil {
		p.loan.Return()
	}
}

func pageSize(rows []store.StreamPageRow) (bytes int64) {
	for _, r := range rows {
		bytes += int64(rowBytes + len(r.Resource) + len(r.Key) + len(r.Spec))
	}
	return bytes
}

func (w *watcher) page(s span, most int64) store.StreamPageParams {
	return store.StreamPageParams{
		TargetID: w.target.id, FromResource: s.from.resource, FromKey: s.from.key, ToResource: s.to.resource, ToKey: s.to.key,
		Most: w.hub.rowsOf(most), MostBytes: most,
	}
}

// readAhead reads a page if nothing else waits for the slot, and there is plenty of memory. The channel is closed without one if it is
// to be read when it is needed.
func (w *watcher) readAhead(ctx context.Context, s span) <-chan page {
	ahead := make(chan page, 1)
	loan := w.hub.pages.TryTake(pageMost + objectMost)
	if loan == nil {
		close(ahead)
		return ahead
	}
	select {
	case w.hub.slots <- struct{}{}:
	default:
		loan.Return()
		close(ahead)
		return ahead
	}
	go func() {
		defer close(ahead)
		var rows []store.StreamPageRow
		err := w.query(ctx, func(ctx context.Context, q *store.Queries) (err error) {
			rows, err = q.StreamPage(ctx, w.page(s, pageMost))
			return err
		})
		if err != nil || len(rows) == 0 {
			loan.Return()
			return
		}
		loan.Set(pageSize(rows) + bufferBytes)
		ahead <- page{rows, loan}
	}()
	return ahead
}

// keeps sends the objects that rows want but that are not published.
func (w *watcher) keeps(ctx context.Context) error {
	resources := w.filter.resources
	if len(resources) == 0 {
		err := w.read(ctx, func(ctx context.Context, q *store.Queries, most int64) (_ int64, err error) {
			resources, err = q.StreamResources(ctx)
			return most, err
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
		err := w.read(ctx, func(ctx context.Context, q *store.Queries, most int64) (_ int64, err error) {
			rows, err = q.StreamUnsettled(ctx, store.StreamUnsettledParams{TargetID: w.target.id, Resource: resource, FromKey: from, Most: w.hub.rows})
			return most, err
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
		err := w.read(ctx, func(ctx context.Context, q *store.Queries, most int64) (_ int64, err error) {
			rows, err = q.StreamUnacknowledged(ctx, store.StreamUnacknowledgedParams{TargetID: w.target.id, After: after, Upto: before, Most: w.hub.rows})
			return most, err
		})
		if err != nil {
			return err
		}
		for _, r := range rows {
			after = r.Version
			if !w.filter.matches(r.Resource, r.Key) {
				continue
			}
			if err := w.sendChange(change{resource: r.Resource, key: r.Key, version: r.Version}); err != nil {
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
			if err := w.sendChange(c); err != nil {
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
	err = w.read(ctx, func(ctx context.Context, q *store.Queries, most int64) (bytes int64, err error) {
		rows, err = q.StreamChanges(ctx, store.StreamChangesParams{TargetIds: []int32{w.target.id}, Afters: []int64{after}, Most: w.hub.rowsOf(most), MostBytes: most})
		return changesSize(rows), err
	})
	if err != nil {
		return b, nil, err
	}
	b, changes, _, gone := parse(rows)
	if gone {
		return b, nil, ended{closedReleased}
	}
	w.obey(b.controls)
	return b, changes, nil
}

// read reads from the database when it is this watcher's turn, and again while the database does not answer. It borrows for the
// largest page before it waits for its turn: a page that turned out larger than its loan would exceed the pool, and as many could be
// under way as there are loans. What it reads stays on loan until the watcher reads again, has nothing to send, or ends. query returns how many bytes it has read; it may read most,
// beside one object.
func (w *watcher) read(ctx context.Context, query func(ctx context.Context, q *store.Queries, most int64) (bytes int64, err error)) error {
	for {
		if err := w.ending(); err != nil {
			return err
		}
		most := w.hub.pageBytes()
		if err := w.take(ctx, most+objectMost); err != nil {
			return err
		}
		if err := w.turn(ctx); err != nil {
			return err
		}
		err := w.query(ctx, func(ctx context.Context, q *store.Queries) error {
			bytes, err := query(ctx, q, most)
			w.loan.Set(bytes + bufferBytes)
			return err
		})
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

// take takes memory for what the watcher is about to send, in place of what it had.
func (w *watcher) take(ctx context.Context, bytes int64) error {
	loan := w.hub.pages.Take(bytes)
	select {
	case <-loan.Ready:
		w.hold(loan)
		return nil
	default:
	}
	// It waits with nothing in its hands, so that those who wait do not take the memory that they wait for.
	w.hold(loan)
	w.out.writing.holds.Store(false)
	if err := w.out.flush(); err != nil {
		return err
	}
	err := w.await(ctx, loan.Ready, nil)
	w.out.writing.holds.Store(err == nil)
	return err
}

// hold gives back what the watcher had.
func (w *watcher) hold(loan *budget.Loan) {
	w.giveBack()
	w.loan = loan
	w.out.writing.holds.Store(true)
}

func (w *watcher) giveBack() {
	if w.loan != nil {
		w.loan.Return()
	}
	w.loan = nil
	w.out.writing.holds.Store(false)
}

func (w *watcher) query(ctx context.Context, query func(context.Context, *store.Queries) error) error {
	defer func() { <-w.hub.slots }()
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return query(ctx, store.New(w.hub.cfg.DB))
}

// turn waits for a slot. Snapshots and watchers that are behind share a few, so that they cannot delay the others.
func (w *watcher) turn(ctx context.Context) error { return w.await(ctx, nil, w.hub.slots) }

// await returns when ready is closed, or slots has taken a value. Meanwhile the client is told what it waits for.
func (w *watcher) await(ctx context.Context, ready <-chan struct{}, slots chan<- struct{}) error {
	for {
		select {
		case <-ready:
			return nil
		case slots <- struct{}{}:
			return nil
		case <-w.beat.C:
			w.beat.Reset(pause())
			if err := w.waiting(waitingQueue); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-w.grant.revoked:
			return ended{closedRevoked}
		case <-w.stop:
			return ended{closedDraining}
		case <-w.limit:
			return ended{closedTimeout}
		}
	}
}
