package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pgreconciler/reconciler/client"
	"github.com/pgreconciler/reconciler/client/streamtest"
	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/drivertest"
)

// keyMost is the longest key that the server publishes, in bytes.
const keyMost = 2000

// behind is a driver behind an agent: a call publishes an object or its delete, and returns what the agent reports of it. A call of a newer
// term restarts the agent. It neither lists nor checks nor takes batches, as none of that goes through a stream.
type behind struct {
	driver.Driver // what the agent calls

	server *streamtest.Server
	dir    string

	running sync.Mutex // guards what follows
	term    int64
	agent   *Agent // nil: no call yet
	stop    func() error

	mu      sync.Mutex // guards what follows
	waiting map[client.Ref]*reported
}

// reported is a call that waits for a report.
type reported struct {
	version int64
	wanted  bool
	called  chan struct{} // the driver has returned, size one
	outcome chan driver.Outcome
}

// putBehind puts the driver of a fixture behind an agent.
func putBehind(t *testing.T, f drivertest.Fixture) drivertest.Fixture {
	t.Helper()
	refuses := f.Refuses
	f.Driver = newBehind(t, f)
	f.Refuses = func(name string) bool { return !travels(name) || refuses != nil && refuses(name) }
	return f
}

func newBehind(t *testing.T, f drivertest.Fixture) *behind {
	t.Helper()
	return &behind{Driver: f.Driver, server: streamtest.NewServer(f.Target), dir: t.TempDir(), waiting: map[client.Ref]*reported{}}
}

// travels reports whether PostgreSQL can store a name, and the server publishes it.
func travels(name string) bool {
	return name != "" && utf8.ValidString(name) && !strings.ContainsRune(name, 0) && len(name) <= keyMost
}

func (b *behind) Apply(ctx context.Context, o driver.Object) driver.Outcome {
	if !travels(o.Resource) || !travels(o.Key) {
		return driver.Terminal(errors.New("the server does not publish this name"))
	}
	return b.ask(ctx, o.Ref, true, func() int64 { return b.server.Set(o.Resource, o.Key, o.Spec) })
}

func (b *behind) Delete(ctx context.Context, r driver.Ref) driver.Outcome {
	if !travels(r.Resource) || !travels(r.Key) {
		return driver.Done() // it was never published
	}
	return b.ask(ctx, r, false, func() int64 { return b.server.Delete(r.Resource, r.Key) })
}

// ask publishes something, and waits for what is reported of it.
func (b *behind) ask(ctx context.Context, r driver.Ref, wanted bool, publish func() int64) driver.Outcome {
	if ctx.Err() != nil {
		return driver.Backoff(context.Cause(ctx))
	}
	at, call := client.Ref{Resource: r.Resource, Key: r.Key}, &reported{wanted: wanted, called: make(chan struct{}, 1), outcome: make(chan driver.Outcome, 1)}
	agent, err := b.start(r.Term)
	if err == nil {
		b.mu.Lock() // the report of what is published waits for it
		call.version, b.waiting[at] = publish(), call
		b.mu.Unlock()
	}
	for pause := time.Hour; err == nil; {
		select {
		case <-ctx.Done():
			err = context.Cause(ctx)
		case out := <-call.outcome:
			return out
		case <-call.called:
			pause = time.Millisecond
		case <-time.After(pause):
			pause *= 2 // the controller did not have the result of the call yet
			agent.tell(ctx)
		}
	}
	return driver.Backoff(err)
}

// tell has the agent report everything now, and not only with the next batch.
func (a *Agent) tell(ctx context.Context) {
	for _, t := range a.targets {
		t.mu.Lock()
		s := t.session
		t.mu.Unlock()
		if s != nil {
			_ = s.controller.ReportInventory(ctx) // it is asked again
		}
	}
}

