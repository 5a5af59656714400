package watch

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pgreconciler/reconciler/internal/budget"
	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/loop"
	"github.com/pgreconciler/reconciler/internal/metrics"
	"github.com/pgreconciler/reconciler/internal/pace"
	"github.com/pgreconciler/reconciler/internal/store"
)

const (
	// Conns is the number of connections of a hub. It keeps one for itself, requests and slow watchers share some, and reports others.
	Conns   = 1 + readers + writers
	readers = 4
	writers = 2

	// readRows bounds one read of one stream, and readBytes that of all streams, beside one object.
	readRows  = 1000
	readBytes = 4 << 20
	// pageMost bounds what a watcher reads at once, beside one object, and pageLeast where much of the memory for pages is taken.
	pageMost  = 512 << 10
	pageLeast = 64 << 10
	// rowBytes is what a row takes beside its texts, in the queries, too.
	rowBytes = 200

	// readTimeout is how long a statement may take.
	readTimeout = 30 * time.Second
	// readAgain is the pause after one that failed.
	readAgain = time.Second
)

var (
	// pollEvery finds what no notification told of.
	pollEvery = time.Second
	// countEvery is how often who watches is written down.
	countEvery = pace.Of(15 * time.Second)
)

// ErrUnknown is returned for a target that has no stream.
var ErrUnknown = errors.New("no such stream")

// Config is what a Hub is made from. All fields are required.
type Config struct {
	DB       store.DBTX // a pool of Conns connections, whose statements walk indexes: see database.WatchSession
	Instance string     // id of the process
	Metrics  *metrics.Metrics
	Loops    *loop.Monitor
	Budget   *budget.Budget
	// Published receives when another process has published something.
	Published <-chan struct{}
}

// Hub follows all streams that this process has watchers of.
type Hub struct {
	cfg     Config
	wake    chan struct{} // of size one
	counted chan struct{} // of size one: who watches has changed
	slots   chan struct{} // for reads of watchers, first come, first served
	rows    int32         // of a read; tests lower it
	keeping int64         // bytes of frames that are kept; tests lower it
	stall   time.Duration // see stallTimeout; tests lower it
	pages   *budget.Pool  // what watchers have read and not yet sent

	mu      sync.Mutex // guards what follows
	targets map[string]*target
	writing map[*writing]string // responses, by their targets
	kept    []keptFrame         // the oldest first
	bytes   int64
}

type keptFrame struct {
	target  *target
	version int64
	bytes   int
}

// NewHub makes a hub. It reads nothing before Run.
func NewHub(cfg Config) *Hub {
	return &Hub{
		cfg: cfg, wake: make(chan struct{}, 1), counted: make(chan struct{}, 1), slots: make(chan struct{}, readers), targets: map[string]*target{}, writing: map[*writing]string{},
		rows: readRows, keeping: cfg.Budget.Frames, pages: cfg.Budget.Pages, stall: stallTimeout,
	}
}

// Wake makes the hub read at once what is new.
func (h *Hub) Wake() { signal(h.wake) }

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run follows the streams until ctx ends.
func (h *Hub) Run(ctx context.Context) error {
	entry := h.cfg.Loops.Loop(loop.Streams, "")
	poll, count := time.NewTicker(pollEvery), time.NewTicker(countEvery)
	defer poll.Stop()
	defer count.Stop()
	for {
		more, err := h.read(ctx)
		if ctx.Err() != nil {
			return nil
		}
		entry.Done(err)
		if err != nil {
			h.fallSilent()
			more = false
		}
		if more {
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-h.wake:
		case <-h.cfg.Published:
		case <-poll.C:
			h.endStalled()
		case <-h.counted:
			h.count(ctx)
		case <-count.C:
			h.count(ctx)
		}
	}
}

