//go:build long

package prometheus_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/examples/internal/exampletest"
	"github.com/pgreconciler/reconciler/internal/pgtest"
)

func TestPrometheusScrapesWhatTheTableSays(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	db := exampletest.New(t, database.URL, example(t), nil)
	dir := t.TempDir()
	// Prometheus watches a directory that is there when it starts.
	require.NoError(t, os.Mkdir(filepath.Join(dir, "scrape_target"), 0o755))
	prometheus := startServer(t, dir)
	startReconciler(t, database.URL, dir)

	relabelled, disabled, deleted, untouched, added := startEndpoint(t), startEndpoint(t), startEndpoint(t), startEndpoint(t), startEndpoint(t)
	const insert = "INSERT INTO prometheus.scrape_targets (job, address, labels) VALUES ($1, $2, $3)"
	for _, e := range []*endpoint{relabelled, disabled, deleted, untouched} {
		db.Exec(t, insert, "api", e.address, `{"env": "test"}`)
	}
	// Files are read as soon as they are there, whatever the time of the commit.
	await(t, set("1.json", "2.json", "3.json", "4.json"), prometheus.files)
	want := map[string]scraped{}
	for _, e := range []*endpoint{relabelled, disabled, deleted, untouched} {
		want[e.address] = scraped{Labels: "env:test job:api", Health: "up"}
	}
	await(t, want, prometheus.targets)

	db.Exec(t, insert, "web", added.address, `{"env": "test", "team": "shop"}`)
	db.Exec(t, `UPDATE prometheus.scrape_targets SET job = 'api-2', labels = '{"env": "live"}' WHERE address = $1`, relabelled.address)
	db.Exec(t, "UPDATE prometheus.scrape_targets SET enabled = false WHERE address = $1", disabled.address)
	db.Exec(t, "DELETE FROM prometheus.scrape_targets WHERE address = $1", deleted.address)
	want = map[string]scraped{
		added.address:      {Labels: "env:test job:web team:shop", Health: "up"},
		relabelled.address: {Labels: "env:live job:api-2", Health: "up"},
		untouched.address:  {Labels: "env:test job:api", Health: "up"},
	}
	await(t, want, prometheus.targets)

	// What it says is what it does.
	gone := []int64{disabled.scrapes.Load(), deleted.scrapes.Load()}
	for _, e := range []*endpoint{added, relabelled, untouched} {
		e.scrapedMore(t, 3)
	}
	require.Equal(t, gone[0], disabled.scrapes.Load())
	require.Equal(t, gone[1], deleted.scrapes.Load())

	db.Exec(t, "UPDATE prometheus.scrape_targets SET enabled = true WHERE address = $1", disabled.address)
	want[disabled.address] = scraped{Labels: "env:test job:api", Health: "up"}
	await(t, want, prometheus.targets)
	disabled.scrapedMore(t, 3)
}

// startReconciler migrates by, and runs, the command itself, with the example's config.
func startReconciler(t *testing.T, databaseURL, dir string) {
	t.Helper()
	config, err := example(t).Config(databaseURL, dir)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "reconciler.yaml")
	require.NoError(t, os.WriteFile(file, []byte(config), 0o600))
	binary, err := exampletest.Build(t.Context(), t.TempDir())
	require.NoError(t, err)
	env := []string{"RECONCILER_LISTEN=off"}
	exampletest.Run(t, env, binary, "migrate", "up", "-c", file)
	exampletest.Start(t, env, binary, "run", "-c", file)
	exampletest.Run(t, env, binary, "wait", "--timeout", patience.String(), "-c", file)
}

func set(names ...string) map[string]bool {
	members := map[string]bool{}
	for _, name := range names {
		members[name] = true
	}
	return members
}
