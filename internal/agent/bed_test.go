package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/client"
	"github.com/pgreconciler/reconciler/client/streamtest"
	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// farSide is a target in memory. It returns the outcome of an object that is staged, else it does what is asked.
type farSide struct {
	mu       sync.Mutex
	objects  map[client.Ref]string
	outcomes map[string]driver.Outcome // by key, as long as they are there
	down     bool                      // no call reaches it
	hang     chan struct{}             // calls wait until it is closed; nil: they do not
	listErr  error
	unmarked bool // a listing names every object, and no mark of its own
	health   error
	removes  int // how many parts each apply is to remove

	healthTakes time.Duration
	calls       []driver.Object // in order; deletes have no spec
	home        driver.Home
	closed      bool
}

func newFarSide() *farSide {
	return &farSide{objects: map[client.Ref]string{}, outcomes: map[string]driver.Outcome{}}
}

func (f *farSide) change(fn func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fn()
}

func (f *farSide) Start(_ context.Context, home driver.Home) { f.change(func() { f.home = home }) }

func (f *farSide) Apply(ctx context.Context, o driver.Object) driver.Outcome {
	return f.call(ctx, o, func(at client.Ref) { f.objects[at] = string(o.Spec) })
}

func (f *farSide) Delete(ctx context.Context, r driver.Ref) driver.Outcome {
	return f.call(ctx, driver.Object{Ref: r}, func(at client.Ref) { delete(f.objects, at) })
}

func (f *farSide) call(ctx context.Context, o driver.Object, do func(client.Ref)) driver.Outcome {
	f.mu.Lock()
	hang := f.hang
	f.mu.Unlock()
	if hang != nil {
		select {
		case <-hang:
		case <-ctx.Done():
			return driver.Backoff(context.Cause(ctx))
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, o)
	if f.down {
		return driver.Unreachable(errors.New("connection refused"))
	}
	if o.Spec != nil && !o.MayRemove(f.removes) {
		return driver.Unapproved(errors.New("too much would go"))
	}
	if out, staged := f.outcomes[o.Key]; staged && (out.Verdict != driver.VerdictUnapproved || !o.Approved) {
		if out.Err != nil && out.Err.Error() == "panic" {
			panic("no such thing")
		}
		return out
	}
	do(client.Ref{Resource: o.Resource, Key: o.Key})
	return driver.Done()
}

func (f *farSide) Close(context.Context) error { f.change(func() { f.closed = true }); return nil }

func (f *farSide) List(_ context.Context, resources []string) iter.Seq2[driver.Listed, error] {
	return func(yield func(driver.Listed, error) bool) {
		f.mu.Lock()
		var all []driver.Listed
		for at, spec := range f.objects {
			if f.unmarked || slices.Contains(resources, at.Resource) {
				all = append(all, driver.Listed{Resource: at.Resource, Key: at.Key, Hashes: []driver.Hash{driver.HashSpec([]byte(spec))}, Unmarked: f.unmarked})
			}
		}
		err := f.listErr
		f.mu.Unlock()
		for _, one := range all {
			if !yield(one, nil) {
				return
			}
		}
		if err != nil {
			yield(driver.Listed{}, err)
		}
	}
}

// has returns the objects of the far side, as "app/web={...}", in order.
func (f *farSide) has() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []string
	for at, spec := range f.objects {
		all = append(all, fmt.Sprintf("%s/%s=%s", at.Resource, at.Key, spec))
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// called returns the keys of the calls since the last time, in order.
func (f *farSide) called() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	keys := make([]string, 0, len(f.calls))
	for _, o := range f.calls {
		keys = append(keys, o.Key)
	}
	slices.Sort(keys)
	f.calls = nil
	return keys
}

// checked is a far side that can be asked whether it answers.
type checked struct{ *farSide }

func (f checked) Check(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		return errors.New("connection refused")
	}
	return nil
}

// healthy is a far side that can be asked for its health.
type healthy struct{ *farSide }

func (f healthy) Health(context.Context) error {
	f.mu.Lock()
	err, takes := f.health, f.healthTakes
	f.mu.Unlock()
	time.Sleep(takes)
	return err
}

