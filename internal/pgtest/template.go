package pgtest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgreconciler/reconciler/db/migrations"
	"github.com/pgreconciler/reconciler/internal/migrate"
)

// database returns a new database with the embedded migrations, in which setup has run.
func (i *instance) database(t testing.TB, setup []string) *DB {
	t.Helper()
	name, err := i.template(t.Context(), migrations.FS, setup)
	if err != nil {
		t.Fatalf("make the template database: %v", err)
	}
	return create(t, i, name)
}

// template makes at most one template per server and content, also when several processes ask at once.
func (i *instance) template(ctx context.Context, files fs.FS, setup []string) (_ string, err error) {
	name, err := templateName(files, setup)
	if err != nil {
		return "", err
	}
	if _, made := i.templates.Load(name); made {
		return name, nil
	}
	from := "template0"
	if len(setup) > 0 {
		if from, err = i.template(ctx, files, nil); err != nil {
			return "", err
		}
	}
	conn, err := pgx.Connect(ctx, i.url(superuser, "postgres"))
	if err != nil {
		return "", err
	}
	// Closing the session gives the lock back.
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock(hashtext($1))", name); err != nil {
		return "", err
	}
	var exists bool
	if err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", name).Scan(&exists); err != nil {
		return "", err
	}
	if !exists {
		fill := func(database string) error {
			if len(setup) > 0 {
				return i.admin(ctx, database, setup...)
			}
			_, err := migrate.New(files).Up(ctx, i.url(superuser, database))
			return err //nolint:wrapcheck // it names the migration
		}
		if err := i.makeTemplate(ctx, name, from, fill); err != nil {
			return "", err
		}
	}
	i.templates.Store(name, true)
	return name, nil
}

// makeTemplate fills a database of another name and renames it at the end: a database of the final name is complete.
func (i *instance) makeTemplate(ctx context.Context, name, from string, fill func(database string) error) error {
	draft := name + "_draft"
	err := i.admin(ctx, "postgres", "DROP DATABASE IF EXISTS "+draft+" WITH (FORCE)", "CREATE DATABASE "+draft+" TEMPLATE "+from)
	if err == nil {
		err = fill(draft)
	}
	if err != nil {
		return err
	}
	return i.admin(ctx, "postgres",
		// CREATE DATABASE refuses a template that has connections.
		fmt.Sprintf("ALTER DATABASE %s ALLOW_CONNECTIONS false", draft),
		fmt.Sprintf("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '%s'", draft),
		fmt.Sprintf("ALTER DATABASE %s RENAME TO %s", draft, name))
}

// templateName changes with every byte of the migrations and of setup.
func templateName(files fs.FS, setup []string) (string, error) {
	hash := sha256.New()
	_, _ = fmt.Fprintf(hash, "%q\n", setup) // A hash takes everything.
	err := fs.WalkDir(files, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := fs.ReadFile(files, path)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(hash, "%s %d\n%s\n", path, len(text), text)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("hash the migrations: %w", err)
	}
	return "template_" + hex.EncodeToString(hash.Sum(nil)[:8]), nil
}
