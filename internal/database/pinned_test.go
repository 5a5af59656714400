package database_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/pgtest"
	"github.com/pgreconciler/reconciler/internal/store"
)

// pools returns a pool as for a pooler and one as without, in a database whose settings are odd.
func pools(t *testing.T) (simple, full *pgxpool.Pool) {
	t.Helper()
	db := pgtest.New(t)
	for _, setting := range []string{"IntervalStyle = 'sql_standard'", "bytea_output = 'escape'", "extra_float_digits = -5", "jit = on"} {
		db.Exec(t, "ALTER DATABASE "+db.Name+" SET "+setting)
	}
	open := func(simple bool) *pgxpool.Pool {
		pool, err := database.NewPool(t.Context(), db.URL, database.Options{Simple: simple, MaxConns: 1})
		require.NoError(t, err)
		t.Cleanup(pool.Close)
		return pool
	}
	return open(true), open(false)
}

const textsSQL = `SELECT to_jsonb(v)::text FROM (SELECT $1::int AS n, '1 day 02:03:04'::interval AS span, '\xff00'::bytea AS raw, 0.1::float8 + 0.2 AS ratio) AS v`

const texts = `{"n": 1, "raw": "\\xff00", "span": "P1DT2H3M4S", "ratio": 0.30000000000000004}`

func TestTextOfRowsIsTheSameThroughAPooler(t *testing.T) {
	t.Parallel()
	simple, full := pools(t)
	for name, pool := range map[string]*pgxpool.Pool{"Pooled": simple, "Direct": full} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rows := database.Rows(pool)
			var have string
			require.NoError(t, rows.QueryRow(t.Context(), textsSQL, 1).Scan(&have))
			require.Equal(t, texts, have)
			result, err := rows.Query(t.Context(), textsSQL, 1)
			require.NoError(t, err)
			all, err := pgx.CollectRows(result, pgx.RowTo[string])
			require.NoError(t, err)
			require.Equal(t, []string{texts}, all)
			_, err = rows.Exec(t.Context(), `CREATE TEMP TABLE made AS `+`SELECT '1 day'::interval::text AS span`)
			require.NoError(t, err)
			require.NoError(t, rows.QueryRow(t.Context(), `SELECT span FROM made`).Scan(&have))
			require.Equal(t, "P1D", have)
		})
	}
	// Nothing of it stays in a session that the pooler lends to others.
	var style string
	require.NoError(t, simple.QueryRow(t.Context(), "SELECT current_setting('IntervalStyle')").Scan(&style))
	require.Equal(t, "sql_standard", style)
}

// F93: a pooler keeps no settings. PostgreSQL must not compile reads of rows and of the outbox through it: that took a second for each page.
func TestF93_ReadsThroughAPoolerAreNotCompiled(t *testing.T) {
	t.Parallel()
	simple, full := pools(t)
	for name, pool := range map[string]*pgxpool.Pool{"Pooled": simple, "Direct": full} {
		for way, db := range map[string]store.DBTX{"Rows": database.Rows(pool), "Walk": database.Walk(pool)} {
			t.Run(name+way, func(t *testing.T) {
				t.Parallel()
				var jit string
				require.NoError(t, db.QueryRow(t.Context(), "SELECT current_setting('jit')").Scan(&jit))
				require.Equal(t, "off", jit)
			})
		}
	}
}

// A pool of one connection would hang if an error kept it.
func TestErrorsGiveTheConnectionBack(t *testing.T) {
	t.Parallel()
	simple, _ := pools(t)
	rows := database.Rows(simple)
	const divided = `division by zero`
	for range 3 {
		var n int
		require.ErrorContains(t, rows.QueryRow(t.Context(), `SELECT 1 / $1::int`, 0).Scan(&n), divided)
		require.ErrorIs(t, rows.QueryRow(t.Context(), `SELECT 1 WHERE false`).Scan(&n), pgx.ErrNoRows)
		require.ErrorContains(t, rows.QueryRow(t.Context(), `SELECT 'a'`).Scan(&n), "cannot scan")
		_, err := rows.Exec(t.Context(), `SELECT 1 / $1::int`, 0)
		require.ErrorContains(t, err, divided)
		result, err := rows.Query(t.Context(), `SELECT 1 / i FROM generate_series($1::int, 0, -1) AS i`, 3)
		require.NoError(t, err)
		_, err = pgx.CollectRows(result, pgx.RowTo[int])
		require.ErrorContains(t, err, divided)
		result, err = rows.Query(t.Context(), `SELECT nonsense`)
		if err == nil {
			result.Close()
			err = result.Err()
		}
		require.ErrorContains(t, err, `column "nonsense" does not exist`)
	}
	var n int
	require.NoError(t, rows.QueryRow(t.Context(), `SELECT 1`).Scan(&n))
	simple.Close()
	require.EqualError(t, rows.QueryRow(t.Context(), `SELECT 1`).Scan(&n), "closed pool")
	require.Nil(t, database.Rows(nil))
}
