package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/pgreconciler/reconciler/examples"
	"github.com/pgreconciler/reconciler/internal/config"
)

const (
	// devListen is any free port: another daemon may have the one of the configuration.
	devListen = "127.0.0.1:0"
	// streamsListen is where README.md and `reconciler watch` look for streams.
	streamsListen = "127.0.0.1:8081"
)

// devExample is what dev shows: one of the examples, or a person's own directory.
type devExample interface {
	name() string
	// load makes the schema and the rows.
	load(ctx context.Context, databaseURL string) error
	// configure returns the configuration, with file targets below dir, and a file there for other commands.
	configure(databaseURL, dir string) (cfg *config.Config, file string, err error)
}

// findExample takes a name or a directory; "" is the tour of README.md.
func findExample(name string) (devExample, error) {
	if name == "" {
		return tour{}, nil
	}
	example, err := examples.Find(name)
	if err == nil {
		return builtIn{example}, nil
	}
	info, statErr := os.Stat(name)
	if statErr != nil || !info.IsDir() {
		return nil, fmt.Errorf("%w, or a directory", err)
	}
	if _, err := os.Stat(filepath.Join(name, config.DefaultFile)); err != nil {
		return nil, fmt.Errorf("directory %s has no %s", name, config.DefaultFile)
	}
	return directory(name), nil
}

// tour has the targets of README.md, and no tables.
type tour struct{}

const tourConfig = `database_url: %s
streams: {listen: %s}
targets:
  - {name: eu, driver: file, options: {dir: %s}}
  - {name: us, driver: file, options: {dir: %s}}
  - {name: edge, driver: stream}
`

func (tour) name() string { return "" }

func (tour) load(context.Context, string) error { return nil }

func (tour) configure(databaseURL, dir string) (*config.Config, string, error) {
	targets := filepath.Join(dir, "targets")
	if err := makeTargets(targets); err != nil {
		return nil, "", err
	}
	text := fmt.Sprintf(tourConfig, strconv.Quote(databaseURL), streamsListen,
		strconv.Quote(filepath.Join(targets, "eu")), strconv.Quote(filepath.Join(targets, "us")))
	return writeDev(dir, text)
}

// makeTargets creates the parent directory of the file targets.
func makeTargets(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // another user may read the files
		return fmt.Errorf("make a directory for the targets: %w", err)
	}
	return nil
}

// writeDev writes a configuration, and loads it.
func writeDev(dir, text string) (*config.Config, string, error) {
	file := filepath.Join(dir, config.DefaultFile)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, "", fmt.Errorf("write the configuration: %w", err)
	}
	cfg, err := loadDev(file, map[string]string{"listen": devListen})
	return cfg, file, err
}

// builtIn is an example that this binary brings.
type builtIn struct{ examples.Example }

func (b builtIn) name() string { return b.Name }

func (b builtIn) load(ctx context.Context, databaseURL string) error {
	return withSQL(databaseURL, func(db *sql.DB) error {
		if err := b.Up(ctx, db); err != nil {
			return err
		}
		return b.Fill(ctx, db)
	})
}

func (b builtIn) configure(databaseURL, dir string) (*config.Config, string, error) {
	text, err := b.Config(databaseURL, dir)
	if err != nil {
		return nil, "", err
	}
	return writeDev(dir, text)
}

// loadDev loads a configuration. Streams that are served get any free port if theirs is taken.
func loadDev(file string, overrides map[string]string) (*config.Config, error) {
	cfg, err := config.Load(config.LoadOptions{Path: file, Overrides: overrides})
	if err != nil || cfg.Streams.Listen == "" || isFree(cfg.Streams.Listen) {
		return cfg, err
	}
	overrides["streams.listen"] = devListen
	return config.Load(config.LoadOptions{Path: file, Overrides: overrides})
}

// isFree reports whether an address can be listened on.
func isFree(address string) bool {
	listener, err := net.Listen("tcp", address) //nolint:noctx // it does not wait
	return err == nil && listener.Close() == nil
}

// directory is a person's own example.
type directory string

func (d directory) name() string { return string(d) }

func (d directory) load(ctx context.Context, databaseURL string) error {
	return withSQL(databaseURL, func(db *sql.DB) error {
		if err := d.migrate(ctx, db); err != nil {
			return err
		}
		seed, err := os.ReadFile(filepath.Join(string(d), "seed.sql"))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the rows of the example: %w", err)
		}
		if _, err := db.ExecContext(ctx, string(seed)); err != nil {
			return fmt.Errorf("run %s: %w", filepath.Join(string(d), "seed.sql"), err)
		}
		return nil
	})
}

func (d directory) migrate(ctx context.Context, db *sql.DB) error {
	provider, err := goose.NewProvider(goose.DialectPostgres, db, os.DirFS(filepath.Join(string(d), "migrations")), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return fmt.Errorf("read the migrations in %s: %w", filepath.Join(string(d), "migrations"), err)
	}
	if _, err := provider.Up(ctx); err != nil {
		return fmt.Errorf("run the migrations in %s: %w", filepath.Join(string(d), "migrations"), err)
	}
	return nil
}

func (d directory) configure(databaseURL, dir string) (*config.Config, string, error) {
	cfg, err := loadDev(filepath.Join(string(d), config.DefaultFile),
		map[string]string{"listen": devListen, "pprof_listen": "off", "database_url": databaseURL, "direct_url": databaseURL})
	if err != nil {
		return nil, "", err
	}
	for _, t := range cfg.Targets {
		if t.Driver == "file" {
			t.Options["dir"] = filepath.Join(dir, "targets", t.Name)
		}
	}
	if err := makeTargets(filepath.Join(dir, "targets")); err != nil {
		return nil, "", err
	}
	file, err := writeConfig(cfg, databaseURL, dir)
	return cfg, file, err
}

// writeConfig writes as much of a configuration as other commands need.
func writeConfig(cfg *config.Config, databaseURL, dir string) (string, error) {
	targets := make([]map[string]any, len(cfg.Targets))
	for i, t := range cfg.Targets {
		targets[i] = map[string]any{"name": t.Name, "driver": t.Driver, "options": t.Options}
	}
	text, err := json.MarshalIndent(map[string]any{"database_url": databaseURL, "targets": targets}, "", "  ")
	if err != nil {
		return "", fmt.Errorf("write the configuration: %w", err)
	}
	file := filepath.Join(dir, config.DefaultFile)
	if err := os.WriteFile(file, append(text, '\n'), 0o600); err != nil {
		return "", fmt.Errorf("write the configuration: %w", err)
	}
	return file, nil
}

// withSQL lends a database/sql handle, which goose wants.
func withSQL(databaseURL string, fn func(*sql.DB) error) (err error) {
	cfg, err := pgx.ParseConfig(databaseURL)
	if err != nil {
		return fmt.Errorf("read the URL of the throwaway PostgreSQL: %w", err)
	}
	db := stdlib.OpenDB(*cfg)
	defer func() { err = errors.Join(err, db.Close()) }()
	return fn(db)
}
