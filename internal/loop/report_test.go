package loop_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/loop"
	"github.com/pgreconciler/reconciler/internal/metrics"
	"github.com/pgreconciler/reconciler/internal/pgtest"
)

const instance = "00000000-0000-0000-0000-000000000001"

// reported starts a Reporter on a database that knows its process.
func reported(t *testing.T) (*loop.Monitor, *pgtest.DB) {
	t.Helper()
	db := pgtest.New(t)
	db.Exec(t, `INSERT INTO reconciler.instances (id, name, version) VALUES ('`+instance+`', 'host-1', 'v1')`)
	m := loop.New(nil, metrics.New(prometheus.NewRegistry()), "eu")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		(&loop.Reporter{Monitor: m, Pool: db.Pool, Instance: instance}).Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return m, db
}

func shows(t *testing.T, db *pgtest.DB, want ...string) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		var have []string
		err := db.Pool.QueryRow(t.Context(), `SELECT coalesce(array_agg(concat_ws(' ', process, loop, target, failures, error) ORDER BY loop), '{}') FROM reconciler.failing_loops`).Scan(&have)
		require.NoError(c, err)
		require.ElementsMatch(c, want, have)
	}, time.Minute, 100*time.Millisecond)
}

func TestWhatLastsIsShownInPsql(t *testing.T) {
	t.Parallel()
	m, db := reported(t)
	m.Loop(loop.Read, "eu").Failed(errors.New("no such table"))
	m.Loop(loop.Open, "").Failed(errors.New("no such row"))
	shows(t, db, "host-1 open 1 no such row", "host-1 read eu 1 no such table")
	m.Loop(loop.Open, "").Succeeded()
	m.Loop(loop.Read, "eu").Failed(errors.New("no such column"))
	shows(t, db, "host-1 read eu 2 no such column")
	// Another process removed this one, which then comes back.
	db.Exec(t, `DELETE FROM reconciler.instances; INSERT INTO reconciler.instances (id, name, version) VALUES ('`+instance+`', 'host-1', 'v1')`)
	shows(t, db, "host-1 read eu 2 no such column")
	m.Loop(loop.Read, "eu").Succeeded()
	shows(t, db)
}

func TestReportThatCannotBeWrittenIsAFailure(t *testing.T) {
	t.Parallel()
	m, db := reported(t)
	db.Exec(t, `ALTER TABLE reconciler.loop_failures RENAME TO gone`)
	m.Loop(loop.Read, "eu").Failed(errors.New("no such table"))
	require.Eventually(t, func() bool { return len(m.Failing(0)) == 2 }, time.Minute, 100*time.Millisecond)
	require.Equal(t, loop.Report, m.Failing(0)[0].Loop)
	db.Exec(t, `ALTER TABLE reconciler.gone RENAME TO loop_failures`)
	require.Eventually(t, func() bool { return len(m.Failing(0)) == 1 }, time.Minute, 100*time.Millisecond)
}
