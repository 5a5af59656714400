package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

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
	cfg, err := defaults(s.url)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	running := server.New(server.Options{Config: cfg, Drivers: map[string]driver.Driver{"consumer": called(s.deliver)}, Version: "bench", Logger: log})
	p.loop = goLoop(ctx, running.Run)
	if err := s.exec(ctx, "SELECT reconciler.wait('30min')"); err != nil {
		return fmt.Errorf("first sync: %w", err)
	}
	return nil
}

// defaults is the config that `reconciler run` reads from a file that says no more than it has to, but for the syncs on a
// timer: none falls into a measurement.
func defaults(url string) (cfg *config.Config, err error) {
	dir, err := os.MkdirTemp("", "reconciler-peers-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	text, err := json.Marshal(map[string]any{
		"database_url": url, "listen": "off",
		"targets": []map[string]any{{"name": "consumer", "driver": "consumer", "sync_interval": "off"}},
	})
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "reconciler.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return nil, err
	}
	return config.Load(config.LoadOptions{Path: file})
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
