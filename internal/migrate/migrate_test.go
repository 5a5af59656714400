package migrate_test

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/jackc/pgx/v5"
	"github.com/pressly/goose/v3"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/db/migrations"
	"github.com/pgreconciler/reconciler/internal/migrate"
	"github.com/pgreconciler/reconciler/internal/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func file(up, down string) *fstest.MapFile {
	return &fstest.MapFile{Data: []byte("-- +goose Up\n" + up + "\n-- +goose Down\n" + down + "\n")}
}

func three() fstest.MapFS {
	return fstest.MapFS{
		"00001_one.sql":   file("CREATE TABLE reconciler.one ();", "DROP TABLE reconciler.one;"),
		"00002_two.sql":   file("CREATE TABLE reconciler.two ();", "DROP TABLE reconciler.two;"),
		"00003_three.sql": file("CREATE TABLE reconciler.three ();", "DROP TABLE reconciler.three;"),
	}
}

func names(applied []migrate.Applied) []string {
	out := []string{}
	for _, a := range applied {
		out = append(out, fmt.Sprintf("%d %s", a.Version, a.Name))
	}
	return out
}

// tables lists what is in the schema, without goose's own table.
func tables(t *testing.T, db *pgtest.DB) []string {
	t.Helper()
	rows, err := db.Pool.Query(t.Context(), `
		SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace('reconciler') AND relkind = 'r'
		AND relname <> 'goose_db_version' ORDER BY oid`)
	require.NoError(t, err)
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return found
}

func TestUp(t *testing.T) {
	t.Parallel()

	t.Run("AppliesEverythingOnce", upAppliesEverythingOnce)
	t.Run("AppliesWhatIsNew", upAppliesWhatIsNew)
	t.Run("KeepsWhatSucceededBeforeAFailure", upKeepsWhatSucceededBeforeAFailure)
	t.Run("IsDoneByOneOfManyAtATime", upIsDoneByOneOfManyAtATime)
	t.Run("RegeneratesCaptureEachTime", upRegeneratesCaptureEachTime)
	t.Run("SaysWhenRegeneratingFails", upSaysWhenRegeneratingFails)
}

func upAppliesEverythingOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	applied, err := migrate.New(three()).Up(t.Context(), db.URL)
	require.NoError(t, err)
	require.Equal(t, []string{"1 00001_one.sql", "2 00002_two.sql", "3 00003_three.sql"}, names(applied))
	require.Equal(t, []string{"one", "two", "three"}, tables(t, db))

	applied, err = migrate.New(three()).Up(t.Context(), db.URL)
	require.NoError(t, err)
	require.Empty(t, applied)
}

func upAppliesWhatIsNew(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	files := three()
	last := files["00003_three.sql"]
	delete(files, "00003_three.sql")
	_, err := migrate.New(files).Up(t.Context(), db.URL)
	require.NoError(t, err)
	files["00003_three.sql"] = last
	applied, err := migrate.New(files).Up(t.Context(), db.URL)
	require.NoError(t, err)
	require.Equal(t, []string{"3 00003_three.sql"}, names(applied))
}

func upKeepsWhatSucceededBeforeAFailure(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	files := three()
	files["00002_two.sql"] = file("CREATE TABLE reconciler.half (); SELECT 1/0;", "")
	applied, err := migrate.New(files).Up(t.Context(), db.URL)
	require.EqualError(t, err, "apply migrations: 00002_two.sql: ERROR: division by zero (SQLSTATE 22012)")
	require.Equal(t, []string{"1 00001_one.sql"}, names(applied))
	require.Equal(t, []string{"one"}, tables(t, db))
}

// C54: replicas that start together all migrate.
func upIsDoneByOneOfManyAtATime(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	const replicas = 6
	type result struct {
		applied []migrate.Applied
		err     error
	}
	results := make(chan result)
	for range replicas {
		go func() {
			applied, err := migrate.New(three()).Up(context.WithoutCancel(t.Context()), db.URL)
			results <- result{applied, err}
		}()
	}
	workers := 0
	for range replicas {
		r := <-results
		require.NoError(t, r.err)
		if len(r.applied) > 0 {
			require.Len(t, r.applied, 3)
			workers++
		}
	}
	require.Equal(t, 1, workers)
}

