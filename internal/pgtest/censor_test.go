package pgtest

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// What is refused fails in the server, however it is sent, and works again when it is not.
func TestCensorRefusesStatements(t *testing.T) {
	t.Parallel()
	db := New(t)
	c := NewCensor(t, db.URL)
	conn, err := pgx.Connect(t.Context(), c.URL)
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
		c.Refuse("/* a */", "/* b */")
		require.Error(t, ask(mode, "SELECT $1::int /* a */"))
		require.Error(t, ask(mode, "SELECT $1::int /* b */"))
		require.Error(t, ask(mode, "SELECT $1::int /* a */"), "the second time, too")
		require.NoError(t, ask(mode, "SELECT $1::int /* c */"))
		c.Refuse()
		require.NoError(t, ask(mode, "SELECT $1::int /* a */"))
		require.NoError(t, ask(mode, "SELECT $1::int /* b */"))
	}
}
