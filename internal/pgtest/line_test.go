package pgtest

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// A statement that is to fail fails in the server, by each protocol, until it may work again.
func TestStatementsFailOnALine(t *testing.T) {
	t.Parallel()
	db := New(t)
	l := NewLine(t, db.URL)
	conn, err := pgx.Connect(t.Context(), l.URL)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close(t.Context())) })
	ask := func(mode pgx.QueryExecMode, sql string) error {
		n := 0
		err := conn.QueryRow(t.Context(), sql, mode, 7).Scan(&n)
		if err == nil {
			require.Equal(t, 7, n)
		}
		return err
	}
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		require.NoError(t, ask(mode, "SELECT $1::int /* a */"))
		l.Fail("/* a */", "/* b */")
		require.Error(t, ask(mode, "SELECT $1::int /* a */"))
		require.Error(t, ask(mode, "SELECT $1::int /* b */"))
		require.Error(t, ask(mode, "SELECT $1::int /* a */"), "the second time, too")
		require.NoError(t, ask(mode, "SELECT $1::int /* c */"))
		l.Fail()
		require.NoError(t, ask(mode, "SELECT $1::int /* a */"))
		require.NoError(t, ask(mode, "SELECT $1::int /* b */"))
	}
}
