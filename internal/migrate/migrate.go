package migrate

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/pgreconciler/reconciler/db/migrations"
	"github.com/pgreconciler/reconciler/internal/crash"
)

const (
	versionTable = "reconciler.goose_db_version"

	lockPoll  = 1 // seconds between two tries to get the lock
	lockTries = 300
)

// Applied is one migration that was run, up or down.
type Applied struct {
	Version  int64
	Name     string // file name, such as 00001_schema.sql
	Duration time.Duration
}

// Set is a set of migrations. The product's own is what the functions of this package use.
type Set struct {
	files fs.FS
}

// New returns the set of the *.sql files at the root of files.
func New(files fs.FS) Set { return Set{files: files} }

// Embedded returns the migrations of this binary.
func Embedded() Set { return New(migrations.FS) }

// Up applies every embedded migration that the database lacks, in order, and then has the capture code of
// every tracked resource generated again. It returns what it applied, also when it fails half-way; each
// migration is a transaction of its own. Nothing to do is not an error. See NewerSchemaError.
func Up(ctx context.Context, url string) ([]Applied, error) { return Embedded().Up(ctx, url) }

// Down takes back the newest applied migration. A database without any gives an empty result.
func Down(ctx context.Context, url string) ([]Applied, error) { return Embedded().Down(ctx, url) }

// DownTo takes back every migration newer than version, newest first; 0 takes back all of them.
func DownTo(ctx context.Context, url string, version int64) ([]Applied, error) {
	return Embedded().DownTo(ctx, url, version)
}

// Up is the function Up for this set.
func (s Set) Up(ctx context.Context, url string) ([]Applied, error) {
	return s.locked(ctx, url, "apply migrations", func(ctx context.Context, p *goose.Provider, conn *sql.Conn) ([]*goose.MigrationResult, error) {
		if err := raiseSequences(ctx, conn); err != nil {
			return nil, err
		}
		results, err := upAll(ctx, p)
		if err != nil {
			return results, err
		}
		crash.Point(crash.MigrationsDone)
		return results, regenerate(ctx, conn)
	})
}

// upAll applies what the database lacks, one after the other.
func upAll(ctx context.Context, p *goose.Provider) (results []*goose.MigrationResult, err error) {
	for {
		result, err := p.UpByOne(ctx)
		if errors.Is(err, goose.ErrNoNextVersion) {
			return results, nil
		}
		if err != nil {
			return results, err
		}
		results = append(results, result)
		crash.Point(crash.MigrationApplied)
	}
}

// Down is the function Down for this set.
func (s Set) Down(ctx context.Context, url string) ([]Applied, error) {
	return s.locked(ctx, url, "take back a migration", func(ctx context.Context, p *goose.Provider, _ *sql.Conn) ([]*goose.MigrationResult, error) {
		result, err := p.Down(ctx)
		if errors.Is(err, goose.ErrNoNextVersion) {
			return nil, nil
		}
		if result == nil {
			return nil, err
		}
		return []*goose.MigrationResult{result}, err
	})
}

// DownTo is the function DownTo for this set.
func (s Set) DownTo(ctx context.Context, url string, version int64) ([]Applied, error) {
	return s.locked(ctx, url, "take back migrations", func(ctx context.Context, p *goose.Provider, _ *sql.Conn) ([]*goose.MigrationResult, error) {
		return p.DownTo(ctx, version)
	})
}

// change is what a caller of locked does while nobody else changes the schema.
type change func(context.Context, *goose.Provider, *sql.Conn) ([]*goose.MigrationResult, error)

// locked runs fn under the migration lock. The lock is held here and not by goose's provider, because it must
// also cover the schema, goose's own table (which goose creates before it locks) and regenerate.
func (s Set) locked(ctx context.Context, url, what string, fn change) (applied []Applied, err error) {
	db, err := open(url)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()

	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(lockPoll, lockTries))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	if err := locker.SessionLock(ctx, conn); err != nil {
		return nil, fmt.Errorf("%s: wait for another migration to end (who runs it: SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objid = %d): %w",
			what, lock.DefaultLockID, err)
	}
	// The end of the session gives the lock back too, so a failure to unlock changes nothing for others.
	defer func() { err = errors.Join(err, locker.SessionUnlock(context.WithoutCancel(ctx), conn)) }()

	if err := s.prepare(ctx, conn); err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	provider, err := s.provider(db)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	results, err := fn(ctx, provider, conn)
	return collect(results, what, err)
}

