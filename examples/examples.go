// Package examples loads the examples into a database: schema, data, and a config to run reconciler with. Each example
// is a directory with a README of its own; `reconciler dev`, the demo and tests load them through this package.
package examples

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/pressly/goose/v3"

	"github.com/pgreconciler/reconciler/examples/edge"
	"github.com/pgreconciler/reconciler/examples/fleet"
	"github.com/pgreconciler/reconciler/examples/kubernetes"
	"github.com/pgreconciler/reconciler/examples/prometheus"
)

// Example is a schema with rows that reconciler can be tried on.
type Example struct {
	Name string

	migrations fs.FS // holds the directory migrations
	table      string
	seed       string
	config     string
	dir        string // what the directories in config begin with; "" for none
}

// All returns every example, the default one first.
func All() []Example {
	return []Example{
		{Name: "fleet", migrations: fleet.Migrations, table: fleet.VersionTable, seed: fleet.Seed, config: fleet.Config, dir: fleet.Dir},
		{
			Name: "prometheus", migrations: prometheus.Migrations, table: prometheus.VersionTable,
			seed: prometheus.Seed, config: prometheus.Config, dir: prometheus.Dir,
		},
		{Name: "edge", migrations: edge.Migrations, table: edge.VersionTable, seed: edge.Seed, config: edge.Config},
		{
			Name: "kubernetes", migrations: kubernetes.Migrations, table: kubernetes.VersionTable,
			seed: kubernetes.Seed, config: kubernetes.Config, // its directory has your kubeconfig files, and stays
		},
	}
}

// Find returns the example of this name.
func Find(name string) (Example, error) {
	all := All()
	names := make([]string, len(all))
	for i, e := range all {
		if e.Name == name {
			return e, nil
		}
		names[i] = e.Name
	}
	return Example{}, fmt.Errorf("there is no example %q: the examples are %s", name, strings.Join(names, ", "))
}

// Up creates the example's schema and tracks its tables. The database must have reconciler's own migrations.
func (e Example) Up(ctx context.Context, db *sql.DB) error {
	provider, err := e.provider(db)
	if err != nil {
		return err
	}
	if _, err := provider.Up(ctx); err != nil {
		return fmt.Errorf("create the schema of example %s (has `reconciler migrate up` been run?): %w", e.Name, err)
	}
	return nil
}

// Fill adds the example's rows, as one transaction. In a schema that has them it changes nothing.
func (e Example) Fill(ctx context.Context, db *sql.DB) error {
	if _, err := db.ExecContext(ctx, e.seed); err != nil {
		return fmt.Errorf("add the rows of example %s: %w", e.Name, err)
	}
	return nil
}

// Down untracks the example's tables and drops its schema. What the targets have stays there.
func (e Example) Down(ctx context.Context, db *sql.DB) error {
	provider, err := e.provider(db)
	if err != nil {
		return err
	}
	if _, err := provider.DownTo(ctx, 0); err != nil {
		return fmt.Errorf("drop the schema of example %s: %w", e.Name, err)
	}
	if _, err := db.ExecContext(ctx, "DROP TABLE "+e.table); err != nil {
		return fmt.Errorf("drop goose's table of example %s: %w", e.Name, err)
	}
	return nil
}

// Config returns a config, as YAML, for the example in this database, with targets that are directories below dir.
// dir must exist.
func (e Example) Config(databaseURL, dir string) (string, error) {
	text := e.config
	if e.dir != "" {
		var ok bool
		if text, ok = replaceQuoted(e.config, e.dir, dir); !ok {
			return "", fmt.Errorf("the config of example %s names no directory below %s", e.Name, e.dir)
		}
	}
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, "database_url:") {
			lines[i] = "database_url: " + quote(databaseURL)
			return strings.Join(lines, "\n"), nil
		}
	}
	return "", errors.New("the config of example " + e.Name + " has no database_url")
}

func (e Example) provider(db *sql.DB) (*goose.Provider, error) {
	files, err := fs.Sub(e.migrations, "migrations")
	if err != nil {
		return nil, fmt.Errorf("read the migrations of example %s: %w", e.Name, err)
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, files, goose.WithTableName(e.table), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return nil, fmt.Errorf("read the migrations of example %s: %w", e.Name, err)
	}
	return provider, nil
}

// replaceQuoted replaces the beginning of every quoted text that begins with old.
func replaceQuoted(text, old, replacement string) (string, bool) {
	inner := strings.TrimSuffix(quote(replacement), `"`)
	return strings.ReplaceAll(text, `"`+old, inner), strings.Contains(text, `"`+old)
}

// quote returns a text as YAML, in its JSON form.
func quote(text string) string {
	quoted, err := json.Marshal(text)
	if err != nil {
		panic(err) // no string fails
	}
	return string(quoted)
}
