package postgres_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/postgres"
	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// What is wrong with the table as a whole is one fact about the target. The check that would close its circuit
// has to agree.
func TestWhatConcernsTheWholeTableIsUnreachable(t *testing.T) {
	t.Parallel()

	const table = `CREATE TABLE reconciled_objects (target text, resource text, key text, spec jsonb, revision bigint, term bigint,
		updated_at timestamptz, PRIMARY KEY (target, resource, key))`
	for name, c := range map[string]struct {
		prepare, url string
		text         string
	}{
		"NoTable": {
			prepare: `SELECT 1`,
			text:    `relation "reconciled_objects" does not exist (SQLSTATE 42P01): create it, or set options.create to true`,
		},
		"NoColumn": {
			prepare: table + `; ALTER TABLE reconciled_objects DROP term`,
			text:    `column "term" of relation "reconciled_objects" does not exist (SQLSTATE 42703): options.columns maps the names`,
		},
		"NoKey": {
			prepare: table + `; ALTER TABLE reconciled_objects DROP CONSTRAINT reconciled_objects_pkey`,
			text: `there is no unique or exclusion constraint matching the ON CONFLICT specification (SQLSTATE 42P10): ` +
				`the table needs a primary key on target, resource and key`,
		},
		"NoRight": {
			prepare: table, url: "role",
			text: `permission denied for table reconciled_objects (SQLSTATE 42501): grant select, insert, update and delete on the table`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			db := pgtest.Empty(t)
			db.Exec(t, c.prepare)
			url := db.URL
			if c.url == "role" {
				url = db.URLFor(db.Role(t, "poor", ""))
			}
			d := open(t, url, nil)
			obj := object("web", `1`, 1, 1)
			outcomes := append(d.(driver.BatchApplier).ApplyBatch(t.Context(), []driver.Object{obj, object("b", `1`, 1, 1)}), d.Apply(t.Context(), obj))
			for _, o := range outcomes {
				require.Equal(t, driver.VerdictUnreachable, o.Verdict)
				require.EqualError(t, o.Err, c.text)
			}
			require.EqualError(t, d.(driver.Checker).Check(t.Context()), c.text)
		})
	}
}

func TestAMissingTableIsNoEmptyTarget(t *testing.T) {
	t.Parallel()

	d := open(t, pgtest.Empty(t).URL, nil)
	const text = `relation "reconciled_objects" does not exist (SQLSTATE 42P01): create it, or set options.create to true`
	o := d.Delete(t.Context(), object("web", `1`, 1, 1).Ref) // I7: nobody knows that the row is absent
	require.Equal(t, driver.VerdictUnreachable, o.Verdict)
	require.EqualError(t, o.Err, text)
	var last error
	for _, err := range d.(driver.Lister).List(t.Context(), []string{"apps"}) {
		last = err
	}
	require.EqualError(t, last, `list "apps": `+text)
}

