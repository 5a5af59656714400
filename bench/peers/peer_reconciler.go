package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/migrate"
	"github.com/pgreconciler/reconciler/internal/server"
)

// reconcilerPeer runs reconciler in this process, so that its driver can say when it is called.
type reconcilerPeer struct {
	captured

	loop *loop
}

func (*reconcilerPeer) about() about { return about{name: "reconciler", coalesces: true} }

func (*reconcilerPeer) prepare(ctx context.Context, s *stage) error {
	if _, err := migrate.Up(ctx, s.url); err != nil {
		return err
	}
	return s.exec(ctx, `SELECT reconciler.track('thing', 'things', '{id}', '''consumer''')`)
}

func (p *reconcilerPeer) start(ctx context.Context, s *stage) error {
	// As `reconciler run` has it when a config says nothing, but for the syncs on a timer: none falls into a measurement.
	cfg := &config.Config{
		DatabaseURL: config.NewURL(s.url), DirectURL: config.NewURL(s.url), Notify: config.NotifyAuto, PollInterval: time.Second,
		ShutdownTimeout: 10 * time.Second, Retention: config.Retention{MaxAge: 24 * time.Hour, MaxRows: 10_000_000},
		Targets: []config.Target{{
			Name: "consumer", Driver: "consumer", Options: driver.Options{}, Concurrency: 8, Timeout: 5 * time.Second,
			Backoff: config.Backoff{Min: time.Second, Max: time.Minute}, Guard: config.Guard{Window: time.Minute}, SyncMode: config.SyncRepair,
		}},
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	running := server.New(server.Options{Config: cfg, Drivers: map[string]driver.Driver{"consumer": called(s.deliver)}, Version: "bench", Logger: log})
	p.loop = goLoop(ctx, running.Run)
	if err := s.exec(ctx, "SELECT reconciler.wait('30min')"); err != nil {
		return fmt.Errorf("first sync: %w", err)
	}
	return nil
}

func (p *reconcilerPeer) stop(context.Context) error { return p.loop.stop() }

// called is a driver that does nothing but deliver.
type called func(change)

// Apply delivers the row.
func (f called) Apply(_ context.Context, obj driver.Object) driver.Outcome {
	var row state
	if err := json.Unmarshal(obj.Spec, &row); err != nil {
		return driver.Terminal(fmt.Errorf("read the spec: %w", err))
	}
	f(change{row.ID, row.N})
	return driver.Done()
}

// Delete does nothing: no row goes.
func (called) Delete(context.Context, driver.Ref) driver.Outcome { return driver.Done() }

// Close has nothing to release.
func (called) Close(context.Context) error { return nil }
