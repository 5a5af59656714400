package apply

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/pgreconciler/reconciler/internal/outbox"
)

// cursor is a place in the outbox: everything up to base, and of the batch after it everything up to at.
type cursor struct {
	base  outbox.Tick
	batch outbox.Tick // zero between batches
	at    outbox.Position
}

// span is a piece of a batch whose objects are on their way.
type span struct {
	end     cursor
	opened  time.Time
	handed  bool                  // every object of it is in the queue
	objects map[ObjectID]struct{} // not recorded yet
}

const (
	// Pages and objects that may be open at once. Changes of objects that wait already take no room in the queue, so
	// the queue alone would not stop the reading of them.
	openPages   = 1000
	openObjects = 32_768
	// patience is how long an object may hold the cursor.
	patience = 2 * time.Second
)

// tracker knows how far the cursor may move: to the end of the last page before which every object is recorded.
type tracker struct {
	opened chan struct{} // receives a value when a page was opened

	mu    sync.Mutex    // guards what follows, and every span
	pages []*span       // oldest first
	total int           // objects of all pages
	reach cursor        // end of the newest settled prefix
	moved bool          // reach was not taken yet
	room  chan struct{} // closed and replaced when pages have settled
}

func newTracker() *tracker {
	return &tracker{opened: make(chan struct{}, 1), room: make(chan struct{})}
}

// open adds a page, waiting while too many are open. It stays open, whatever settles, until close.
func (t *tracker) open(ctx context.Context, end cursor) (*span, error) {
	for {
		p, room := t.tryOpen(end)
		if p != nil {
			return p, nil
		}
		select {
		case <-room:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (t *tracker) tryOpen(end cursor) (*span, <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.pages) >= openPages || t.total >= openObjects {
		return nil, t.room
	}
	p := &span{end: end, opened: time.Now(), objects: map[ObjectID]struct{}{}}
	t.pages = append(t.pages, p)
	signal(t.opened)
	return p, nil
}

// add counts an object of a page.
func (t *tracker) add(p *span, id ObjectID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p.objects[id] = struct{}{}
	t.total++
}

// close says that every object of a page was added.
func (t *tracker) close(p *span) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p.handed = true
	t.advanceLocked()
}

// handedOut reports whether every object of these pages is in the queue, or was taken from it.
func (t *tracker) handedOut(pages []*span) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !slices.ContainsFunc(pages, func(p *span) bool { return !p.handed })
}

// settle counts an object as recorded in pages.
func (t *tracker) settle(id ObjectID, pages []*span) {
	if len(pages) == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range pages {
		if _, ok := p.objects[id]; ok {
			delete(p.objects, id)
			t.total--
		}
	}
	t.advanceLocked()
}

func (t *tracker) advanceLocked() {
	n := 0
	for n < len(t.pages) && t.pages[n].handed && len(t.pages[n].objects) == 0 {
		t.reach, t.moved = t.pages[n].end, true
		t.pages[n] = nil
		n++
	}
	if t.pages = t.pages[n:]; n > 0 {
		close(t.room)
		t.room = make(chan struct{})
	}
}

// take returns the cursor to record, once for each move.
func (t *tracker) take() (cursor, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	moved := t.moved
	t.moved = false
	return t.reach, moved
}

// busy reports whether pages are open, or a move waits to be recorded.
func (t *tracker) busy() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.moved || len(t.pages) > 0
}

// late returns the objects that keep pages open for longer than patience. Once they are recorded as in hand, release
// lets the cursor pass.
func (t *tracker) late(now time.Time) (objects []ObjectID, release func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var pages []*span
	seen := map[ObjectID]bool{}
	for _, p := range t.pages {
		if !p.handed || now.Sub(p.opened) < patience {
			break
		}
		pages = append(pages, p)
		for id := range p.objects {
			if !seen[id] {
				seen[id] = true
				objects = append(objects, id)
			}
		}
	}
	if len(pages) == 0 {
		return nil, nil
	}
	return objects, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		for _, p := range pages {
			t.total -= len(p.objects)
			clear(p.objects)
		}
		t.advanceLocked()
	}
}
