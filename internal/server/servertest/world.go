// Package servertest runs servers in a test, on a database with a table of apps and with targets in memory, and checks invariants
// when the test ends.
package servertest

import (
	"context"
	"errors"
	"log/slog"
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

// Deadline is how long a test waits for what must happen; it is never slept through.
const Deadline = pgtest.Patience

// World is a database and what runs against it.
type World struct {
	T      testing.TB
	DB     *pgtest.DB
	Log    *Log
	Places map[string]*Place // by target

	silent     bool                 // Silently changed rows beside a server
	registry   *prometheus.Registry // of the server that was started last
	SteerEvery time.Duration        // of every server; 0: the default
}

// New returns a World on a database of its own, without tables.
func New(t testing.TB) *World {
	t.Helper()
	return NewOn(t, pgtest.New(t))
}

// Holding is New for a test that keeps transactions open.
func Holding(t *testing.T) *World {
	t.Helper()
	return NewOn(t, pgtest.Holding(t))
}

// NewOn returns a World on a database.
func NewOn(t testing.TB, db *pgtest.DB) *World {
	t.Helper()
	w := &World{T: t, DB: db, Log: &Log{t: t}, Places: map[string]*Place{}}
	t.Cleanup(w.invariants) // after every server has stopped, before the database goes
	return w
}

// Target is a target of the config, with its driver.
type Target struct {
	config.Target

	Driver driver.Driver
}

// Named returns a target of a server. Its calls may take a minute, and it pauses for 20 to 200 ms after failures.
func Named(name string, d driver.Driver, change ...func(*config.Target)) Target {
	c := config.Target{
		Name: name, Driver: "test", Options: driver.Options{}, Concurrency: 4, Timeout: time.Minute,
		Backoff: config.Backoff{Min: 20 * time.Millisecond, Max: 200 * time.Millisecond}, Guard: config.Guard{Window: time.Minute},
		SyncMode: config.SyncRepair,
	}
	for _, fn := range change {
		fn(&c)
	}
	return Target{Target: c, Driver: d}
}

// Process is a running server.
type Process struct {
	Cancel context.CancelFunc
	Done   chan error
}

// Stop drains the process and waits for it.
func (p *Process) Stop(t testing.TB) {
	t.Helper()
	p.Cancel()
	select {
	case err := <-p.Done:
		require.NoError(t, err)
	case <-time.After(Deadline):
		require.FailNow(t, "the server did not stop")
	}
	p.Done = closed
}

var closed = func() chan error {
	c := make(chan error)
	close(c)
	return c
}()

// Start runs a server until the end of the test or until it is stopped.
func (w *World) Start(targets ...Target) *Process {
	w.T.Helper()
	return w.StartWith(nil, targets...)
}

// StartWith is Start with a change of the config; nil for none.
func (w *World) StartWith(change func(*config.Config), targets ...Target) *Process {
	w.T.Helper()
	cfg := &config.Config{
		DatabaseURL: config.NewURL(w.DB.URL), DirectURL: config.NewURL(w.DB.URL), Notify: config.NotifyAuto,
		PollInterval: 50 * time.Millisecond, ShutdownTimeout: 10 * time.Second,
		Retention: config.Retention{MaxAge: 24 * time.Hour, MaxRows: 10_000_000},
	}
	drivers := map[string]driver.Driver{}
	for _, one := range targets {
		cfg.Targets = append(cfg.Targets, one.Target)
		drivers[one.Name] = one.Driver
		if p, ok := one.Driver.(interface{ self() *Place }); ok {
			w.Places[one.Name] = p.self()
		}
	}
	if change != nil {
		change(cfg)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	p := &Process{Cancel: cancel, Done: done}
	log := slog.New(slog.NewTextHandler(w.Log, &slog.HandlerOptions{Level: logLevel()}))
	w.registry = prometheus.NewRegistry()
	s := server.New(server.Options{Config: cfg, Drivers: drivers, Version: "test", Logger: log, Registry: w.registry, SteerEvery: w.SteerEvery})
	go func() {
		done <- s.Run(ctx)
		close(done)
	}()
	w.T.Cleanup(func() {
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

// Log shows what servers log when a test fails, and keeps it for tests to look at.
type Log struct {
	t     testing.TB
	mu    sync.Mutex // guards lines
	lines []string
}

// Write adds a line.
func (l *Log) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, string(line[:len(line)-1]))
	l.t.Log(l.lines[len(l.lines)-1])
	return len(line), nil
}

// Logged returns the lines so far that contain a text.
func (w *World) Logged(text string) []string {
	w.Log.mu.Lock()
	defer w.Log.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(w.Log.lines), func(line string) bool { return !strings.Contains(line, text) })
}

// Series returns the sum of a series' values, of those that have all of the labels' values.
func (w *World) Series(name string, labels ...string) (sum float64) {
	w.T.Helper()
	families, err := w.registry.Gather()
	require.NoError(w.T, err)
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

// Eventually waits until something is so.
func (w *World) Eventually(what string, is func() bool) {
	w.T.Helper()
	require.NoError(w.T, pgtest.Poll(context.Background(), Deadline, func() error {
		if !is() {
			return errors.New("it did not happen: " + what)
		}
		return nil
	}))
}

// Wait returns when everything that is committed is applied. If that takes too long, the test ends: what is still to be applied
// is not lost.
func (w *World) Wait() {
	w.T.Helper()
	require.Empty(w.T, w.Column(`SELECT concat_ws(' ', target, reason) FROM reconciler.wait($1)`, Deadline))
}
