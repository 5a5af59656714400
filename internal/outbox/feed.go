package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/metrics"
	"github.com/pgreconciler/reconciler/internal/store"
)

const (
	// PageRows is how many outbox rows are read at once.
	PageRows = 5000
	// pageBytes bounds the texts of a page: a page of the longest ones would have tens of megabytes.
	pageBytes = 2 << 20
	// cachedPages bounds what consumers at the same place share.
	cachedPages = 16
)

// ErrBelowFloor says that a consumer's cursor is older than what retention kept: it must sync in full.
var ErrBelowFloor = errors.New("the cursor is older than the outbox: rows that it had not read were removed by retention")

// Tick is a revision and the snapshot that it stands for.
type Tick struct {
	Revision int64
	Snapshot string
	At       time.Time
}

// Position is a place inside a batch: after the row with this xid and seq. The zero Position is the beginning.
type Position struct {
	Xid uint64
	Seq int64
}

// Event is one outbox row.
type Event struct {
	Xid          uint64 // of the transaction that made the change
	ResourceID   int32
	Target       *string // nil: every target
	Key          *string // nil: the whole resource, or (with DependencyID) a row of a base table
	DependencyID *int32
	Image        []byte
}

// Mark reports whether the event is of no resource: an apply was begun, or has ended.
func (e Event) Mark() bool { return e.ResourceID == 0 }

// Whole reports whether the event concerns a whole resource.
func (e Event) Whole() bool { return e.Key == nil && e.DependencyID == nil }

// Page is a piece of a batch. It is shared between consumers and must not be changed.
type Page struct {
	Events []Event
	Last   Position // place after the last event
	More   bool     // the batch goes on after this page

	bytes      int              // of texts
	everywhere []int            // events for every target
	byTarget   map[string][]int // events for one target
}

// For calls yield for each event that concerns a target.
func (p *Page) For(target string, yield func(Event)) {
	for _, i := range p.byTarget[target] {
		yield(p.Events[i])
	}
	for _, i := range p.everywhere {
		yield(p.Events[i])
	}
}

// Names returns the targets that events of this page name.
func (p *Page) Names() map[string][]int { return p.byTarget }

// Beginner starts a batch of statements; *pgxpool.Pool and *pgx.Conn are ones.
type Beginner interface {
	store.DBTX
	database.Batcher
}

// Feed reads batches, each page once for all consumers that ask for it.
type Feed struct {
	// Fleet knows which server this process works with; nil: it is not compared.
	Fleet *database.Fleet

	db      Beginner
	metrics *metrics.Metrics

	mu     sync.Mutex // guards what follows
	latest Tick
	wake   chan struct{} // closed and replaced with each new tick
	pages  map[pageKey]*pageEntry
	order  []pageKey
}

// pageKey names a page. The snapshot is a part of it: a cursor that retention raised to the floor keeps its own, which is
// older than that of the revision that it stands at.
type pageKey struct {
	from, to int64
	snapshot string // of from
	after    Position
}

type pageEntry struct {
	ready chan struct{}
	page  *Page
	err   error
}

// NewFeed returns a feed that reads from db.
func NewFeed(db Beginner, m *metrics.Metrics) *Feed {
	return &Feed{db: db, metrics: m, wake: make(chan struct{}), pages: map[pageKey]*pageEntry{}}
}

// Latest returns the newest tick known here, and a channel that is closed when there is a newer one. Before the first
// tick its revision is 0.
func (f *Feed) Latest() (Tick, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.latest, f.wake
}

// Publish makes a tick known. Older ones than the newest are ignored.
func (f *Feed) Publish(tick Tick) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if tick.Revision <= f.latest.Revision {
		return
	}
	f.latest = tick
	f.metrics.Revision.Set(float64(tick.Revision))
	close(f.wake)
	f.wake = make(chan struct{})
}

// Reset forgets everything: after a lost connection or a restore the database may know less than this process.
func (f *Feed) Reset(tick Tick) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.latest, f.pages, f.order = tick, map[pageKey]*pageEntry{}, nil
	close(f.wake)
	f.wake = make(chan struct{})
}

// ErrRestored says that the database knew less than this process: what was committed was lost. Every target is
// applied again in full.
var ErrRestored = errors.New("the database was restored")

// Refresh reads the newest tick from the database and publishes it. If the database knows less than this process did
// when it asked, commits were lost: everybody starts over, what is known here goes too, and the error is ErrRestored.
func (f *Feed) Refresh(ctx context.Context) error {
	before, _ := f.Latest()
	queries := store.New(f.db)
	tick, err := Newest(ctx, queries)
	if err != nil || tick.Revision >= before.Revision {
		f.Publish(tick)
		return err
	}
	restored, err := Adopt(ctx, queries, before.Revision, f.Fleet)
	if err != nil {
		return fmt.Errorf("start over in a database that was restored: %w", err)
	}
	if tick, err = Newest(ctx, queries); err == nil {
		f.Reset(tick)
	}
	if restored { // and not by another process before
		return errors.Join(ErrRestored, err)
	}
	return err
}

