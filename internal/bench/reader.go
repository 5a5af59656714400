package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/measure"
	"github.com/pgreconciler/reconciler/internal/server"
)

const (
	readyPatience = 2 * time.Minute
	// restPatience is how long the leader may take to fall asleep before latency is measured all the same: on a busy
	// server others' open transactions may keep it from that, and then that is what the user gets.
	restPatience = 5 * time.Second
	lookPeriod   = 10 * time.Millisecond
)

// reader is the product, at work in this process on the scratch database, with a driver that only says when it is called.
type reader struct {
	sink     *measure.Sink
	registry *prometheus.Registry
}

// reading runs the product while fn measures. notify says whether writers notify it, or it polls.
func (l *lab) reading(ctx context.Context, notify bool, fn func(context.Context, *reader) error) error {
	if _, err := l.writers.Exec(ctx, "SELECT reconciler.set_notify($1)", notify); err != nil {
		return fmt.Errorf("switch NOTIFY: %w", err)
	}
	r := &reader{sink: &measure.Sink{}, registry: prometheus.NewRegistry()}
	process := server.New(server.Options{
		Config: l.config(notify), Drivers: map[string]driver.Driver{target: r.sink}, Version: l.opts.Version, Logger: l.opts.Logger, Registry: r.registry,
	})
	group, ctx := errgroup.WithContext(ctx)
	running, stop := context.WithCancel(ctx)
	group.Go(func() error {
		err := process.Run(running)
		if err == nil && running.Err() == nil {
			err = errors.New("the measured process ended by itself")
		}
		return err
	})
	group.Go(func() error {
		defer stop()
		if err := r.awaitReady(ctx, notify); err != nil {
			return err
		}
		if err := l.settled(ctx); err != nil { // what was written while nobody read
			return err
		}
		return fn(ctx, r)
	})
	return group.Wait()
}

func (l *lab) config(notify bool) *config.Config {
	way := config.NotifyOff
	if notify {
		way = config.NotifyOn
	}
	at := config.NewURL(l.url)
	return &config.Config{
		DatabaseURL: at, DirectURL: at, Notify: way, PollInterval: l.opts.Poll, ShutdownTimeout: 5 * time.Second,
		Retention: config.Retention{MaxAge: 24 * time.Hour, MaxRows: 100_000_000},
		Targets: []config.Target{{
			Name: target, Driver: "bench", Options: driver.Options{}, Concurrency: 8, Timeout: 5 * time.Second,
			Backoff: config.Backoff{Min: time.Second, Max: time.Minute}, Guard: config.Guard{Window: time.Minute}, SyncMode: config.SyncRepair,
		}},
	}
}

// awaitReady returns when the target is owned and synced and, where it is to listen, LISTEN is found to work.
func (r *reader) awaitReady(ctx context.Context, notify bool) error {
	ready, err := r.await(ctx, readyPatience, func() bool {
		return r.value("reconciler_last_sync_timestamp_seconds") > 0 && (!notify || r.value("reconciler_listening") == 1)
	})
	if err == nil && !ready {
		err = fmt.Errorf("the measured process was not ready within %s", readyPatience)
	}
	return err
}

// rest waits until the leader sleeps, as it does where changes are few.
func (r *reader) rest(ctx context.Context) error {
	_, err := r.await(ctx, restPatience, func() bool { return r.value("reconciler_awake") == 0 })
	return err
}

// await looks again and again, and reports whether it saw what it waits for.
func (*reader) await(ctx context.Context, patience time.Duration, seen func() bool) (bool, error) {
	ticker := time.NewTicker(lookPeriod)
	defer ticker.Stop()
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if seen() {
			return true, nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
	return false, nil
}

// value is a gauge of the process.
func (r *reader) value(name string) float64 {
	families, err := r.registry.Gather()
	if err != nil {
		return 0 // it is asked again
	}
	for _, family := range families {
		if family.GetName() == name {
			return family.GetMetric()[0].GetGauge().GetValue()
		}
	}
	return 0
}
