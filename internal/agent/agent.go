package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/pgreconciler/reconciler/client"
	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/web"
)

// closeTimeout bounds the Close of a driver.
const closeTimeout = 5 * time.Second

// Options are what an Agent needs. All are required, unless stated otherwise.
type Options struct {
	Config   *config.Config           // that of an agent
	Drivers  map[string]driver.Driver // by target; Run closes them
	Version  string
	Logger   *slog.Logger
	Registry *prometheus.Registry
	Getenv   func(string) string // looks up token_env; needed with it only
	// Adopt has each target take the stream that the server has now for the one that its state came from.
	Adopt bool
	// Listening is called with the key of the config and the address for what is listened on. Nil: it is not.
	Listening func(key, addr string)
}

// Agent applies streams to targets.
type Agent struct {
	opts      Options
	transport http.RoundTripper // of requests to the server; nil: over the network
	free      func()            // returns memory to the system
	identity  *identity
	targets   []*target
}

// New returns an Agent. Nothing is touched before Run.
func New(opts Options) *Agent { return &Agent{opts: opts, free: debug.FreeOSMemory} }

// Run works until ctx ends, and returns nil then. Calls in flight have the config's shutdown_timeout to end. What keeps a target from
// starting (the state of another target, or one that another process uses; an address that is taken) is an error at once. Later a
// target stops for good only if the server has another stream or another installation than its state: Run returns when that has
// happened to all of them, with their errors.
func (a *Agent) Run(ctx context.Context) error {
	defer a.closeDrivers(ctx)
	defer a.closeStores()
	if err := a.open(ctx); err != nil {
		return err
	}
	serving, err := a.listen(ctx)
	if err != nil {
		return err
	}
	// Calls outlive ctx by the time that draining takes, and probes outlive the calls.
	calls, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() {
		time.AfterFunc(a.opts.Config.ShutdownTimeout, func() { cancel(errShutdownTimeout) })
	})()
	group, running := errgroup.WithContext(calls)
	probes, stop := context.WithCancel(running)
	group.Go(func() error { return serving.Serve(probes) })
	a.opts.Logger.Info("started", "name", a.opts.Config.Agent.Name, "version", a.opts.Version, "targets", len(a.targets))
	errs := a.work(ctx, calls)
	if context.Cause(calls) == nil {
		errs = errors.Join(errs, a.leave())
	}
	stop()
	return errors.Join(group.Wait(), errs)
}

// leave notes that every call has ended, those of a process before included.
func (a *Agent) leave() error {
	for _, t := range a.targets {
		if time.Now().Before(t.free) {
			return nil
		}
	}
	if err := a.identity.end(); err != nil {
		return fmt.Errorf("state_dir: %w", err)
	}
	return nil
}

// work runs the targets until all of them have ended.
func (a *Agent) work(ctx, calls context.Context) error {
	errs := make([]error, len(a.targets))
	var targets sync.WaitGroup
	for i, t := range a.targets {
		targets.Go(func() { errs[i] = t.run(ctx, calls) })
	}
	targets.Wait()
	return errors.Join(errs...)
}

var errShutdownTimeout = errors.New("draining took longer than shutdown_timeout")

// open opens the state of every target, so that what is wrong with one is an error before anything starts.
func (a *Agent) open(ctx context.Context) error {
	cfg := a.opts.Config
	if err := a.dial(); err != nil {
		return err
	}
	metrics := newMetrics(a.opts.Registry)
	for _, tc := range cfg.Targets {
		t, err := newTarget(a, tc, metrics)
		if err != nil {
			return err
		}
		a.targets = append(a.targets, t)
		if t.store, err = client.OpenStore(t.path()); err != nil {
			return fmt.Errorf("target %s: %w", tc.Name, err)
		}
		if t.memory, t.asked, err = openState(t.file(".memory")); err != nil {
			return fmt.Errorf("target %s: %w", tc.Name, err)
		}
		if a.opts.Adopt {
			if err := t.store.Adopt(); err != nil {
				return fmt.Errorf("target %s: %w", tc.Name, err)
			}
		}
	}
	// After the stores, whose locks keep another process from it.
	var err error
	if a.identity, err = openIdentity(cfg.Agent.StateDir, time.Now()); err != nil {
		return fmt.Errorf("state_dir: %w", err)
	}
	for _, t := range a.targets {
		if a.identity.killed {
			t.free = time.Now().Add(t.cfg.Timeout)
		}
		metrics.watch(a.opts.Registry, t)
	}
	return ctx.Err()
}

// dial makes the transport of requests to the server.
func (a *Agent) dial() error {
	if a.transport != nil {
		return nil
	}
	tlsConfig, err := a.opts.Config.Agent.TLS()
	if err != nil {
		return fmt.Errorf("tls_ca_file: %w", err)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone() //nolint:forcetypeassert // it is one
	transport.TLSClientConfig, transport.ResponseHeaderTimeout = tlsConfig, headerTimeout
	a.transport = transport
	return nil
}

// closeStores closes memories, and the stores that no target has used.
func (a *Agent) closeStores() {
	for _, t := range a.targets {
		if t.memory != nil {
			t.memory.close()
		}
		if t.store != nil {
			_ = t.store.Close()
		}
	}
}

func (a *Agent) closeDrivers(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	for name, drv := range a.opts.Drivers {
		if err := driver.Safely(func() error { return drv.Close(ctx) }); err != nil {
			a.opts.Logger.Warn("driver_not_closed", "target", name, "error", err)
		}
	}
}

// listen binds the address of probes and metrics.
func (a *Agent) listen(ctx context.Context) (*web.Server, error) {
	cfg := a.opts.Config
	serving := web.New(a.opts.Logger, a.opts.Listening)
	hosts := web.NewHosts(cfg.Listen, cfg.ListenNames)
	return serving, serving.Listen(ctx, web.Address{Key: "listen", Addr: cfg.Listen, Handler: hosts.Only(a.handler())})
}
