package database

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

func TestPlansAreRenewed(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, `CREATE TABLE apps (id int PRIMARY KEY) WITH (autovacuum_enabled = off); INSERT INTO apps VALUES (1); ANALYZE apps`)
	conn := db.Conn(t)
	_, err := conn.Exec(t.Context(), `PREPARE look (int) AS SELECT FROM public.apps WHERE id = $1; SET plan_cache_mode = force_generic_plan`)
	require.NoError(t, err)
	plan := func() string {
		rows, err := conn.Query(t.Context(), `EXPLAIN (COSTS OFF) EXECUTE look (1)`, pgx.QueryExecModeSimpleProtocol)
		require.NoError(t, err)
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		return strings.Join(lines, "\n")
	}
	require.Contains(t, plan(), "Seq Scan on apps")
	require.True(t, renewPlans(conn, time.Hour, 1), "the first release")
	db.Exec(t, `INSERT INTO apps SELECT generate_series(2, 20000)`)
	require.Contains(t, plan(), "Index")

	db.Exec(t, `TRUNCATE apps; INSERT INTO apps VALUES (1); ANALYZE apps`)
	require.Contains(t, plan(), "Seq Scan on apps")
	db.Exec(t, `INSERT INTO apps SELECT generate_series(2, 20000)`)
	require.True(t, renewPlans(conn, time.Hour, 1))
	require.Contains(t, plan(), "Seq Scan on apps", "plans are younger than an hour")
	require.True(t, renewPlans(conn, 0, 3))
	require.Contains(t, plan(), "Seq Scan on apps", "it was used twice since")
	require.True(t, renewPlans(conn, 0, 3))
	require.Contains(t, plan(), "Index")
	require.NoError(t, conn.Close(t.Context()))
	require.False(t, renewPlans(conn, 0, 0), "a connection that is gone")
}
