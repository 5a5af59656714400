package server_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/pgtest"
	"github.com/pgreconciler/reconciler/internal/server"
)

// deadline is how long a test waits for what must happen; it is never slept through.
const deadline = 90 * time.Second

// place is a target that keeps what it is given and every call in memory. Tests say how it answers.
type place struct {
	mu      sync.Mutex
	objects map[string]string // resource/key -> spec
	calls   []call
	running map[string]int
	overlap []string // objects that were called twice at once
	answer  func(ctx context.Context, c call) driver.Outcome
	changed chan struct{}
}

type call struct {
	Action   string
	Resource string
	Key      string
	Spec     string
	Revision int64
	Term     int64
}

func (c call) id() string { return c.Resource + "/" + c.Key }

func newPlace() *place {
	return &place{objects: map[string]string{}, running: map[string]int{}, changed: make(chan struct{})}
}

func (p *place) Apply(ctx context.Context, obj driver.Object) driver.Outcome {
	return p.call(ctx, call{"apply", obj.Resource, obj.Key, string(obj.Spec), obj.Revision, obj.Term})
}

func (p *place) Delete(ctx context.Context, ref driver.Ref) driver.Outcome {
	return p.call(ctx, call{"delete", ref.Resource, ref.Key, "", ref.Revision, ref.Term})
}

func (p *place) call(ctx context.Context, c call) driver.Outcome {
	p.mu.Lock()
	p.running[c.id()]++
	if p.running[c.id()] > 1 {
		p.overlap = append(p.overlap, c.id())
	}
	answer := p.answer
	p.mu.Unlock()
	defer func() { // also when the answer is a panic
		p.mu.Lock()
		defer p.mu.Unlock()
		p.running[c.id()]--
	}()
	out := driver.Done()
	if answer != nil {
		out = answer(ctx, c)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, c)
	if out.Verdict == driver.VerdictDone {
		if c.Action == "apply" {
			p.objects[c.id()] = c.Spec
		} else {
			delete(p.objects, c.id())
		}
	}
	close(p.changed)
	p.changed = make(chan struct{})
	return out
}

func (*place) Close(context.Context) error { return nil }

func (p *place) self() *place { return p }

// set makes the target answer in another way from now on.
func (p *place) set(answer func(ctx context.Context, c call) driver.Outcome) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answer = answer
}

func (p *place) snapshot() (objects map[string]string, calls []call, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.objects), slices.Clone(p.calls), p.changed
}

// size is how many objects the target has.
func (p *place) size() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.objects)
}

// put changes the target behind the product's back.
func (p *place) put(id, spec string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if spec == "" {
		delete(p.objects, id)
	} else {
		p.objects[id] = spec
	}
}

// eventually waits until the target has exactly these objects.
func (p *place) eventually(t testing.TB, want map[string]string) {
	t.Helper()
	p.until(t, func(objects map[string]string, _ []call) bool { return maps.Equal(objects, want) }, func() string {
		objects, _, _ := p.snapshot()
		return fmt.Sprintf("want %v\nhave %v", want, objects)
	})
}

// until waits until something is true of what the target has and was asked.
func (p *place) until(t testing.TB, ok func(objects map[string]string, calls []call) bool, explain func() string) {
	t.Helper()
	timeout := time.After(deadline)
	for {
		objects, calls, changed := p.snapshot()
		if ok(objects, calls) {
			return
		}
		select {
		case <-changed:
		case <-timeout:
			require.FailNow(t, "the target did not become as wanted", explain())
		}
	}
}

// listing is a place that can say what it has.
type listing struct{ *place }

func (l listing) List(_ context.Context, resource string) iter.Seq2[driver.Listed, error] {
	objects, _, _ := l.snapshot()
	return func(yield func(driver.Listed, error) bool) {
		for id, spec := range objects {
			if name, key, ok := cut(id); ok && name == resource {
				if !yield(driver.Listed{Resource: name, Key: key, Hashes: []driver.Hash{driver.HashSpec([]byte(spec))}}, nil) {
					return
				}
			}
		}
	}
}

func cut(id string) (resource, key string, ok bool) {
	for i := range id {
		if id[i] == '/' {
			return id[:i], id[i+1:], true
		}
	}
	return "", "", false
}

// world is a database and what runs against it.
type world struct {
	t      testing.TB
	db     *pgtest.DB
	log    *testLog
	places map[string]*place // by target

	registry   *prometheus.Registry // of the server that was started last
	steerEvery time.Duration        // of every server; 0: the default
}

func setup(t testing.TB) *world {
	t.Helper()
	return setupOn(t, pgtest.New(t))
}

// holding is setup for a test that keeps transactions open.
func holding(t *testing.T) *world {
	t.Helper()
	return setupOn(t, pgtest.Holding(t))
}

