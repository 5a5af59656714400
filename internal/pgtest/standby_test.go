package pgtest_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

func TestStandbyIsPromotedAndTheOldPrimaryComesBack(t *testing.T) {
	t.Parallel()
	primary := pgtest.Server(t)
	db := primary.Empty(t)
	db.Exec(t, "CREATE TABLE x (n int); INSERT INTO x VALUES (1)")
	standby := primary.Standby(t)
	standby.AwaitReplay(t, primary)
	require.Equal(t, int64(1), count(t, standby.URL(db.Name)))
	_, err := connect(t, standby.URL(db.Name)).Exec(t.Context(), "INSERT INTO x VALUES (2)")
	require.ErrorContains(t, err, "read-only")

	standby.Detach(t)
	db.Exec(t, "INSERT INTO x VALUES (3)")
	primary.StopImmediate(t)
	standby.Promote(t)
	_, err = connect(t, standby.URL(db.Name)).Exec(t.Context(), "INSERT INTO x VALUES (4), (5)")
	require.NoError(t, err)
	primary.Start(t)
	require.Equal(t, int64(2), count(t, primary.URL(db.Name)), "it knows nothing of the promotion")
	require.Equal(t, int64(3), count(t, standby.URL(db.Name)), "one was lost")
	require.Less(t, primary.Timeline(t), standby.Timeline(t))
	require.Equal(t, int64(2), count(t, pgtest.URLs(db.Name, primary, standby)))
	primary.StopImmediate(t)
	require.Equal(t, int64(3), count(t, pgtest.URLs(db.Name, primary, standby)))
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(t.Context()) }) // may have been cut
	return conn
}

func count(t *testing.T, url string) (n int64) {
	t.Helper()
	require.NoError(t, connect(t, url).QueryRow(t.Context(), "SELECT count(*) FROM x").Scan(&n))
	return n
}
