package lease

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// patience is how long a test waits for what must come.
const patience = pgtest.Patience

// quick are timings for tests in which leases expire.
var quick = Timing{
	Heartbeat: 200 * time.Millisecond, Retry: 50 * time.Millisecond, MinTTL: 1500 * time.Millisecond,
	Live: 3 * time.Second, Gone: 20 * time.Second,
	BackoffMin: 20 * time.Millisecond, BackoffMax: 300 * time.Millisecond, StopGrace: time.Second,
}

// steadfast are those for tests in which others act as often, and no lease of a process that lives may expire, however
// busy the machine is.
var steadfast = func() Timing {
	t := quick
	t.MinTTL = 2 * patience
	return t
}()

// still are timings under which nothing happens by itself: only Control and expiries of others wake the loop.
var still = Timing{
	Heartbeat: time.Hour, Retry: 50 * time.Millisecond, MinTTL: 2 * time.Hour, Live: time.Hour, Gone: time.Hour,
	BackoffMin: time.Hour, BackoffMax: time.Hour, StopGrace: time.Second,
}

// run is one call of RunTarget.
type run struct {
	*Grant
	ctx   context.Context
	ended chan struct{} // closed when the call has returned
}

// replica is a Manager with what a test wants to know of it.
type replica struct {
	*Manager
	cfg     *Config
	wire    wire
	control chan struct{}
	log     *logBuffer
	runs    chan *run  // each call of RunTarget
	leads   chan int64 // each call of RunLeader: its term

	planned <-chan struct{}
	dropped <-chan string
	resting <-chan string
	beats   <-chan error
	left    <-chan string
}

// fleet are the replicas of one test. It fails the test if two of them own a target at the same time.
type fleet struct {
	t  *testing.T
	db *pgtest.DB

	mu    sync.Mutex
	owner map[string]*run // the last run of each target; guarded by mu
	count int             // guarded by mu
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	return fleetOn(t, pgtest.New(t))
}

func fleetOn(t *testing.T, db *pgtest.DB) *fleet {
	t.Helper()
	f := &fleet{t: t, db: db, owner: map[string]*run{}}
	f.db.Exec(t, `CREATE OR REPLACE FUNCTION reconciler.fresh_term(term bigint) RETURNS bigint RETURN fresh_term.term + 1`) // counted from 1: no clock
	return f
}

// replica makes a replica with targets of these names; adjust may change its config. It is not started.
func (f *fleet) replica(timing Timing, names []string, adjust ...func(*Config)) *replica {
	f.t.Helper()
	f.mu.Lock()
	f.count++
	id := fmt.Sprintf("00000000-0000-4000-8000-%012d", f.count)
	f.mu.Unlock()
	r := &replica{
		wire: wire{pgtest.NewLine(f.t, f.db.URL)}, control: make(chan struct{}, 1), log: new(logBuffer),
		runs: make(chan *run, 1000), leads: make(chan int64, 1000),
	}
	cfg := Config{
		Pool: f.pool(r.wire), Instance: id, Name: "host:" + id[len(id)-1:], Version: "v1", Control: r.control, Timing: timing,
		Logger:    slog.New(slog.NewTextHandler(r.log, nil)),
		RunTarget: f.own(r),
		RunLeader: func(ctx context.Context, term int64) error {
			r.leads <- term
			<-ctx.Done()
			return context.Cause(ctx)
		},
	}
	for _, name := range names {
		cfg.Targets = append(cfg.Targets, Target{Name: name, Driver: "file", Fingerprint: "one"})
	}
	for _, a := range adjust {
		a(&cfg)
	}
	r.Manager, r.cfg = New(cfg), &cfg
	r.planned, r.beats = r.signals.planned.listen(), r.signals.beat.listen()
	r.dropped, r.resting = r.signals.dropped.listen(), r.signals.resting.listen()
	r.left = r.signals.left.listen()
	return r
}

// start starts a replica and stops it at the end of the test.
func (f *fleet) start(r *replica) *replica {
	f.t.Helper()
	require.NoError(f.t, r.Start(context.WithoutCancel(f.t.Context())))
	f.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(f.t.Context()), patience)
		defer cancel()
		_ = r.Stop(ctx) // The test may have cut it off.
	})
	return r
}