// provider returns goose's provider for this set, without a lock, for callers that bring their own.
func (s Set) provider(db *sql.DB) (*goose.Provider, error) {
	return goose.NewProvider(goose.DialectPostgres, db, s.files,
		goose.WithTableName(versionTable), goose.WithDisableGlobalRegistry(true))
}

// prepare makes the schema that goose's table stands in, and refuses databases that must not be touched.
func (s Set) prepare(ctx context.Context, conn *sql.Conn) error {
	if err := checkEncoding(ctx, sqlRow(conn)); err != nil {
		return err
	}
	// Asked first: IF NOT EXISTS alone wants the right to create it all the same.
	var exists bool
	if err := conn.QueryRowContext(ctx, `SELECT to_regnamespace('reconciler') IS NOT NULL`).Scan(&exists); err != nil {
		return fmt.Errorf("look for the schema reconciler: %w", err)
	}
	if !exists {
		if _, err := conn.ExecContext(ctx, `CREATE SCHEMA reconciler`); err != nil {
			return fmt.Errorf("create the schema reconciler (the role needs CREATE on the database): %w", err)
		}
	}
	have, err := versionOf(ctx, sqlRow(conn))
	if err != nil {
		return err
	}
	want, err := s.newest()
	if err != nil {
		return err
	}
	if have > want {
		return &NewerSchemaError{Have: have, Want: want}
	}
	return nil
}

// raiseSequences sets sequences forward that a move of the database left behind, goose's own too: the next migration could not be
// recorded.
func raiseSequences(ctx context.Context, conn *sql.Conn) error {
	if err := callIfExists(ctx, conn, "reconciler.raise_sequences()"); err != nil {
		return fmt.Errorf("set sequences forward that are behind their tables: %w", err)
	}
	return nil
}

// regenerate has the database write the capture code of every tracked resource anew: its template may have changed.
func regenerate(ctx context.Context, conn *sql.Conn) error {
	if err := callIfExists(ctx, conn, "reconciler.regenerate()"); err != nil {
		return fmt.Errorf("generate the capture code of tracked resources again (migrations are applied; run `reconciler migrate up` once more): %w", err)
	}
	return nil
}

// callIfExists calls a function of the schema. One that a set of migrations does not have yet is left out.
func callIfExists(ctx context.Context, conn *sql.Conn, function string) error {
	var exists bool
	if err := conn.QueryRowContext(ctx, `SELECT to_regprocedure($1) IS NOT NULL`, function).Scan(&exists); err != nil || !exists {
		return err
	}
	_, err := conn.ExecContext(ctx, `SELECT `+function)
	return err
}

// collect turns goose's results into ours; goose hands the ones before a failure over inside its error.
func collect(results []*goose.MigrationResult, what string, err error) ([]Applied, error) {
	if partial, ok := errors.AsType[*goose.PartialError](err); ok {
		results = append(results, partial.Applied...)
		err = fmt.Errorf("%s: %s: %w", what, path.Base(partial.Failed.Source.Path), partial.Err)
	} else if err != nil {
		err = fmt.Errorf("%s: %w", what, err)
	}
	applied := make([]Applied, 0, len(results))
	for _, r := range results {
		applied = append(applied, Applied{Version: r.Source.Version, Name: path.Base(r.Source.Path), Duration: r.Duration})
	}
	return applied, err
}

func open(url string) (*sql.DB, error) {
	pool, err := pgxpool.ParseConfig(url) // the server does not know the settings for pools
	if err != nil {
		return nil, err
	}
	config := pool.ConnConfig
	if _, set := config.RuntimeParams["application_name"]; !set {
		config.RuntimeParams["application_name"] = "reconciler migrate"
	}
	return stdlib.OpenDB(*config), nil
}