func upRegeneratesCaptureEachTime(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	files := fstest.MapFS{"00001_one.sql": file(`CREATE TABLE reconciler.calls (n int);
CREATE FUNCTION reconciler.regenerate() RETURNS void LANGUAGE sql AS $$ INSERT INTO reconciler.calls VALUES (1) $$;`, "")}
	for range 2 {
		_, err := migrate.New(files).Up(t.Context(), db.URL)
		require.NoError(t, err)
	}
	var calls int
	require.NoError(t, db.Pool.QueryRow(t.Context(), "SELECT count(*) FROM reconciler.calls").Scan(&calls))
	require.Equal(t, 2, calls)
}

// A database that was moved by copying its rows has goose's sequence at its start, too.
func TestF128_UpWorksWhereSequencesStayedBehind(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, `SELECT setval(pg_get_serial_sequence('reconciler.goose_db_version', 'id'), 1, false)`)
	files := fstest.MapFS{}
	require.NoError(t, fs.WalkDir(migrations.FS, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := fs.ReadFile(migrations.FS, path)
		files[path] = &fstest.MapFile{Data: data}
		return err
	}))
	files["09999_next.sql"] = file("CREATE TABLE reconciler.next (id int PRIMARY KEY);", "")
	applied, err := migrate.New(files).Up(t.Context(), db.URL)
	require.NoError(t, err)
	require.Equal(t, []string{"9999 09999_next.sql"}, names(applied))
}

func upSaysWhenRegeneratingFails(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	files := fstest.MapFS{"00001_one.sql": file(`-- +goose StatementBegin
CREATE FUNCTION reconciler.regenerate() RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'lock timeout on shop.orders'; END $$;
-- +goose StatementEnd`, "")}
	applied, err := migrate.New(files).Up(t.Context(), db.URL)
	require.EqualError(t, err, "apply migrations: generate the capture code of tracked resources again (migrations are applied; run `reconciler migrate up` once more): ERROR: lock timeout on shop.orders (SQLSTATE P0001)")
	require.Equal(t, []string{"1 00001_one.sql"}, names(applied))
}

func TestUpRefuses(t *testing.T) {
	t.Parallel()

	t.Run("ASchemaThatIsNewerThanTheBinary", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Empty(t)
		_, err := migrate.New(three()).Up(t.Context(), db.URL)
		require.NoError(t, err)
		older := three()
		delete(older, "00003_three.sql")
		_, err = migrate.New(older).Up(t.Context(), db.URL)
		var newer *migrate.NewerSchemaError
		require.ErrorAs(t, err, &newer)
		require.Equal(t, &migrate.NewerSchemaError{Have: 3, Want: 2}, newer)
		_, err = migrate.New(older).Down(t.Context(), db.URL)
		require.EqualError(t, err, "take back a migration: the database has schema version 3, this binary knows up to 2: "+
			"use a newer reconciler, or take the schema back with the newer one (`reconciler migrate down`)")
		require.Equal(t, []string{"one", "two", "three"}, tables(t, db))
	})

	t.Run("ASchemaWithoutARecord", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Empty(t)
		db.Exec(t, "CREATE SCHEMA reconciler; CREATE TABLE reconciler.objects ()")
		_, err := migrate.New(three()).Up(t.Context(), db.URL)
		require.ErrorIs(t, err, migrate.ErrUnrecorded)
	})

	t.Run("ARoleThatMayNotMakeTheSchema", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Empty(t)
		role := db.Role(t, "weak", "")
		_, err := migrate.New(three()).Up(t.Context(), db.URLFor(role))
		require.EqualError(t, err, "apply migrations: create the schema reconciler (the role needs CREATE on the database): "+
			"ERROR: permission denied for database "+db.Name+" (SQLSTATE 42501)")
	})

	t.Run("AMalformedURLWithoutShowingItsPassword", func(t *testing.T) {
		t.Parallel()
		_, err := migrate.Up(t.Context(), "postgres://u:topsecret@host:port/db")
		require.ErrorContains(t, err, "apply migrations: cannot parse `postgres://u:xxxxx@host:port/db`: ")
		require.NotContains(t, err.Error(), "topsecret")
	})

	t.Run("AContextThatIsOver", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Empty(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := migrate.New(three()).Up(ctx, db.URL)
		require.ErrorIs(t, err, context.Canceled)
		require.Empty(t, tables(t, db))
	})
}

