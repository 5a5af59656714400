package migrate

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/pressly/goose/v3"
)

// State is one embedded migration and whether the database has it.
type State struct {
	Version   int64
	Name      string    // file name, such as 00001_schema.sql
	AppliedAt time.Time // zero while it is pending
}

// Pending says whether the migration is still to be applied.
func (s State) Pending() bool { return s.AppliedAt.IsZero() }

// Querier is what Version and Check need: a pgx connection, pool or transaction.
type Querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Status lists the embedded migrations in order. It changes nothing. With a *NewerSchemaError, the list is complete all the same.
func Status(ctx context.Context, url string) ([]State, error) { return Embedded().Status(ctx, url) }

// Version returns the version that the database has (0 for none) and the one that this binary embeds.
// When the database is ahead, both numbers come with a *NewerSchemaError.
func Version(ctx context.Context, conn Querier) (have, want int64, err error) {
	return Embedded().Version(ctx, conn)
}

// Check returns nil if the database has exactly the schema that this binary was built for, a
// *PendingError or a *NewerSchemaError if not.
func Check(ctx context.Context, conn Querier) error { return Embedded().Check(ctx, conn) }

// Print writes the SQL of every embedded migration, in order, as goose reads it.
func Print(w io.Writer) error { return Embedded().Print(w) }

// Status is the function Status for this set.
func (s Set) Status(ctx context.Context, url string) (_ []State, err error) {
	db, err := open(url)
	if err != nil {
		return nil, fmt.Errorf("read the state of migrations: %w", err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()

	have, err := versionOf(ctx, sqlRow(db))
	if err != nil {
		return nil, err
	}
	times := map[int64]time.Time{}
	if have > 0 {
		if times, err = appliedAt(ctx, db); err != nil {
			return nil, err
		}
	}
	sources, err := s.sources()
	if err != nil {
		return nil, err
	}
	states := make([]State, 0, len(sources))
	for _, source := range sources {
		states = append(states, State{Version: source.Version, Name: path.Base(source.Path), AppliedAt: times[source.Version]})
	}
	if want := sources[len(sources)-1].Version; have > want {
		return states, &NewerSchemaError{Have: have, Want: want}
	}
	return states, nil
}

// Version is the function Version for this set.
func (s Set) Version(ctx context.Context, conn Querier) (have, want int64, err error) {
	if want, err = s.newest(); err != nil {
		return 0, 0, err
	}
	have, err = versionOf(ctx, func(ctx context.Context, query string) row { return conn.QueryRow(ctx, query) })
	if err != nil {
		return 0, want, err
	}
	if have > want {
		return have, want, &NewerSchemaError{Have: have, Want: want}
	}
	return have, want, nil
}

// Check is the function Check for this set.
func (s Set) Check(ctx context.Context, conn Querier) error {
	have, want, err := s.Version(ctx, conn)
	if err != nil {
		return err
	}
	if have < want {
		return &PendingError{Have: have, Want: want}
	}
	return checkEncoding(ctx, func(ctx context.Context, query string) row { return conn.QueryRow(ctx, query) })
}

// Print is the function Print for this set.
func (s Set) Print(w io.Writer) error {
	sources, err := s.sources()
	if err != nil {
		return err
	}
	for _, source := range sources {
		text, err := fs.ReadFile(s.files, source.Path)
		if err != nil {
			return fmt.Errorf("read migration %s: %w", source.Path, err)
		}
		if _, err := fmt.Fprintf(w, "-- %s\n%s\n", path.Base(source.Path), text); err != nil {
			return fmt.Errorf("print migration %s: %w", source.Path, err)
		}
	}
	return nil
}

// newest is the highest version in the set.
func (s Set) newest() (int64, error) {
	sources, err := s.sources()
	if err != nil {
		return 0, err
	}
	return sources[len(sources)-1].Version, nil
}

// sources lists the set's files by version; there is at least one. Goose reads the names, so that both
// agree on them. It wants a database for that, but does not use it.
func (s Set) sources() ([]*goose.Source, error) {
	provider, err := s.provider(new(sql.DB))
	if err != nil {
		return nil, fmt.Errorf("list migrations: %w", err)
	}
	return provider.ListSources(), nil
}

type row interface{ Scan(dest ...any) error }

type queryRow func(ctx context.Context, query string) row

// sqlRow lets versionOf read through database/sql.
func sqlRow(db interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
},
) queryRow {
	return func(ctx context.Context, query string) row { return db.QueryRowContext(ctx, query) }
}

// versionOf reads the highest applied version, 0 if there is no schema yet.
func versionOf(ctx context.Context, query queryRow) (int64, error) {
	var recorded, installed bool
	err := query(ctx, `SELECT to_regclass('`+versionTable+`') IS NOT NULL, to_regclass('reconciler.objects') IS NOT NULL`).Scan(&recorded, &installed)
	if err != nil {
		return 0, fmt.Errorf("read the schema version (has the role been granted its rights?): %w", err)
	}
	if !recorded && installed {
		return 0, ErrUnrecorded
	}
	if !recorded {
		return 0, nil
	}
	var version int64
	if err := query(ctx, `SELECT coalesce(max(version_id), 0) FROM `+versionTable+` WHERE is_applied`).Scan(&version); err != nil {
		return 0, fmt.Errorf("read the schema version from %s: %w", versionTable, err)
	}
	return version, nil
}

func appliedAt(ctx context.Context, db *sql.DB) (_ map[int64]time.Time, err error) {
	// Goose stores now() as timestamp without time zone; the session's zone is the best guess for which one it was.
	rows, err := db.QueryContext(ctx, `SELECT version_id, max(tstamp)::timestamptz FROM `+versionTable+` WHERE is_applied GROUP BY 1`)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", versionTable, err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	times := map[int64]time.Time{}
	for rows.Next() {
		var version int64
		var at time.Time
		if err := rows.Scan(&version, &at); err != nil {
			return nil, fmt.Errorf("read %s: %w", versionTable, err)
		}
		times[version] = at
	}
	return times, rows.Err()
}
