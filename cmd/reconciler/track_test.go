package main

import (
	"context"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// definition is a resource as the database keeps it.
func definition(t *testing.T, db *pgtest.DB, name string) map[string]any {
	t.Helper()
	rows, err := db.Pool.Query(t.Context(), `SELECT relation::text, key_columns, target, running, spec, ignored, depends_on::text, always, protect
		FROM reconciler.resources WHERE name = $1`, name)
	require.NoError(t, err)
	found, err := pgx.CollectExactlyOneRow(rows, pgx.RowToMap)
	require.NoError(t, err)
	return found
}

func TestTrackTakesEverythingThatTheFunctionTakes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.db.Exec(t, `CREATE TABLE public."Odd, Table" ("a,b" int, "Select" text, seen timestamptz, PRIMARY KEY ("a,b", "Select"));
		CREATE TABLE public.parents (id int PRIMARY KEY, name text)`)
	args := []string{
		"track", "odd", `"Odd, Table"`, "--key", `"a,b",Select`, "--target", `CASE WHEN "a,b" > 1 THEN 'eu' END`, "--running", "seen IS NULL",
		"--spec", `jsonb_build_object('it''s', "Select")`, "--ignore", "seen", "--depends-on", `{"public.parents": {"id": "a,b"}}`, "--always",
		"--protect", `"Select" <> 'temp'`,
	}
	require.Equal(t, result{stdout: "resource odd: created\n"}, withoutNotes(w.run(t, args...)))
	require.Equal(t, result{stdout: "resource odd: unchanged\n"}, withoutNotes(w.run(t, args...)))
	require.Equal(t, map[string]any{
		"relation": `"Odd, Table"`, "key_columns": []any{"a,b", "Select"}, "target": `CASE WHEN "a,b" > 1 THEN 'eu' END`, "running": "seen IS NULL",
		"spec": `jsonb_build_object('it''s', "Select")`, "ignored": []any{"seen"}, "depends_on": `{"public.parents": {"id": "a,b"}}`, "always": true, "protect": `"Select" <> 'temp'`,
	}, definition(t, w.db, "odd"))
	require.Equal(t, result{stdout: "{\n  \"message\": \"resource odd: replaced\"\n}\n"},
		withoutNotes(w.run(t, "track", "odd", `public."Odd, Table"`, "--key", `"a,b",Select`, "--target", "NULL::text", "-o", "json")))
	require.Equal(t, "true", definition(t, w.db, "odd")["running"])
}

// withoutNotes leaves out what PostgreSQL says beside the result.
func withoutNotes(r result) result {
	r.stderr = ""
	return r
}

func TestTrackPassesOnWhatTheDatabaseAdvises(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.db.Exec(t, "CREATE TABLE public.jobs (id int PRIMARY KEY, region text)")
	require.Equal(t, result{
		stdout: "resource jobs: created\n",
		stderr: "note: a sync of resource jobs has no index to walk and scans the table for each page; create one with: CREATE INDEX CONCURRENTLY ON public.jobs (region, id);\n",
	}, w.run(t, "track", "jobs", "jobs", "--key", "id", "--target", "region"))
}

// hostile is a definition with everything that could upset goose, a quote, or a literal.
func hostile() []string {
	return []string{
		"track", "odd", `public."we;ird 'table'"`, "--key", "id", "--target", "CASE WHEN \"it's\" = 'a;' -- a comment;\n THEN 'eu'\n\n;END", "--running",
		"\"it's\" <> E'\\\\' AND \"it's\" <> '\n-- +goose Down\n'", "--spec", "jsonb_build_object('line', '\r\n', 'semicolon', ';\n', 'a\\b', 'c')", "--goose",
	}
}

// The printed migration makes what the call itself would have made.
func TestTrackGoosePrintsAMigrationThatDoesTheSame(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"Plain":      {"track", "odd", `public."we;ird 'table'"`, "--key", "id", "--target", `"it's"`, "--ignore", "seen", "--always", "--protect", "id > 0", "--goose"},
		"Hostile":    withTarget(hostile(), "CASE WHEN \"it's\" = 'a;' -- a comment;\n THEN 'eu'\n\nEND"),
		"OneComment": {"track", "odd", `public."we;ird 'table'"`, "--key", "id", "--target", "'eu;' -- x", "--depends-on", "{\n}", "--goose"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.db.Exec(t, `CREATE TABLE public."we;ird 'table'" (id int PRIMARY KEY, "it's" text NOT NULL, seen timestamptz)`)
			printed := w.run(t, args...)
			require.Zero(t, printed.code, printed.stderr)
			require.Equal(t, "0", w.value(t, "SELECT count(*)::text FROM reconciler.resources WHERE name = 'odd'"), "it was only tried")

			direct := w.run(t, args[:len(args)-1]...)
			require.Zero(t, direct.code, direct.stderr)
			want := definition(t, w.db, "odd")
			w.db.Exec(t, "SELECT reconciler.untrack('odd')")

			migrateWith(t, w.db, printed.stdout, func(p *goose.Provider) error {
				_, err := p.Up(t.Context())
				return err
			})
			require.Equal(t, want, definition(t, w.db, "odd"))
			migrateWith(t, w.db, printed.stdout, func(p *goose.Provider) error {
				_, err := p.Down(t.Context())
				return err
			})
			require.Equal(t, "0", w.value(t, "SELECT count(*)::text FROM reconciler.resources WHERE name = 'odd'"))
		})
	}
}