// A role that may use the schema but did not make it needs no right to make one.
func TestUpNeedsNoRightToMakeASchemaThatExists(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	role := db.Role(t, "owner", "")
	db.Exec(t, "CREATE SCHEMA reconciler AUTHORIZATION "+role)
	applied, err := migrate.New(three()).Up(t.Context(), db.URLFor(role))
	require.NoError(t, err)
	require.Len(t, applied, 3)
}

func TestDown(t *testing.T) {
	t.Parallel()

	t.Run("TakesBackOneStep", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Empty(t)
		set := migrate.New(three())
		_, err := set.Up(t.Context(), db.URL)
		require.NoError(t, err)
		applied, err := set.Down(t.Context(), db.URL)
		require.NoError(t, err)
		require.Equal(t, []string{"3 00003_three.sql"}, names(applied))
		require.Equal(t, []string{"one", "two"}, tables(t, db))
	})

	t.Run("TakesBackDownToAVersion", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Empty(t)
		set := migrate.New(three())
		_, err := set.Up(t.Context(), db.URL)
		require.NoError(t, err)
		applied, err := set.DownTo(t.Context(), db.URL, 1)
		require.NoError(t, err)
		require.Equal(t, []string{"3 00003_three.sql", "2 00002_two.sql"}, names(applied))
		require.Equal(t, []string{"one"}, tables(t, db))
	})

	t.Run("HasNothingToDoWhereNothingIs", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Empty(t)
		set := migrate.New(three())
		applied, err := set.Down(t.Context(), db.URL)
		require.NoError(t, err)
		require.Empty(t, applied)
		applied, err = set.DownTo(t.Context(), db.URL, 0)
		require.NoError(t, err)
		require.Empty(t, applied)
	})

	t.Run("NamesTheMigrationThatFails", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Empty(t)
		files := three()
		files["00003_three.sql"] = file("", "SELECT 1/0;")
		set := migrate.New(files)
		_, err := set.Up(t.Context(), db.URL)
		require.NoError(t, err)
		_, err = set.Down(t.Context(), db.URL)
		require.EqualError(t, err, "take back a migration: 00003_three.sql: ERROR: division by zero (SQLSTATE 22012)")
	})
}

func TestEmbedded(t *testing.T) {
	t.Parallel()

	t.Run("GoesUpAndDownAndUpAgain", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Empty(t)
		up, err := migrate.Up(t.Context(), db.URL)
		require.NoError(t, err)
		require.NoError(t, migrate.Check(t.Context(), db.Pool))

		down, err := migrate.DownTo(t.Context(), db.URL, 0)
		require.NoError(t, err)
		require.Len(t, down, len(up))
		require.Empty(t, tables(t, db))

		again, err := migrate.Up(t.Context(), db.URL)
		require.NoError(t, err)
		require.Equal(t, names(up), names(again))
	})

	t.Run("PrintsEveryFile", func(t *testing.T) {
		t.Parallel()
		var out bytes.Buffer
		require.NoError(t, migrate.Print(&out))
		paths, err := fs.Glob(migrations.FS, "*.sql")
		require.NoError(t, err)
		require.NotEmpty(t, paths)
		var want strings.Builder
		for _, p := range paths {
			text, err := fs.ReadFile(migrations.FS, p)
			require.NoError(t, err)
			want.WriteString("-- " + path.Base(p) + "\n" + string(text) + "\n")
		}
		require.Equal(t, want.String(), out.String())
	})
}

// What package migrations tells people to do with the goose command gives the same database.
func TestPlainGooseAgrees(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	db.Exec(t, "CREATE SCHEMA reconciler")
	plain, err := sql.Open("pgx", db.URL)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, plain.Close()) })
	provider, err := goose.NewProvider(goose.DialectPostgres, plain, migrations.FS, goose.WithTableName("reconciler.goose_db_version"))
	require.NoError(t, err)
	_, err = provider.Up(t.Context())
	require.NoError(t, err)

	require.NoError(t, migrate.Check(t.Context(), db.Pool))
	applied, err := migrate.Up(t.Context(), db.URL)
	require.NoError(t, err)
	require.Empty(t, applied)
}
