package faults_test

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pgreconciler/reconciler/client"
	"github.com/pgreconciler/reconciler/internal/driver"
)

// agent is a program that acknowledges the objects of a stream: a controller whose far side survives it. It comes to an abrupt end now and
// then, which loses what it has not reported, and begins anew, with its store or without one.
type agent struct {
	watcher // its far side, and what it has done; there, calls of each life have a term of their own

	// forgotten: the ledger may forget objects that the far side has, in an undone history for example: the agent must list them itself.
	forgotten bool
	r         *rand.Rand
	heal      chan struct{} // closed when handlers fail no more

	// mu of the watcher guards what follows.
	changes map[object]int
	had     map[object]map[string]bool // hashes of all specs

	log  sync.Mutex // guards logs
	logs strings.Builder
}

// agentFails is the share of an agent's calls that fail in each of three ways while there are faults.
const agentFails = 0.03

// startAgent begins to acknowledge the stream of the world.
func (w *world) startAgent(ctx context.Context, run func(func())) {
	t := w.plan.Targets[len(w.plan.Targets)-1]
	a := &agent{
		watcher: watcher{world: w, name: "agent", target: t.Name, objects: map[object]client.Object{}, acknowledges: true},
		changes: map[object]int{}, had: map[object]map[string]bool{},
		forgotten: slices.ContainsFunc([]string{faultReload, faultFailover, faultStartOver, faultUntrack, faultClock}, w.plan.has),
		r:         w.plan.stream(streamAgent), heal: make(chan struct{}),
	}
	w.agent, w.watchers = a, append(w.watchers, &a.watcher)
	run(func() { a.run(ctx) })
	run(func() { w.watchAcknowledged(ctx.Done()) })
}

// run lives one life after the other.
func (a *agent) run(ctx context.Context) {
	for a.life = 1; ctx.Err() == nil; a.life++ {
		a.live(ctx)
	}
}

// live runs a controller until it comes to its end.
func (a *agent) live(ctx context.Context) {
	lasts := time.NewTimer(between(a.r, time.Second, 10*time.Second))
	defer lasts.Stop()
	stored, existing := a.r.IntN(2) == 0, a.r.IntN(2) == 0 || a.forgotten
	dead, die := context.WithCancel(context.Background())
	defer die()
	ctx, end := context.WithCancel(ctx)
	defer end()
	running, ctx := errgroup.WithContext(ctx)
	if err := a.start(ctx, running, &mortal{a.world.balancer().Transport, dead}, stored, existing); err != nil {
		a.world.violate("tester", "start the agent: %v", err)
		pass(time.Second, ctx.Done())
		return
	}
	a.world.note("life %d of the agent, store %v, existing %v", a.life, stored, existing)
	a.world.count("lives of agents", 1)
	over, heal := lasts.C, a.heal
	if a.healed() { // this life is the last
		over, heal = nil, nil
	}
	select {
	case <-over:
	case <-heal:
	case <-ctx.Done():
	}
	die() // before the controller ends: it must not send its last reports
	end()
	if err := running.Wait(); err != nil {
		a.world.violate("stream", "%s ended: %v", a.name, err)
	}
}

func (a *agent) healed() bool {
	select {
	case <-a.heal:
		return true
	default:
		return false
	}
}

func (a *agent) start(ctx context.Context, running *errgroup.Group, transport http.RoundTripper, stored, existing bool) error {
	log := slog.New(slog.NewTextHandler(a, nil)).With("life", a.life)
	c, err := client.New("http://127.0.0.1", client.HTTPClient(&http.Client{Transport: transport}), client.Logger(log))
	if err != nil {
		return err
	}
	var opts client.InformerOptions
	path := filepath.Join(a.world.dir, "agent.store")
	if !stored {
		_ = os.Remove(path) // what it has would be older than the far side
	} else if opts.Store, err = client.OpenStore(path); err != nil {
		return err
	}
	informer := client.NewInformer(c, a.target, opts)
	var controllers []*client.Controller
	for _, resource := range slices.Concat(a.world.plan.wantedFrom(), unwatched) {
		objects := client.For[json.RawMessage](informer, resource)
		handle := func(_ context.Context, key string) (client.Result, error) { return a.handle(objects, resource, key) }
		with := []client.ControllerOption{client.MaxDeletes(-1), client.Backoff(50*time.Millisecond, time.Second)}
		if existing {
			with = append(with, client.Existing(func(context.Context) iter.Seq2[string, error] { return a.keys(resource) }))
		}
		controllers = append(controllers, client.NewController(informer, resource, handle, with...))
	}
	for _, controller := range controllers {
		running.Go(func() error { return controller.Run(ctx) })
	}
	running.Go(func() error {
		err := informer.Run(ctx)
		if stored {
			err = errors.Join(err, opts.Store.Close())
		}
		return err
	})
	return nil
}

// handle makes the far side equal to an object, or fails.
func (a *agent) handle(objects *client.Objects[json.RawMessage], resource, key string) (client.Result, error) {
	switch chance := rand.Float64() / agentFails; {
	case a.healed():
	case chance < 1:
		return client.Result{}, errors.New("refused by the tester")
	case chance < 2:
		return client.Progressing("delayed by the tester", 1+rand.N(300*time.Millisecond)), nil
	case chance < 3:
		return client.Failed("broken by the tester"), nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	o := object{a.target, resource, key}
	spec, wanted, err := objects.Get(key)
	switch {
	case err != nil:
		return client.Result{}, err
	case wanted:
		if string(a.objects[o].Spec) != string(spec) {
			a.objects[o] = client.Object{Spec: spec}
			a.changed(o, spec)
			a.note(o, message{Resource: resource, Key: key, Spec: spec}.versions())
		}
		return client.Applied(), nil
	}
	if _, has := a.objects[o]; has {
		a.changes[o]++
		a.remove(o)
	}
	return client.Absent(), nil
}

// changed remembers that the far side has a spec. It needs mu.
func (a *agent) changed(o object, spec []byte) {
	a.changes[o]++
	if a.had[o] == nil {
		a.had[o] = map[string]bool{}
	}
	a.had[o][driver.HashSpec(spec).String()] = true
}

// keys lists the far side.
func (a *agent) keys(resource string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for o := range a.contents() {
			if o.Resource == resource && !yield(o.Key, nil) {
				return
			}
		}
	}
}

// Write takes what the client logs.
func (a *agent) Write(line []byte) (int, error) {
	a.log.Lock()
	defer a.log.Unlock()
	return a.logs.Write(line)
}

func (a *agent) logged() string {
	a.log.Lock()
	defer a.log.Unlock()
	return "agent:\n" + a.logs.String()
}

// mortal is a transport over which nothing goes any more once its program is dead.
type mortal struct {
	http.RoundTripper

	dead context.Context // when the program ends
}

func (m *mortal) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(r.Context())
	context.AfterFunc(m.dead, cancel)
	return m.RoundTripper.RoundTrip(r.WithContext(ctx))
}
