package postgres_test

import (
	"errors"
	"maps"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/drivertest"
	"github.com/pgreconciler/reconciler/internal/driver/postgres"
	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// password is in the URL although the test's server asks for none.
const password = "pa55word"

func withPassword(url string) string {
	return strings.Replace(url, "postgres@", "postgres:"+password+"@", 1)
}

// open opens the driver on a URL. The test closes it before its database is dropped.
func open(t *testing.T, url string, opts driver.Options) driver.Driver {
	t.Helper()
	all := driver.Options{"url_env": "TARGET_URL"}
	maps.Copy(all, opts)
	d, err := postgres.Kind().Open("test", all, driver.Env{Getenv: func(string) string { return url }})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close(t.Context())) })
	return d
}

// oddTable has names that only quoting saves, in a schema of its own.
const oddTable = `
CREATE SCHEMA "Odd ""schema""";
CREATE TABLE "Odd ""schema"""."select; drop" (
	"user" text, "Kind" text, "key" text, "select" jsonb, "r e v" bigint, "{term}" bigint, "when" timestamptz,
	PRIMARY KEY ("user", "Kind", "key"));`

func TestConformance(t *testing.T) {
	t.Parallel()

	for name, c := range map[string]struct {
		prepare, table string
		opts           driver.Options
	}{
		"MakesItsTable": {table: `"reconciled_objects"`, opts: driver.Options{"create": true}},
		"UsesAnyTable": {
			prepare: oddTable, table: `"Odd ""schema"""."select; drop"`,
			opts: driver.Options{"table": `Odd "schema".select; drop`, "columns": map[string]any{
				"target": "user", "resource": "Kind", "spec": "select", "revision": "r e v", "term": "{term}", "updated_at": "when",
			}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			drivertest.Exercise(t, func(t *testing.T) drivertest.Fixture {
				return fixture(t, c.prepare, c.table, c.opts)
			})
		})
	}
}

func fixture(t *testing.T, prepare, table string, opts driver.Options) drivertest.Fixture {
	db := pgtest.Empty(t)
	// By position, whatever the columns are called.
	names := `SELECT t.* FROM ` + table + ` AS t (target, resource, key, spec, revision, term, updated_at)`
	if prepare != "" {
		db.Exec(t, prepare)
	}
	db.Exec(t, `CREATE TABLE bystander AS SELECT 1 AS n`)
	return drivertest.Fixture{
		Driver: open(t, withPassword(db.URL), opts), Target: "test", Secrets: []string{password},
		Read: func(t *testing.T, resource, key string) (spec string, ok bool) {
			if !storable(resource) || !storable(key) {
				return "", false
			}
			err := db.Pool.QueryRow(t.Context(),
				`SELECT o.spec::text FROM (`+names+`) AS o WHERE o.target = 'test' AND o.resource = $1 AND o.key = $2`, resource, key).Scan(&spec)
			if errors.Is(err, pgx.ErrNoRows) || noTable(err) {
				return "", false
			}
			require.NoError(t, err)
			return spec, true
		},
		Count: func(t *testing.T) (count int) {
			err := db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM `+table).Scan(&count)
			if noTable(err) {
				return 0
			}
			require.NoError(t, err)
			return count
		},
		Refuses: func(name string) bool { return !storable(name) },
		Intact: func(t *testing.T) {
			var count int
			require.NoError(t, db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM bystander`).Scan(&count))
			require.Equal(t, 1, count)
		},
	}
}

func storable(name string) bool { return utf8.ValidString(name) && !strings.ContainsRune(name, 0) }

func noTable(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Code == "42P01"
}
