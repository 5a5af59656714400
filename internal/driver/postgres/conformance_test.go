package postgres_test

import (
	"maps"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/drivertest"
	"github.com/pgreconciler/reconciler/internal/driver/fixtures"
	"github.com/pgreconciler/reconciler/internal/driver/postgres"
)

// password is in the URL although the test's server asks for none.
const password = "pa55word"

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
				return fixtures.Postgres(t, c.prepare, c.table, c.opts)
			})
		})
	}
}
