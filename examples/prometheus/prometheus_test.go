package prometheus_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/examples"
	"github.com/pgreconciler/reconciler/examples/internal/exampletest"
	"github.com/pgreconciler/reconciler/internal/pgtest"
)

const (
	// promised is how long after a commit Prometheus may still not scrape what the table says.
	promised = time.Second
	// before is how long before Prometheus hands over what it has read (see handOver) the changes are committed. What is
	// not in its files, read and understood by then is seen five seconds too late.
	before = 600 * time.Millisecond
)

func example(t *testing.T) examples.Example {
	t.Helper()
	e, err := examples.Find("prometheus")
	require.NoError(t, err)
	return e
}

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
	await(t, time.Now().Add(promised), set("1.json", "2.json", "3.json", "4.json"), prometheus.files)
	want := map[string]scraped{}
	for _, e := range []*endpoint{relabelled, disabled, deleted, untouched} {
		want[e.address] = scraped{Labels: "env:test job:api", Health: "up"}
	}
	await(t, time.Now().Add(2*handOver), want, prometheus.targets)
	handedOver := time.Now()

	waitUntil(t, handedOver.Add(handOver-before))
	committed := time.Now()
	db.Exec(t, insert, "web", added.address, `{"env": "test", "team": "shop"}`)
	db.Exec(t, `UPDATE prometheus.scrape_targets SET job = 'api-2', labels = '{"env": "live"}' WHERE address = $1`, relabelled.address)
	db.Exec(t, "UPDATE prometheus.scrape_targets SET enabled = false WHERE address = $1", disabled.address)
	db.Exec(t, "DELETE FROM prometheus.scrape_targets WHERE address = $1", deleted.address)
	want = map[string]scraped{
		added.address:      {Labels: "env:test job:web team:shop", Health: "up"},
		relabelled.address: {Labels: "env:live job:api-2", Health: "up"},
		untouched.address:  {Labels: "env:test job:api", Health: "up"},
	}
	await(t, committed.Add(promised), want, prometheus.targets)
	handedOver = time.Now()

	// What it says is what it does.
	gone := []int64{disabled.scrapes.Load(), deleted.scrapes.Load()}
	for _, e := range []*endpoint{added, relabelled, untouched} {
		e.scrapedMore(t, 3)
	}
	require.Equal(t, gone[0], disabled.scrapes.Load())
	require.Equal(t, gone[1], deleted.scrapes.Load())

	waitUntil(t, handedOver.Add(handOver-before))
	committed = time.Now()
	db.Exec(t, "UPDATE prometheus.scrape_targets SET enabled = true WHERE address = $1", disabled.address)
	want[disabled.address] = scraped{Labels: "env:test job:api", Health: "up"}
	await(t, committed.Add(promised), want, prometheus.targets)
	disabled.scrapedMore(t, 3)
}

// startReconciler migrates by, and runs, the command itself, with the example's config.
func startReconciler(t *testing.T, databaseURL, dir string) {
	t.Helper()
	config, err := example(t).Config(databaseURL, dir)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "reconciler.yaml")
	require.NoError(t, os.WriteFile(file, []byte(config), 0o600))
	env := []string{"RECONCILER_LISTEN=off"}
	exampletest.Run(t, env, reconcilerBinary, "migrate", "up", "-c", file)
	exampletest.Start(t, env, reconcilerBinary, "run", "-c", file)
	exampletest.Run(t, env, reconcilerBinary, "wait", "--timeout", "30s", "-c", file)
}

// waitUntil waits for a point of time that something else is known to do something at.
func waitUntil(t *testing.T, when time.Time) {
	t.Helper()
	timer := time.NewTimer(time.Until(when))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	}
}

func set(names ...string) map[string]bool {
	members := map[string]bool{}
	for _, name := range names {
		members[name] = true
	}
	return members
}

