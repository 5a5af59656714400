package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"sync"
	"time"

	"github.com/pgreconciler/reconciler/client"
	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/guard"
	"github.com/pgreconciler/reconciler/internal/throttle"
)

const (
	headerTimeout = 15 * time.Second
	// timeoutsLeast is how many timeouts in a row open the circuit at least.
	timeoutsLeast = 5
)

// refusals is the pause before the server is asked again that has refused to serve a target.
var refusals = throttle.Backoff{Min: time.Second, Max: 5 * time.Minute}

// target is one target, as long as the process runs. It has one session after the other: a server that refuses a target ends one.
type target struct {
	cfg     config.Target
	drv     driver.Driver
	agent   *Agent
	client  *client.Client
	log     *slog.Logger
	metrics *metrics
	store   *client.Store // of the first session; nil once that has it
	memory  *memories
	asked   *approvals

	breaker *throttle.Breaker
	rate    *throttle.Rate
	slow    throttle.Slowdown
	free    time.Time // when calls of a process that was killed have ended; zero: there are none
	calls   calls
	begin   sync.Once // the driver's Start

	removing sync.Mutex // guards what follows
	removals *guard.Guard
	counted  int64 // objects that removals knows of

	mu        sync.Mutex // guards what follows
	session   *session
	problem   error     // why the server does not serve the target; nil: it does, or it has not been asked
	since     time.Time // of problem
	stopped   bool      // for good
	told      time.Time // when a report was tried last
	report    time.Time // when the server took one last
	synced    time.Time // when the far side was listed last
	unlist    string    // why the newest listing failed; "": it did not
	blind     string    // why the watch fails again and again; "": it does not
	unwatched int       // failures of the watch in a row
	health    health
	objects   *objectHealth // nil: the driver cannot tell that of objects
}

func newTarget(a *Agent, tc config.Target, m *metrics) (*target, error) {
	t := &target{
		cfg: tc, drv: a.opts.Drivers[tc.Name], agent: a, log: a.opts.Logger.With("target", tc.Name), metrics: m,
		breaker: throttle.NewBreaker(max(timeoutsLeast, tc.Concurrency)), rate: throttle.NewRate(tc.Rate),
		calls: calls{open: map[client.Ref]attempt{}}, removals: guard.New(removalLimits(tc.Guard), 0),
	}
	if _, can := t.drv.(driver.ObjectHealthReporter); can {
		t.objects = newObjectHealth()
	}
	cfg := a.opts.Config.Agent
	opts := []client.Option{
		client.HTTPClient(&http.Client{Transport: counted{a.transport, t}}), client.Logger(a.opts.Logger), client.Identity(t.info),
	}
	if cfg.TokenFile != "" {
		opts = append(opts, client.TokenFile(cfg.TokenFile))
	}
	if cfg.TokenEnv != "" {
		opts = append(opts, client.Token(a.opts.Getenv(cfg.TokenEnv)))
	}
	var err error
	if t.client, err = client.New(cfg.Server, opts...); err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	return t, nil
}

func (t *target) path() string { return t.file(".db") }

func (t *target) file(ending string) string {
	return filepath.Join(t.agent.opts.Config.Agent.StateDir, t.cfg.Name+ending)
}

// final reports whether the state and the server do not belong together, which only --adopt changes.
func final(err error) bool {
	return errors.Is(err, client.ErrStream) || errors.Is(err, client.ErrInstallation)
}

// run follows the target until ctx ends. When the server refuses it, it asks again after a pause that grows: a token may be replaced,
// and a stream may come back. The objects are kept, and repaired, until then.
func (t *target) run(ctx, calls context.Context) error {
	for failures := 0; ctx.Err() == nil; failures++ {
		s, err := t.open()
		if err == nil {
			err = s.run(ctx, calls, func(err error) {
				if time.Since(s.began) > refusals.Max {
					failures = 0
				}
				t.refused(ctx, err, failures)
			})
		} else {
			t.refused(ctx, err, failures)
		}
		if err != nil && final(err) && ctx.Err() == nil {
			err = fmt.Errorf("target %s: %w: its state %s is kept; to follow this stream from now on, start the agent once with --adopt",
				t.cfg.Name, err, t.path())
			t.setProblem(err, true)
			t.log.Error("target_stopped", "error", err)
			return err
		}
	}
	return nil
}

// refused notes why the target is not served, and waits.
func (t *target) refused(ctx context.Context, err error, failures int) {
	pause := throttle.Jittered(refusals.Pause(failures + 1))
	t.setProblem(err, false)
	t.log.Error("target_refused", "error", err, "again_in", pause)
	wait(ctx, pause)
}

func (t *target) setProblem(err error, stopped bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.problem, t.since, t.stopped = err, time.Now(), stopped
}

// open makes the next session of the target.
func (t *target) open() (*session, error) {
	store := t.store
	t.store = nil
	if store == nil {
		var err error
		if store, err = client.OpenStore(t.path()); err != nil {
			return nil, err
		}
	}
	s := newSession(t, store)
	t.mu.Lock()
	t.session = s
	t.mu.Unlock()
	return s, nil
}

// info is what each report tells of the agent.
func (t *target) info() client.Info {
	st := t.status()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.told = time.Now()
	healthy, ailment := t.health.told()
	return client.Info{
		Name: t.agent.opts.Config.Agent.Name, Version: t.agent.opts.Version, Driver: t.cfg.Driver,
		Held: st.Held, Trouble: cmp.Or(st.Trouble, ailment), Healthy: healthy,
	}
}

// start begins to use the driver, before the first call. The installation is known by then: objects come with it. The driver
// refuses a place that belongs to the daemon or to an agent of another installation.
func (t *target) start(ctx context.Context) {
	t.begin.Do(func() {
		starter, ok := t.drv.(driver.Starter)
		if !ok {
			return
		}
		home, err := t.agent.identity.home(t.client.Installation())
		if err != nil {
			t.log.Error("state_not_written", "error", err)
		}
		if err := driver.Safely(func() error { starter.Start(ctx, home); return nil }); err != nil {
			t.log.Error("driver_panicked", "error", err)
		}
	})
}

// wait returns false when ctx ends before the time is over.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