// read reads what is new in all streams in one statement. It returns whether there is more.
func (h *Hub) read(ctx context.Context) (more bool, err error) {
	params := store.StreamChangesParams{Most: h.rows, MostBytes: readBytes}
	byID := map[int32]*target{}
	for _, t := range h.list() {
		after, read := t.head()
		if !read {
			after = math.MaxInt64 // the head alone
		}
		byID[t.id] = t
		params.TargetIds, params.Afters = append(params.TargetIds, t.id), append(params.Afters, after)
	}
	if len(byID) == 0 {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	rows, err := store.New(h.cfg.DB).StreamChanges(ctx, params)
	if err != nil {
		return false, err
	}
	for _, of := range perTarget(rows) {
		t := byID[of[0].TargetID]
		b, changes, unfit, gone := parse(of)
		if gone {
			h.remove(t)
			continue
		}
		switch {
		case unfit:
			more = true
			b = t.cut(b, params.Afters[slices.Index(params.TargetIds, t.id)])
		case len(changes) > 0 && changes[len(changes)-1].version < b.head:
			more = true
			b = t.cut(b, changes[len(changes)-1].version)
		}
		t.see(b, changes, func(version int64, bytes int) { h.keep(t, version, bytes) })
		h.cfg.Metrics.StreamVersion.WithLabelValues(t.name).Set(float64(b.head))
	}
	h.trim()
	return more, nil
}

// cut limits bounds to what was read of them: no revision is reached before everything up to it is read.
func (t *target) cut(b bounds, version int64) bounds {
	t.mu.Lock()
	defer t.mu.Unlock()
	b.head, b.reached = version, t.state.reached
	return b
}

// perTarget splits the rows, which are in the order of targets.
func perTarget(rows []store.StreamChangesRow) (split [][]store.StreamChangesRow) {
	for i := range rows {
		if i == 0 || rows[i].TargetID != rows[i-1].TargetID {
			split = append(split, nil)
		}
		split[len(split)-1] = append(split[len(split)-1], rows[i])
	}
	return split
}

// parse returns what the rows of one target have. unfit: it has changes, and there was no room for any of them.
func parse(rows []store.StreamChangesRow) (b bounds, changes []change, unfit, gone bool) {
	first := rows[0]
	stream, err := uuid.Parse(first.Stream)
	if err != nil {
		return b, nil, false, true
	}
	b = bounds{
		stream: stream, epoch: uuid.MustParse(first.Epoch), complete: first.Complete, ack: first.Ack, floor: first.Floor, head: first.Head, reached: first.Reached,
		controls: controls{Paused: first.Paused, Resync: first.Resyncs, Retry: first.Retries, Approve: first.Approvals, pauses: first.Pauses},
	}
	for _, r := range rows {
		if r.Version > 0 && !r.Unfit {
			changes = append(changes, change{resource: r.Resource, key: r.Key, version: r.Version, revision: r.Revision, spec: r.Spec, hash: r.Hash})
		}
	}
	return b, changes, first.Unfit, false
}

func changesSize(rows []store.StreamChangesRow) (bytes int64) {
	for _, r := range rows {
		bytes += int64(rowBytes + len(r.Resource) + len(r.Key) + len(r.Spec))
	}
	return bytes
}

// pageBytes is how much a watcher may read at once. One that waits for its client holds that until the client has read it.
func (h *Hub) pageBytes() int64 {
	if h.pages.HalfLent() {
		return pageLeast
	}
	return pageMost
}

// rowsOf returns how many rows may have so many bytes: to look at more would be in vain.
func (h *Hub) rowsOf(bytes int64) int32 { return min(h.rows, int32(bytes/rowBytes)+1) }

// endStalled ends watchers whose clients read nothing, while others wait for the memory of their pages.
func (h *Hub) endStalled() {
	if !h.pages.Waited() {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for w, target := range h.writing {
		if w.endStalled(h.stall) {
			h.cfg.Metrics.StreamStalled.WithLabelValues(target).Inc()
		}
	}
}

// writes has endStalled look at a response until the function that it returns is called.
func (h *Hub) writes(w *writing, target string) (done func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.writing[w] = target
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.writing, w)
	}
}

func (h *Hub) list() []*target {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := make([]*target, 0, len(h.targets))
	for _, t := range h.targets {
		list = append(list, t)
	}
	return list
}

func (h *Hub) remove(t *target) {
	h.mu.Lock()
	if h.targets[t.name] == t {
		delete(h.targets, t.name)
	}
	h.mu.Unlock()
	t.leave()
}