// own is the RunTarget of a replica: it works until it is asked to drain, or loses the lease.
func (f *fleet) own(r *replica) func(context.Context, *Grant) error {
	return func(ctx context.Context, g *Grant) error {
		this := f.begin(ctx, g)
		defer close(this.ended)
		r.runs <- this
		select {
		case <-g.Draining():
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// begin checks I10: the lease of the run before is over, or the run has returned.
func (f *fleet) begin(ctx context.Context, g *Grant) *run {
	this := &run{Grant: g, ctx: ctx, ended: make(chan struct{})}
	f.mu.Lock()
	defer f.mu.Unlock()
	if before := f.owner[g.Target]; before != nil {
		select {
		case <-before.ended:
		default:
			if left := before.Remaining(); left > 0 {
				f.t.Errorf("VIOLATION: target %s: term %d began while term %d of %s had %v left", g.Target, g.Term, before.Term, before.Owner, left)
			}
		}
		if g.Term <= before.Term {
			f.t.Errorf("VIOLATION: target %s: term %d came after term %d", g.Target, g.Term, before.Term)
		}
	}
	f.owner[g.Target] = this
	return this
}

// forget makes begin take the next run of each target for the first.
func (f *fleet) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.owner)
}

func (f *fleet) pool(w wire) *pgxpool.Pool {
	f.t.Helper()
	config, err := pgxpool.ParseConfig(w.URL)
	require.NoError(f.t, err)
	config.MaxConns = 2
	config.ConnConfig.ConnectTimeout = patience
	pool, err := pgxpool.NewWithConfig(f.t.Context(), config)
	require.NoError(f.t, err)
	f.t.Cleanup(func() {
		w.cut() // Close waits for connections that wait for a frozen wire.
		pool.Close()
	})
	return pool
}

// wire is the way of a replica to its server.
type wire struct{ *pgtest.Line }

// cut closes every connection and refuses new ones, as when the process was killed or the server is away.
func (w wire) cut() {
	w.Refuse(true)
	w.Cut()
	w.Thaw()
}

// connectControl wakes replicas when reconciler_control is notified, as the listener of the product does.
func (f *fleet) connectControl(replicas ...*replica) {
	f.t.Helper()
	conn := f.db.Conn(f.t)
	_, err := conn.Exec(f.t.Context(), "LISTEN reconciler_control")
	require.NoError(f.t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(f.t.Context()))
	var listening sync.WaitGroup
	listening.Go(func() {
		for {
			if _, err := conn.WaitForNotification(ctx); err != nil {
				return
			}
			for _, r := range replicas {
				r.wake()
			}
		}
	})
	f.t.Cleanup(func() {
		cancel()
		listening.Wait()
	})
}

func (r *replica) wake() {
	select {
	case r.control <- struct{}{}:
	default:
	}
}

// owners returns who has a lease that lives, by target.
func (f *fleet) owners() map[string]string {
	f.t.Helper()
	rows, err := f.db.Pool.Query(f.t.Context(), "SELECT name, owner::text FROM reconciler.targets WHERE reconciler.lease_lives(owner, lease_ttl)")
	require.NoError(f.t, err)
	owners := map[string]string{}
	var name, owner string
	for rows.Next() {
		require.NoError(f.t, rows.Scan(&name, &owner))
		owners[name] = owner
	}
	require.NoError(f.t, rows.Err())
	return owners
}

// shares returns how many targets each of the replicas has.
func (f *fleet) shares(replicas ...*replica) []int {
	f.t.Helper()
	shares := make([]int, len(replicas))
	for _, owner := range f.owners() {
		for i, r := range replicas {
			if r.cfg.Instance == owner {
				shares[i]++
			}
		}
	}
	return shares
}

// awaitShares waits until the replicas have so many targets each.
func (f *fleet) awaitShares(want []int, replicas ...*replica) {
	f.t.Helper()
	require.Eventually(f.t, func() bool { return slices.Equal(f.shares(replicas...), want) }, patience, 10*time.Millisecond,
		"the shares did not become %v", want)
}

// value returns the one value that a query gives.
func value[T any](f *fleet, sql string, args ...any) T {
	f.t.Helper()
	var v T
	require.NoError(f.t, f.db.Pool.QueryRow(f.t.Context(), sql, args...).Scan(&v))
	return v
}

// receive waits for the next value.
func receive[T any](t *testing.T, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(patience):
		t.Fatalf("no %T came", *new(T))
		panic("unreachable")
	}
}

func isFailure(err error) bool { return err != nil }
func isSuccess(err error) bool { return err == nil }

// awaitBeat waits for a heartbeat with a certain result.
func (r *replica) awaitBeat(t *testing.T, is func(error) bool) {
	t.Helper()
	for begun := sinceStart(); sinceStart()-begun < patience; {
		if is(receive(t, r.beats)) {
			return
		}
	}
	t.Fatal("no such heartbeat came")
}

// lives waits until heartbeats have gone on for so long.
func (r *replica) lives(t *testing.T, d time.Duration) {
	t.Helper()
	for begun := sinceStart(); sinceStart()-begun < d; {
		receive(t, r.planned)
	}
}

// receiveAll waits for the runs of n targets and returns them by target.
func receiveAll(t *testing.T, runs <-chan *run, n int) map[string]*run {
	t.Helper()
	got := map[string]*run{}
	for range n {
		r := receive(t, runs)
		got[r.Target] = r
	}
	require.Len(t, got, n)
	return got
}

// logBuffer is what a replica has logged.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer // guarded by mu
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// statements are the names of the queries that a replica has sent.
type statements struct {
	mu   sync.Mutex
	sent []string // guarded by mu
}

// watch makes a replica's pool report its statements.
func (s *statements) watch(t *testing.T) func(*Config) {
	return func(c *Config) {
		config := c.Pool.Config()
		config.ConnConfig.Tracer = s
		pool, err := pgxpool.NewWithConfig(t.Context(), config)
		require.NoError(t, err)
		t.Cleanup(pool.Close)
		c.Pool = pool
	}
}

func (s *statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	name, _, _ := strings.Cut(strings.TrimPrefix(data.SQL, "-- name: "), " ")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent = append(s.sent, name)
	return ctx
}

func (s *statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (s *statements) names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.sent)
}

func (s *statements) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent = nil
}