// Adopt compares the database with what this process has seen.
func Adopt(ctx context.Context, queries *store.Queries, known int64, fleet *database.Fleet) (restored bool, err error) {
	p := store.AdoptParams{Known: known}
	if server := fleet.Known(); server != (database.Server{}) {
		p.SeenSystem, p.SeenTimeline = &server.System, server.Timeline
	}
	return queries.Adopt(ctx, p)
}

// Newest returns the newest tick; before the first one, none.
func Newest(ctx context.Context, queries *store.Queries) (Tick, error) {
	row, err := queries.TickLatest(ctx)
	if errors.Is(err, pgx.ErrNoRows) {
		return Tick{}, nil
	}
	if err != nil {
		return Tick{}, fmt.Errorf("read the newest revision: %w", err)
	}
	return Tick{Revision: row.Revision, Snapshot: row.Snapshot, At: row.At}, nil
}

// Read returns the page of the batch (from, to] after a place in it.
func (f *Feed) Read(ctx context.Context, from, to Tick, after Position) (*Page, error) {
	key := pageKey{from.Revision, to.Revision, from.Snapshot, after}
	f.mu.Lock()
	entry, ok := f.pages[key]
	if !ok {
		entry = &pageEntry{ready: make(chan struct{})}
		f.keepLocked(key, entry)
	}
	f.mu.Unlock()
	if !ok {
		entry.page, entry.err = f.load(ctx, from, to, after)
		if entry.err != nil {
			f.forget(key, entry)
		}
		close(entry.ready)
		return entry.page, entry.err
	}
	select {
	case <-entry.ready:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if entry.err != nil && ctx.Err() == nil {
		// It failed for somebody else, maybe only because that one stopped.
		return f.load(ctx, from, to, after)
	}
	return entry.page, entry.err
}

func (f *Feed) forget(key pageKey, entry *pageEntry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pages[key] != entry {
		return
	}
	delete(f.pages, key)
	// Else the key would push out a page that is read now, and then the one that was read under it again.
	if i := slices.Index(f.order, key); i >= 0 {
		f.order = slices.Delete(f.order, i, i+1)
	}
}

// Prime gives the feed the first page of the batch up to a revision, which was read already. It is of use to those who
// stand at the newest tick known here, if that is the one before.
func (f *Feed) Prime(to int64, page *Page) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.metrics.OutboxEvents.Add(float64(len(page.Events)))
	if f.latest.Revision != to-1 {
		return
	}
	entry := &pageEntry{ready: make(chan struct{}), page: page}
	close(entry.ready)
	f.keepLocked(pageKey{from: f.latest.Revision, to: to, snapshot: f.latest.Snapshot}, entry)
}

func (f *Feed) keepLocked(key pageKey, entry *pageEntry) {
	f.pages[key] = entry
	f.order = append(f.order, key)
	if len(f.order) > cachedPages {
		delete(f.pages, f.order[0])
		f.order = f.order[1:]
	}
}

func (f *Feed) load(ctx context.Context, from, to Tick, after Position) (*Page, error) {
	rows, err := store.New(database.Walk(f.db)).OutboxDelta(ctx, store.OutboxDeltaParams{
		FromSnapshot: from.Snapshot, ToSnapshot: to.Snapshot, AfterXid: strconv.FormatUint(after.Xid, 10), AfterSeq: after.Seq, PageRows: PageRows,
	})
	if err != nil {
		return nil, fmt.Errorf("read the outbox after revision %d: %w", from.Revision, err)
	}
	if len(rows) > 0 && from.Revision < rows[0].FloorRevision {
		return nil, ErrBelowFloor
	}
	page := NewPage(after)
	for _, row := range rows {
		page.Add(row.Seq, row.Xid, Event{Xid: row.Xid, ResourceID: row.ResourceID, Target: row.Target, Key: row.Key, DependencyID: row.DependencyID, Image: row.Image})
	}
	f.metrics.OutboxEvents.Add(float64(len(page.Events)))
	return page, nil
}

// NewPage returns a page without events that begins after a place.
func NewPage(after Position) *Page { return &Page{Last: after, byTarget: map[string][]int{}} }

// Add adds an event. A seq of zero stands for "no row": the queries answer with one when there is none.
func (p *Page) Add(seq int64, xid uint64, e Event) {
	if seq == 0 || p.bytes >= pageBytes { // the rest is read after it
		return
	}
	p.bytes += e.bytes()
	if i := len(p.Events); e.Target == nil {
		p.everywhere = append(p.everywhere, i)
	} else {
		p.byTarget[*e.Target] = append(p.byTarget[*e.Target], i)
	}
	p.Events = append(p.Events, e)
	p.Last, p.More = Position{Xid: xid, Seq: seq}, len(p.Events) == PageRows || p.bytes >= pageBytes
}

// bytes is how long the texts of an event are.
func (e Event) bytes() int {
	n := len(e.Image)
	if e.Target != nil {
		n += len(*e.Target)
	}
	if e.Key != nil {
		n += len(*e.Key)
	}
	return n
}
