package leader

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/metrics"
	"github.com/pgreconciler/reconciler/internal/outbox"
	"github.com/pgreconciler/reconciler/internal/pgtest"
)

const (
	// within is how long a test waits for what must happen.
	within   = pgtest.Patience
	instance = "00000000-0000-0000-0000-000000000001"
)

// bed is a database with a tracked table apps, and a leader and a listener that tests start and stop.
type bed struct {
	t        *testing.T
	db       *pgtest.DB
	url      string // of the listener and the leader
	feed     *outbox.Feed
	listener *outbox.Listener
	metrics  *metrics.Metrics
	registry *prometheus.Registry
	log      *slog.Logger

	dozing, asleep, awake chan struct{}
}

func newBed(t *testing.T) *bed { return bedOn(t, pgtest.New(t)) }

func bedOn(t *testing.T, db *pgtest.DB) *bed {
	t.Helper()
	registry := prometheus.NewRegistry()
	b := &bed{
		t: t, db: db, url: db.URL, metrics: metrics.New(registry), registry: registry,
		log:    slog.New(slog.NewTextHandler(newTestLog(t), nil)),
		dozing: make(chan struct{}, 100), asleep: make(chan struct{}, 100), awake: make(chan struct{}, 100),
	}
	b.feed = outbox.NewFeed(b.db.Pool, b.metrics)
	b.exec(`CREATE TABLE apps (id text PRIMARY KEY, region text NOT NULL DEFAULT 'eu', image text)`)
	b.exec(`SELECT reconciler.track('app', 'apps', '{id}', 'region')`)
	b.exec(`SELECT reconciler.adopt()`)
	// The database is a copy of one that may be older than the turn of a part: retention would empty what the test reads.
	b.exec(`UPDATE reconciler.installation SET rotated_at = clock_timestamp()`)
	b.exec(`UPDATE reconciler.leases SET owner = $1, term = 1, lease_ttl = '1 hour'`, instance)
	return b
}

// testLog keeps what a test's processes logged last, and a test that fails shows it.
type testLog struct {
	mu    sync.Mutex
	lines []string
}

const testLogLines = 50

func newTestLog(t *testing.T) *testLog {
	l := &testLog{}
	t.Cleanup(func() {
		if t.Failed() {
			l.mu.Lock()
			defer l.mu.Unlock()
			t.Logf("log:\n%s", strings.Join(l.lines, ""))
		}
	})
	return l
}

func (l *testLog) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines[max(0, len(l.lines)-testLogLines+1):], string(line))
	return len(line), nil
}

func (b *bed) exec(sql string, args ...any) {
	b.t.Helper()
	b.db.Exec(b.t, sql, args...)
}

// change writes a row.
func (b *bed) change(id string) {
	b.t.Helper()
	b.exec(`INSERT INTO apps (id) VALUES ($1) ON CONFLICT (id) DO UPDATE SET image = coalesce(apps.image, '') || 'x'`, id)
}

// begin opens a transaction that stays open until it is committed or the test ends.
func (b *bed) begin() pgx.Tx {
	b.t.Helper()
	tx, err := b.db.Conn(b.t).Begin(b.t.Context())
	require.NoError(b.t, err)
	return tx
}

func (b *bed) in(tx pgx.Tx, sql string, args ...any) {
	b.t.Helper()
	_, err := tx.Exec(b.t.Context(), sql, args...)
	require.NoError(b.t, err)
}

func (b *bed) commit(tx pgx.Tx) {
	b.t.Helper()
	require.NoError(b.t, tx.Commit(b.t.Context()))
}

func (b *bed) text(sql string, args ...any) string {
	b.t.Helper()
	var text *string
	require.NoError(b.t, b.db.Pool.QueryRow(b.t.Context(), sql, args...).Scan(&text))
	if text == nil {
		return ""
	}
	return *text
}

// eventually waits until something is so.
func (b *bed) eventually(what string, is func() bool) {
	b.t.Helper()
	err := pgtest.Poll(context.Background(), within, func() error {
		if !is() {
			return errors.New("it did not happen: " + what)
		}
		return nil
	})
	if err != nil {
		require.FailNow(b.t, err.Error(), "sessions:\n%s", b.text(sessions))
	}
}

// sessions lists the sessions of the database and what they wait for, for the message of a test that fails.
const sessions = `SELECT string_agg(concat_ws(' ', pid, state, clock_timestamp() - state_change, wait_event_type, wait_event, 'behind', pg_blocking_pids(pid), left(query, 200)), E'\n' ORDER BY pid)
	FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`