func TestMigrations(t *testing.T) {
	t.Parallel()

	t.Run("TrackWithoutAdvice", func(t *testing.T) {
		t.Parallel()
		db := exampletest.New(t, pgtest.New(t).URL, example(t), nil)
		require.Empty(t, db.Messages())
	})

	t.Run("MakeFilesOfEnabledRows", func(t *testing.T) {
		t.Parallel()
		db := exampletest.New(t, pgtest.New(t).URL, example(t), nil)
		for range 2 { // the second time adds nothing
			require.NoError(t, example(t).Fill(t.Context(), db.SQL))
		}
		db.Exec(t, "UPDATE prometheus.scrape_targets SET enabled = false WHERE job = 'prometheus'")
		require.Equal(t,
			[]string{
				`prometheus 1 false [{"labels": {"job": "prometheus"}, "targets": ["127.0.0.1:9090"]}]`,
				`prometheus 2 true [{"labels": {"job": "reconciler", "team": "platform"}, "targets": ["127.0.0.1:7433"]}]`,
			},
			exampletest.Rows[string](t, db, "SELECT concat_ws(' ', target, key, running::text, spec) FROM reconciler.desired_scrape_target ORDER BY key"))
	})

	t.Run("RefuseWhatPrometheusCouldNotRead", func(t *testing.T) {
		t.Parallel()
		db := exampletest.New(t, pgtest.New(t).URL, example(t), nil)
		for labels, constraint := range map[string]string{`{"a": 1}`: "labels", `["a"]`: "labels", `{"a": {"b": "c"}}`: "labels"} {
			_, err := db.SQL.ExecContext(t.Context(), "INSERT INTO prometheus.scrape_targets (job, address, labels) VALUES ('a', 'b:1', $1)", labels)
			require.ErrorContains(t, err, "scrape_targets_"+constraint+"_check")
		}
		_, err := db.SQL.ExecContext(t.Context(), "INSERT INTO prometheus.scrape_targets (job, address) VALUES ('a', 'http://b:1/metrics')")
		require.ErrorContains(t, err, "scrape_targets_address_check")
	})

	t.Run("LeaveNoteOut", func(t *testing.T) {
		t.Parallel()
		db := exampletest.New(t, pgtest.New(t).URL, example(t), nil)
		require.NoError(t, example(t).Fill(t.Context(), db.SQL))
		before := exampletest.Rows[int64](t, db, "SELECT count(*) FROM reconciler.outbox")
		db.Exec(t, "UPDATE prometheus.scrape_targets SET note = 'ask Kim'")
		require.Equal(t, before, exampletest.Rows[int64](t, db, "SELECT count(*) FROM reconciler.outbox"))
	})

	t.Run("GoDownAndUpAgain", func(t *testing.T) {
		t.Parallel()
		db := exampletest.New(t, pgtest.New(t).URL, example(t), nil)
		require.NoError(t, example(t).Down(t.Context(), db.SQL))
		require.Equal(t, []bool{false, false}, exampletest.Rows[bool](t, db, "VALUES (to_regnamespace('prometheus') IS NOT NULL), (to_regclass('prometheus_goose_version') IS NOT NULL)"))
		require.Empty(t, exampletest.Rows[string](t, db, "SELECT name FROM reconciler.resources"))
		require.NoError(t, example(t).Up(t.Context(), db.SQL))
		require.Equal(t, []string{"scrape_target"}, exampletest.Rows[string](t, db, "SELECT name FROM reconciler.resources"))
	})
}

func TestReadmeCanBeTyped(t *testing.T) {
	t.Parallel()
	db := exampletest.New(t, pgtest.New(t).URL, example(t), nil)
	require.NoError(t, example(t).Fill(t.Context(), db.SQL))
	blocks := exampletest.Readme(t)
	require.Len(t, blocks, 3)
	for _, block := range blocks {
		for _, statement := range block {
			result, err := db.SQL.ExecContext(t.Context(), statement)
			require.NoError(t, err, statement)
			changed, err := result.RowsAffected()
			require.NoError(t, err)
			require.Equal(t, int64(1), changed, statement)
		}
	}
}