func (h *Hub) fallSilent() {
	for _, t := range h.list() {
		t.fallSilent()
	}
}

func (h *Hub) keep(t *target, version int64, bytes int) {
	h.kept = append(h.kept, keptFrame{t, version, bytes})
	h.bytes += int64(bytes)
}

// trim forgets the oldest frames once there are too many bytes, an eighth of them at once. Only Run calls it and keep.
func (h *Hub) trim() {
	defer func() { h.cfg.Budget.FramesUsed.Store(h.bytes) }()
	if h.bytes <= h.keeping {
		return
	}
	upto := map[*target]int64{}
	n := 0
	for ; h.bytes > h.keeping/8*7; n++ {
		k := h.kept[n]
		upto[k.target] = k.version
		h.bytes -= int64(k.bytes)
	}
	h.kept = slices.Clone(h.kept[n:])
	for t, version := range upto {
		t.mu.Lock()
		t.forget(version)
		t.mu.Unlock()
	}
}

// join finds a stream, and makes the watcher one of its watchers. It waits until the stream's state is known.
func (h *Hub) join(ctx context.Context, name string, w *watcher) (*target, error) {
	for {
		t, err := h.find(ctx, name)
		if err != nil {
			return nil, err
		}
		select {
		case <-t.ready:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if h.admit(t, w) {
			return t, nil
		}
	}
}

// admit adds a watcher to a stream. It returns false if the hub has dropped the stream.
func (h *Hub) admit(t *target, w *watcher) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.state.gone {
		return false
	}
	w.group = t.groups.join(w.filter, t.state.head)
	w.sent.Store(t.state.head) // until it is known where it begins
	t.watchers[w] = struct{}{}
	if len(t.watchers) == 1 {
		signal(h.counted)
	}
	return true
}

func (h *Hub) leave(t *target, w *watcher) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.watchers, w)
	t.groups.leave(w.group)
}

// ask runs a query on a connection that requests share.
func (h *Hub) ask(ctx context.Context, query func(q *store.Queries) error) error {
	select {
	case h.slots <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-h.slots }()
	return query(store.New(h.cfg.DB))
}

func (h *Hub) find(ctx context.Context, name string) (*target, error) {
	h.mu.Lock()
	t := h.targets[name]
	h.mu.Unlock()
	if t != nil {
		return t, nil
	}
	var id int32
	err := h.ask(ctx, func(q *store.Queries) (err error) {
		id, err = q.StreamFind(ctx, name)
		return err
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, ErrUnknown
	}
	if err != nil {
		return nil, fmt.Errorf("find the stream: %w", database.Explain(err))
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.targets[name] == nil {
		h.cfg.Metrics.Stream(name)
		h.targets[name] = newTarget(name, id)
		h.Wake()
	}
	return h.targets[name], nil
}

// count writes down who watches, and forgets streams that nothing watches.
func (h *Hub) count(ctx context.Context) {
	params := store.StreamWatchParams{Instance: h.cfg.Instance}
	for _, t := range h.list() {
		watchers, behind, resets := t.count()
		h.cfg.Metrics.StreamWatchers.WithLabelValues(t.name).Set(float64(watchers))
		h.cfg.Metrics.StreamBehind.WithLabelValues(t.name).Set(float64(behind))
		if watchers == 0 {
			h.idle(t)
			continue
		}
		params.TargetIds, params.Watchers = append(params.TargetIds, t.id), append(params.Watchers, int32(min(watchers, math.MaxInt32)))
		params.Behinds, params.Resets = append(params.Behinds, behind), append(params.Resets, resets)
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	err := store.New(h.cfg.DB).StreamWatch(ctx, params)
	if ctx.Err() == nil {
		h.cfg.Loops.Loop(loop.Watchers, "").Done(err)
	}
}

// idle forgets a stream if it still has no watchers. A watcher that is joining finds it again.
func (h *Hub) idle(t *target) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.watchers) == 0 && t.read {
		t.state.gone = true
		delete(h.targets, t.name)
	}
}