// C67.
func TestAStandbyIsUnreachable(t *testing.T) {
	t.Parallel()

	db, d := made(t, nil)
	db.Exec(t, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', current_database()); END $$`)
	standby := open(t, db.URL, nil)
	o := standby.Apply(t.Context(), object("web", `1`, 1, 1))
	require.Equal(t, driver.VerdictUnreachable, o.Verdict)
	require.EqualError(t, o.Err, `cannot execute INSERT in a read-only transaction (SQLSTATE 25006): is it a standby?`)
	require.EqualError(t, standby.(driver.Checker).Check(t.Context()), "the database is read-only: is it a standby?")

	// Sessions from before do not know; those that met it are dropped, so that the next one finds the primary.
	require.NoError(t, d.(driver.Checker).Check(t.Context()))
	db.Exec(t, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = off', current_database()); END $$`)
	require.Equal(t, driver.Done(), standby.Apply(t.Context(), object("web", `1`, 1, 1)))
	require.NoError(t, standby.(driver.Checker).Check(t.Context()))
}

// C65 for a target: it comes back without anybody's help.
func TestAServerThatRestartsIsUnreachableUntilItIsBack(t *testing.T) {
	t.Parallel()

	server := pgtest.Server(t)
	db := server.Empty(t)
	d := open(t, db.URL, driver.Options{"create": true})
	obj := object("web", `1`, 1, 1)
	require.Equal(t, driver.Done(), d.Apply(t.Context(), obj))
	server.StopImmediate(t)
	for range 3 {
		require.Equal(t, driver.VerdictUnreachable, d.Apply(t.Context(), obj).Verdict)
		require.Equal(t, driver.VerdictUnreachable, d.Delete(t.Context(), obj.Ref).Verdict)
		require.Equal(t, []driver.Verdict{driver.VerdictUnreachable, driver.VerdictUnreachable},
			verdicts(d.(driver.BatchApplier).ApplyBatch(t.Context(), []driver.Object{obj, object("b", `1`, 1, 1)})))
		require.Error(t, d.(driver.Checker).Check(t.Context()))
	}
	server.Start(t)
	require.NoError(t, d.(driver.Checker).Check(t.Context()))
	require.Equal(t, driver.Done(), d.Apply(t.Context(), obj))
}

// C64.
func TestOpenReportsEveryProblem(t *testing.T) {
	t.Parallel()

	vars := map[string]string{"GOOD": "postgres://user@host/db", "BAD": "postgres://user:" + password + "@host:port/db", "UNCLEAR": "postgres://user:p@" + password + "/x#1@host/db"}
	for name, c := range map[string]struct {
		opts driver.Options
		want driver.Problems
	}{
		"Nothing": {driver.Options{}, driver.Problems{{
			Path: "options.url_env", Text: "is required: the name of the environment variable that holds it (or options.url_file)",
		}}},
		"NotAURL": {driver.Options{"url_env": "BAD"}, driver.Problems{{
			Path: "options.url_env",
			Text: "holds a host that cannot be read: expected a name or an address, and perhaps a port in digits, after the @ that ends the password",
		}}},
		"F136": {driver.Options{"url_env": "UNCLEAR"}, driver.Problems{{
			Path: "options.url_env",
			Text: "holds an @, /, ? or # that is not percent-encoded, so that the password cannot be told from the host: write @ as %40, / as %2F, ? as %3F and # as %23, or keep the password in a file: postgres://user@host:5432/database?passfile=PATH",
		}}},
		"Everything": {driver.Options{
			"url_env": "NOT_SET", "table": "a.b.c", "columns": map[string]any{"spec": "", "keys": "k", "term": "revision"},
			"create": 1, "max_connections": 1000, "url": "postgres://user:" + password + "@host/db",
		}, driver.Problems{
			{Path: "options.url_env", Text: "the environment variable NOT_SET is not set"},
			{Path: "options.table", Text: "must be a table, or a schema and a table with a dot between"},
			{Path: "options.columns.keys", Text: "unknown column; known are target, resource, key, spec, revision, term, updated_at"},
			{Path: "options.columns.spec", Text: "holds an empty name"},
			{Path: "options.columns", Text: "revision and term have one column"},
			{Path: "options.create", Text: "must be true or false, not a number"},
			{Path: "options.max_connections", Text: "must be between 1 and 100"},
			{Path: "options.url", Text: "unknown option; known here: columns, create, max_connections, table, url_env, url_file"},
		}},
		"Names": {driver.Options{"url_env": "GOOD", "table": "a.", "columns": map[string]any{"key": "a\x00"}}, driver.Problems{
			{Path: "options.table", Text: "holds an empty name"},
			{Path: "options.columns.key", Text: "holds a NUL character"},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d, err := postgres.Kind().Open("test", c.opts, driver.Env{Getenv: func(name string) string { return vars[name] }})
			require.Nil(t, d)
			require.Equal(t, c.want, err)
		})
	}
}