// reach waits for a signal.
func (b *bed) reach(what string, c <-chan struct{}) {
	b.t.Helper()
	select {
	case <-c:
	case <-time.After(within):
		require.FailNow(b.t, "it did not happen: "+what, "transactions of the server:\n%s", b.text(transactions))
	}
}

// transactions lists those of the whole server that a leader waits for before it sleeps.
const transactions = `SELECT string_agg(concat_ws(' ', datname, xid, now() - since, query), E'\n' ORDER BY since)
	FROM (SELECT datname, backend_xid::text, xact_start, left(query, 200) FROM pg_stat_activity WHERE backend_xid IS NOT NULL
		UNION ALL SELECT database, transaction::text, prepared, gid FROM pg_prepared_xacts) AS t (datname, xid, since, query)`

// background runs a loop until the test ends or stop is called.
func (b *bed) background(run func(context.Context) error) (stop func() error) {
	ctx, cancel := context.WithCancel(b.t.Context())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	b.t.Cleanup(func() { _ = stop() })
	return stop
}

// listen starts a listener.
func (b *bed) listen(change ...func(*outbox.Listener)) (stop func() error) {
	b.t.Helper()
	b.listener = &outbox.Listener{URL: b.url, Name: "bed", Logger: b.log, Metrics: b.metrics}
	for _, fn := range change {
		fn(b.listener)
	}
	return b.background(b.listener.Run)
}

func (b *bed) listens() {
	b.t.Helper()
	b.eventually("LISTEN works", b.listener.Works)
}

// ticker returns a leader that is not started.
func (b *bed) ticker() *Ticker {
	return &Ticker{
		URL: b.url, Name: "bed", Instance: instance, Feed: b.feed, Listener: b.listener, Poll: 20 * time.Millisecond, Logger: b.log, Metrics: b.metrics,
		testDozing: b.dozing, testAsleep: b.asleep, testAwake: b.awake,
	}
}

// lead starts a leader and returns when it knows the newest revision.
func (b *bed) lead(change ...func(*Ticker)) (stop func() error) {
	b.t.Helper()
	leader := b.ticker()
	for _, fn := range change {
		fn(leader)
	}
	ready := make(chan struct{})
	stop = b.background(func(ctx context.Context) error { return leader.Run(ctx, 1, ready) })
	b.reach("leadership", ready)
	return stop
}

// series returns the value of a counter or gauge, by its name and (if it has one) its label's value.
func (b *bed) series(name, label string) float64 {
	b.t.Helper()
	families, err := b.registry.Gather()
	require.NoError(b.t, err)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			if family.GetName() == "reconciler_"+name && (label == "" || len(m.GetLabel()) == 1 && m.GetLabel()[0].GetValue() == label) {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return 0
}

// polls is how often the leader has looked without being called, calls how often it was called.
func (b *bed) polls() float64 { return b.series("wakeups_total", "poll") }
func (b *bed) calls() float64 { return b.series("wakeups_total", "notify") }

// reader is a consumer that notes the keys of all events that reach it.
type reader struct {
	b    *bed
	mu   sync.Mutex // guards what follows
	keys []string
	done outbox.Tick // everything up to here has been read
}

// read starts a consumer that stands at the newest revision.
func (b *bed) read() *reader {
	b.t.Helper()
	from, _ := b.feed.Latest()
	return b.readFrom(from)
}

func (b *bed) readFrom(from outbox.Tick) *reader {
	b.t.Helper()
	r := &reader{b: b, done: from}
	b.background(func(ctx context.Context) error { return r.run(ctx, from) })
	return r
}

func (r *reader) run(ctx context.Context, from outbox.Tick) error {
	for {
		to, wake := r.b.feed.Latest()
		if to.Revision <= from.Revision {
			select {
			case <-wake:
				continue
			case <-ctx.Done():
				return nil
			}
		}
		at := outbox.Position{}
		for more := true; more; {
			page, err := r.b.feed.Read(ctx, from, to, at)
			if err != nil {
				return err
			}
			r.note(page)
			at, more = page.Last, page.More
		}
		from = to
		r.reached(to)
	}
}

func (r *reader) reached(tick outbox.Tick) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done = tick
}

// cursor returns the tick up to which everything was read.
func (r *reader) cursor() outbox.Tick {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.done
}

func (r *reader) note(page *outbox.Page) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range page.Events {
		if e.Key != nil {
			r.keys = append(r.keys, *e.Key)
		}
	}
}

// got returns the keys so far.
func (r *reader) got() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.keys)
}

func (r *reader) clear() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keys = nil
}

// gets waits for a key.
func (r *reader) gets(key string) {
	r.b.t.Helper()
	r.b.eventually("event of "+key+" arrives", func() bool { return slices.Contains(r.got(), key) })
}