// wire is what lies between the agent and the server.
type wire struct {
	mu      sync.Mutex
	next    http.RoundTripper
	refused int      // status of every answer; 0: the server's
	reports []string // bodies
}

func (w *wire) change(fn func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	fn()
}

func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	w.mu.Lock()
	next, refused := w.next, w.refused
	w.mu.Unlock()
	if r.Method == http.MethodPost {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		w.change(func() { w.reports = append(w.reports, string(body)) })
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	if refused != 0 {
		header := http.Header{"Reconciler-Installation": {"streamtest"}}
		return &http.Response{StatusCode: refused, Header: header, Body: io.NopCloser(strings.NewReader(`{"error":"refused"}`)), Request: r}, nil
	}
	return next.RoundTrip(r)
}

// sent returns the reports since the last time.
func (w *wire) sent() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	sent := w.reports
	w.reports = nil
	return sent
}

// bed is a server, a wire and a far side, between which agents run.
type bed struct {
	*streamtest.Server

	wire  *wire
	far   *farSide
	drv   driver.Driver
	dir   string
	lines string // further keys of the target
	log   record
}

// record keeps what agents log. They may do so while a test reads it.
type record struct {
	mu  sync.Mutex
	log bytes.Buffer // guarded by mu
}

func (r *record) Write(line []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.Write(line)
}

func (r *record) count(text string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Count(r.log.String(), text)
}

func newBed(t *testing.T) *bed {
	t.Helper()
	server, far := streamtest.NewServer("eu"), newFarSide()
	return &bed{Server: server, wire: &wire{next: server.Transport()}, far: far, drv: far, dir: t.TempDir()}
}

// running is an agent that runs.
type running struct {
	*Agent

	cancel context.CancelFunc
	ended  chan struct{} // closed when Run has returned err
	err    error
}

// load makes an agent.
func (b *bed) load(t *testing.T, adopt bool) *Agent {
	t.Helper()
	path := filepath.Join(b.dir, "agent.yaml")
	text := fmt.Sprintf("server: http://127.0.0.1:1\nname: host-7\nstate_dir: %s/state\nlisten: off\nshutdown_timeout: 10s\n"+
		"targets:\n- name: eu\n  driver: far\n%s", b.dir, b.lines)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	open := func(string, driver.Options, driver.Env) (driver.Driver, error) { return b.drv, nil }
	cfg, drivers, err := config.LoadAndOpen(config.LoadOptions{
		Path: path, Agent: true, Registry: driver.Registry{{Name: "far", Open: open}},
	}, driver.Env{Getenv: func(string) string { return "" }})
	require.NoError(t, err)
	a := New(Options{
		Config: cfg, Drivers: drivers, Version: "1.2.0", Registry: prometheus.NewRegistry(), Adopt: adopt,
		Logger: slog.New(slog.NewTextHandler(&b.log, nil)),
	})
	a.transport = b.wire
	return a
}

// start runs an agent until the test ends or stop.
func (b *bed) start(t *testing.T) *running {
	t.Helper()
	return b.run(t, b.load(t, false))
}

func (b *bed) run(t *testing.T, a *Agent) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r := &running{Agent: a, cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(r.ended)
		r.err = a.Run(ctx)
	}()
	t.Cleanup(func() { _ = r.stop() })
	synctest.Wait()
	return r
}

// stop ends the agent, and returns what Run returned.
func (r *running) stop() error {
	r.cancel()
	<-r.ended
	return r.err
}

// target returns how the only target stands.
func (r *running) target() Target { return r.Status().Targets[0] }

// after lets time pass, and what it brings happen.
func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// spec is one as the server sends it.
func spec(n int) map[string]int { return map[string]int{"n": n} }

func backoff(text string) driver.Outcome { return driver.Backoff(errors.New(text)) }

// failed returns how many objects were last reported as failed.
func (b *bed) failed() (n int) {
	for _, o := range b.Observations() {
		if o.State == client.StateFailed {
			n++
		}
	}
	return n
}
