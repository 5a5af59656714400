package prometheus_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/examples"
	"github.com/pgreconciler/reconciler/examples/internal/exampletest"
	"github.com/pgreconciler/reconciler/internal/pgtest"
)

func example(t *testing.T) examples.Example {
	t.Helper()
	e, err := examples.Find("prometheus")
	require.NoError(t, err)
	return e
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