// start returns the agent that runs, a new one if the term is.
func (b *behind) start(term int64) (*Agent, error) {
	b.running.Lock()
	defer b.running.Unlock()
	if term <= b.term {
		return b.agent, nil
	}
	if err := b.end(); err != nil {
		return nil, err
	}
	path := filepath.Join(b.dir, "agent.yaml")
	text := fmt.Sprintf("server: http://127.0.0.1:1\nname: host-7\nstate_dir: %s/state\nlisten: off\n"+
		"targets: [{name: test, driver: fixture, timeout: 30s, sync_interval: off}]\n", b.dir)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return nil, err
	}
	open := func(string, driver.Options, driver.Env) (driver.Driver, error) {
		if lister, ok := b.Driver.(driver.Lister); ok {
			return listing{called{b}, lister}, nil
		}
		return called{b}, nil
	}
	cfg, drivers, err := config.LoadAndOpen(config.LoadOptions{
		Path: path, Agent: true, Registry: driver.Registry{{Name: "fixture", Open: open}},
	}, driver.Env{})
	if err != nil {
		return nil, err
	}
	asked := make(chan struct{}) // closed when the agent asks for objects: its targets are there by then
	agent := New(Options{Config: cfg, Drivers: drivers, Logger: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry()})
	agent.transport = wired{b, b.server.Transport(), sync.OnceFunc(func() { close(asked) })}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- agent.Run(ctx) }()
	b.term, b.agent, b.stop = term, agent, func() error { cancel(); return <-ended }
	select {
	case <-asked:
		return agent, nil
	case err := <-ended:
		b.agent = nil
		return nil, errors.Join(err, errors.New("the agent has ended"))
	}
}

// end stops the agent. It needs running.
func (b *behind) end() error {
	if b.agent == nil {
		return nil
	}
	b.agent = nil
	return b.stop()
}

func (b *behind) Close(ctx context.Context) error {
	b.running.Lock()
	defer b.running.Unlock()
	return errors.Join(b.end(), b.Driver.Close(ctx))
}

// wired is what lies between the agent and the server. It reads the reports that the server has taken.
type wired struct {
	*behind

	next  http.RoundTripper
	asked func()
}

func (w wired) RoundTrip(r *http.Request) (*http.Response, error) {
	w.asked()
	if r.Method != http.MethodPost {
		return w.next.RoundTrip(r)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	resp, err := w.next.RoundTrip(r)
	if err == nil && resp.StatusCode == http.StatusOK {
		w.taken(body)
	}
	return resp, err
}

// taken ends the calls that a report is about. A complete one confirms the deletes up to its version that it does not name.
func (b *behind) taken(body []byte) {
	head, rest, _ := bytes.Cut(body, []byte("\n"))
	var report struct {
		Complete bool
		Version  int64
	}
	_ = json.Unmarshal(head, &report)
	named := map[client.Ref]bool{}
	b.mu.Lock()
	defer b.mu.Unlock()
	for lines := json.NewDecoder(bytes.NewReader(rest)); lines.More(); {
		var o client.Observation
		if lines.Decode(&o) != nil {
			return
		}
		at := client.Ref{Resource: o.Resource, Key: o.Key}
		named[at] = true
		call := b.waiting[at]
		switch {
		case call == nil || call.version != o.Version:
		case o.State == client.StateFailed:
			b.endCall(at, driver.Terminal(errors.New(o.Message)))
		case o.State == client.StateApplied && call.wanted, o.State == client.StateAbsent && !call.wanted:
			b.endCall(at, driver.Done())
		}
	}
	for at, call := range b.waiting {
		if report.Complete && !call.wanted && !named[at] && call.version <= report.Version {
			b.endCall(at, driver.Done())
		}
	}
}

func (b *behind) endCall(at client.Ref, out driver.Outcome) {
	b.waiting[at].outcome <- out
	delete(b.waiting, at)
}

// called is the driver that the agent calls. It outlives the agent.
type called struct{ *behind }

func (c called) Apply(ctx context.Context, o driver.Object) driver.Outcome {
	defer c.returns(o.Ref)
	return c.Driver.Apply(ctx, o)
}

func (c called) Delete(ctx context.Context, r driver.Ref) driver.Outcome {
	defer c.returns(r)
	return c.Driver.Delete(ctx, r)
}

func (c called) Close(context.Context) error { return nil }

func (c called) returns(r driver.Ref) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if call := c.waiting[client.Ref{Resource: r.Resource, Key: r.Key}]; call != nil {
		signal(call.called)
	}
}

// listing is one that lists.
type listing struct {
	called
	driver.Lister
}