func withTarget(args []string, target string) []string {
	for i, arg := range args {
		if arg == "--target" {
			args[i+1] = target
		}
	}
	return args
}

func migrateWith(t *testing.T, db *pgtest.DB, migration string, fn func(*goose.Provider) error) {
	t.Helper()
	cfg, err := pgx.ParseConfig(db.URL)
	require.NoError(t, err)
	handle := stdlib.OpenDB(*cfg)
	defer handle.Close()
	provider, err := goose.NewProvider(goose.DialectPostgres, handle, fstest.MapFS{"00001_track.sql": {Data: []byte(migration)}}, goose.WithDisableGlobalRegistry(true))
	require.NoError(t, err)
	require.NoError(t, fn(provider), migration)
}

func TestTrackGooseUsesStatementBeginOnlyWhereItMust(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.run(t, "track", "jobs", "deployments", "--key", "id", "--target", "region", "--running", "running\n  AND id > 0", "--goose")
	require.Equal(t, `-- +goose Up
-- +goose StatementBegin
SELECT reconciler.track(
    resource => 'jobs',
    relation => 'deployments',
    key => ARRAY['id'],
    target => 'region',
    running => 'running
  AND id > 0'
);
-- +goose StatementEnd

-- +goose Down
SELECT reconciler.untrack('jobs');
`, r.stdout)
}

func TestTrackGooseTriesTheDefinitionWhereItCan(t *testing.T) {
	t.Parallel()
	args := []string{"track", "jobs", "deployments", "--key", "id", "--target", "regin", "--goose"}
	migration := `-- +goose Up
SELECT reconciler.track(
    resource => 'jobs',
    relation => 'deployments',
    key => ARRAY['id'],
    target => 'regin'
);

-- +goose Down
SELECT reconciler.untrack('jobs');
`
	t.Run("AndRefusesWhatDoesNotWork", func(t *testing.T) {
		t.Parallel()
		r := newWorld(t).run(t, args...)
		require.Equal(t, 2, r.code)
		require.Empty(t, r.stdout)
		require.Contains(t, r.stderr, `column "regin" does not exist`)
	})
	for name, test := range map[string]struct {
		place func(t *testing.T) *place
		note  string
	}{
		"WithoutAURL": {
			func(t *testing.T) *place { t.Helper(); return newPlace(t) },
			"note: the definition was not tried: no database_url is given\n",
		},
		"WithoutAServer": {
			func(t *testing.T) *place {
				t.Helper()
				return newPlace(t, "RECONCILER_DATABASE_URL=postgres://app@127.0.0.1:1/shop")
			},
			"note: the definition was not tried: cannot connect to database \"shop\" at 127.0.0.1:1 as user \"app\": connection refused\n",
		},
		"WithoutASchema": {
			func(t *testing.T) *place {
				t.Helper()
				return newPlace(t, "RECONCILER_DATABASE_URL="+pgtest.Empty(t).URL)
			},
			"note: the definition was not tried: the database has no schema reconciler yet: run `reconciler migrate up`\n",
		},
	} {
		t.Run("AndSaysThatItWasNotTried"+name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, result{stdout: migration, stderr: test.note}, test.place(t).run(t, args...))
		})
	}

	t.Run("ButNotWithAFaultyConfiguration", func(t *testing.T) {
		t.Parallel()
		p := newPlace(t)
		p.write(t, "reconciler.yaml", "databse_url: x\n")
		r := p.run(t, args...)
		require.Equal(t, 2, r.code)
		require.Empty(t, r.stdout)
	})
}

// A table that somebody works on is not waited for without end.
func TestTrackSaysWhoHoldsTheTable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	holder := w.db.Conn(t)
	_, err := holder.Exec(t.Context(), "BEGIN; UPDATE public.deployments SET image = 'app:2' WHERE id = 1")
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = holder.Exec(context.WithoutCancel(t.Context()), "ROLLBACK") })
	r := w.run(t, "track", "others", "public.deployments", "--key", "id", "--target", "region")
	require.Equal(t, 1, r.code, r.stderr)
	require.True(t, strings.HasPrefix(r.stderr, "reconciler: "), r.stderr)
}