func setupOn(t testing.TB, db *pgtest.DB) *world {
	t.Helper()
	w := &world{t: t, db: db, log: &testLog{t: t}, places: map[string]*place{}}
	t.Cleanup(w.invariants) // after every server has stopped, before the database goes
	return w
}

// target is a target of the config, with its driver.
type target struct {
	config.Target

	driver driver.Driver
}

func named(name string, d driver.Driver, change ...func(*config.Target)) target {
	c := config.Target{
		Name: name, Driver: "test", Options: driver.Options{}, Concurrency: 4, Timeout: time.Minute,
		Backoff: config.Backoff{Min: 20 * time.Millisecond, Max: 200 * time.Millisecond}, Guard: config.Guard{Window: time.Minute},
		SyncMode: config.SyncRepair,
	}
	for _, fn := range change {
		fn(&c)
	}
	return target{Target: c, driver: d}
}

// process is a running server.
type process struct {
	cancel context.CancelFunc
	done   chan error
}

// stop drains the process and waits for it.
func (p *process) stop(t testing.TB) {
	t.Helper()
	p.cancel()
	select {
	case err := <-p.done:
		require.NoError(t, err)
	case <-time.After(deadline):
		require.FailNow(t, "the server did not stop")
	}
	p.done = closed
}

var closed = func() chan error {
	c := make(chan error)
	close(c)
	return c
}()

// start runs a server until the end of the test or until it is stopped.
func (w *world) start(targets ...target) *process {
	w.t.Helper()
	return w.startWith(nil, targets...)
}

func (w *world) startWith(change func(*config.Config), targets ...target) *process {
	w.t.Helper()
	cfg := &config.Config{
		DatabaseURL: config.NewURL(w.db.URL), DirectURL: config.NewURL(w.db.URL), Notify: config.NotifyAuto,
		PollInterval: 50 * time.Millisecond, ShutdownTimeout: 10 * time.Second,
		Retention: config.Retention{MaxAge: 24 * time.Hour, MaxRows: 10_000_000},
	}
	drivers := map[string]driver.Driver{}
	for _, one := range targets {
		cfg.Targets = append(cfg.Targets, one.Target)
		drivers[one.Name] = one.driver
		if p, ok := one.driver.(interface{ self() *place }); ok {
			w.places[one.Name] = p.self()
		}
	}
	if change != nil {
		change(cfg)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	p := &process{cancel: cancel, done: done}
	log := slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: logLevel()}))
	w.registry = prometheus.NewRegistry()
	s := server.New(server.Options{Config: cfg, Drivers: drivers, Version: "test", Logger: log, Registry: w.registry, SteerEvery: w.steerEvery})
	go func() {
		done <- s.Run(ctx)
		close(done)
	}()
	w.t.Cleanup(func() {
		cancel()
		for range done {
			continue // until it is closed: stop() looks at the error
		}
	})
	return p
}

func logLevel() slog.Level {
	if os.Getenv("RECONCILER_TEST_DEBUG") != "" {
		return slog.LevelDebug
	}
	return slog.LevelInfo
}

// testLog shows what servers log when a test fails, and keeps it for tests to look at.
type testLog struct {
	t     testing.TB
	mu    sync.Mutex // guards lines
	lines []string
}

func (l *testLog) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, string(line[:len(line)-1]))
	l.t.Log(l.lines[len(l.lines)-1])
	return len(line), nil
}

// logged returns the lines so far that contain a text.
func (w *world) logged(text string) []string {
	w.log.mu.Lock()
	defer w.log.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(w.log.lines), func(line string) bool { return !strings.Contains(line, text) })
}

// series returns the sum of a series' values, of those that have all of the labels' values.
func (w *world) series(name string, labels ...string) (sum float64) {
	w.t.Helper()
	families, err := w.registry.Gather()
	require.NoError(w.t, err)
	for _, family := range families {
		if family.GetName() != "reconciler_"+name {
			continue
		}
		for _, m := range family.GetMetric() {
			values := map[string]bool{}
			for _, label := range m.GetLabel() {
				values[label.GetValue()] = true
			}
			if !slices.ContainsFunc(labels, func(label string) bool { return !values[label] }) {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

// eventually waits until something is so.
func (w *world) eventually(what string, is func() bool) {
	w.t.Helper()
	require.NoError(w.t, pgtest.Poll(context.Background(), deadline, func() error {
		if !is() {
			return errors.New("it did not happen: " + what)
		}
		return nil
	}))
}

// wait returns when everything that is committed is applied.
func (w *world) wait() {
	w.t.Helper()
	var target, reason *string
	rows, err := w.db.Pool.Query(context.Background(), "SELECT target, reason FROM reconciler.wait('90s')")
	require.NoError(w.t, err)
	defer rows.Close()
	for rows.Next() {
		require.NoError(w.t, rows.Scan(&target, &reason))
		w.t.Errorf("not applied: target %v: %v", deref(target), deref(reason))
	}
	require.NoError(w.t, rows.Err())
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
