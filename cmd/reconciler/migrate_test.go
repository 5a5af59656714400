package main

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/db/migrations"
	"github.com/pgreconciler/reconciler/internal/pgtest"
)

func migrationNames(t *testing.T) []string {
	t.Helper()
	names, err := fs.Glob(migrations.FS, "*.sql")
	require.NoError(t, err)
	return names
}

func TestMigrateUpAndDown(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	p := newPlace(t, "RECONCILER_DATABASE_URL="+db.URL)
	names := migrationNames(t)
	list := func(did string) string {
		var b strings.Builder
		for _, name := range names {
			fmt.Fprintf(&b, "%s %s (1ms)\n", did, name)
		}
		return b.String()
	}
	untimed := func(r result) result {
		r.stdout = regexp.MustCompile(`\(\d[\d.]*m?s\)`).ReplaceAllString(r.stdout, "(1ms)")
		return r
	}

	r := p.run(t, "migrate", "status")
	require.Equal(t, 1, r.code, "everything is pending")
	require.Equal(t, len(names), strings.Count(r.stdout, "pending               0"))
	require.Equal(t, result{stdout: list("applied")}, untimed(p.run(t, "migrate", "up")))
	require.Equal(t, result{stdout: "the schema is up to date\n"}, p.run(t, "migrate", "up"))
	require.Equal(t, result{stdout: "[]\n"}, p.run(t, "migrate", "up", "-o", "json"))
	r = p.run(t, "migrate", "status")
	require.Zero(t, r.code)
	require.Len(t, regexp.MustCompile(`(?m)^20\d\d-\d\d-\d\d \d\d:\d\d:\d\dZ  \d{5}_\w+\.sql$`).FindAllString(r.stdout, -1), len(names))

	last := names[len(names)-1]
	require.Equal(t, result{stdout: "took back " + last + " (1ms)\n"}, untimed(p.run(t, "migrate", "down")))
	r = p.run(t, "migrate", "status", "-o", "json")
	require.Equal(t, 1, r.code)
	var states []map[string]any
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &states))
	require.Equal(t, map[string]any{"version": float64(len(names)), "name": last, "applied_at": nil}, states[len(names)-1])
	require.IsType(t, "", states[0]["applied_at"])

	r = p.run(t, "migrate", "down", "--to", "0", "-o", "json")
	require.Zero(t, r.code, r.stderr)
	var applied []map[string]any
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &applied))
	require.Len(t, applied, len(names)-1)
	require.Equal(t, names[0], applied[len(applied)-1]["name"])
	require.Equal(t, result{stdout: "there was nothing to take back\n"}, p.run(t, "migrate", "down"))
	require.Equal(t, 2, p.run(t, "migrate", "down", "--to", "-1").code)
}

func TestMigratePrintIsWhatGooseReads(t *testing.T) {
	t.Parallel()
	r := newPlace(t).run(t, "migrate", "print")
	require.Zero(t, r.code)
	for _, name := range migrationNames(t) {
		text, err := fs.ReadFile(migrations.FS, name)
		require.NoError(t, err)
		require.Contains(t, r.stdout, "-- "+name+"\n"+string(text)+"\n")
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	r := newPlace(t).run(t, "version", "-o", "json")
	require.Zero(t, r.code)
	var v map[string]any
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &v))
	require.Equal(t, "devel", v["version"])
	require.InDelta(t, len(migrationNames(t)), v["schema_version"], 0)
	require.Len(t, v, 4)
}
