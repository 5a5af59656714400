package pgtest_test

import (
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func TestDatabase(t *testing.T) {
	t.Parallel()

	t.Run("HasTheMigrations", func(t *testing.T) {
		t.Parallel()
		db := pgtest.New(t)
		require.True(t, value[bool](t, db, "SELECT to_regclass('reconciler.outbox') IS NOT NULL"))
		require.NotZero(t, value[int64](t, db, "SELECT max(version_id) FROM reconciler.goose_db_version"))
	})

	t.Run("IsWithoutThemWhenEmpty", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Empty(t)
		require.False(t, value[bool](t, db, "SELECT to_regnamespace('reconciler') IS NOT NULL"))
	})

	t.Run("IsNotSeenByOthers", func(t *testing.T) {
		t.Parallel()
		a, b := pgtest.New(t), pgtest.New(t)
		a.Exec(t, "CREATE TABLE only_here (); CREATE TABLE and_here ()")
		require.NotEqual(t, a.Name, b.Name)
		require.False(t, value[bool](t, b, "SELECT to_regclass('only_here') IS NOT NULL"))
	})

	t.Run("RunsAsConfigured", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Empty(t)
		for setting, want := range map[string]string{
			"fsync":                     "off",
			"synchronous_commit":        "on",
			"wal_level":                 "logical",
			"max_connections":           "1000",
			"max_prepared_transactions": "100",
			"shared_buffers":            "256MB",
			"TimeZone":                  "UTC",
			"server_encoding":           "UTF8",
		} {
			require.Equal(t, want, value[string](t, db, "SELECT current_setting('"+setting+"')"), setting)
		}
		require.Equal(t, db.Version, value[int](t, db, "SELECT current_setting('server_version_num')::int / 10000"))
		// Linguistic order, not bytes: "a" before "B".
		require.True(t, value[bool](t, db, "SELECT 'a' < 'B'"))
	})
}

func TestRole(t *testing.T) {
	t.Parallel()
	outer := pgtest.Empty(t)
	var role string
	t.Run("LogsInAndOwns", func(t *testing.T) {
		db := pgtest.Empty(t)
		role = db.Role(t, "writer", "NOINHERIT")
		require.True(t, strings.HasPrefix(role, "writer_"), role)
		db.Exec(t, "GRANT CREATE ON SCHEMA public TO "+role)
		conn := db.ConnAs(t, role)
		_, err := conn.Exec(t.Context(), "CREATE TABLE mine ()")
		require.NoError(t, err)
		var user string
		require.NoError(t, conn.QueryRow(t.Context(), "SELECT current_user").Scan(&user))
		require.Equal(t, role, user)
	})
	require.False(t, value[bool](t, outer, "SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1)", role))
}

func TestServer(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t)
	db := server.New(t)
	db.Exec(t, "CREATE TABLE kept AS SELECT 1 AS n")
	url := server.URL(db.Name)
	require.Equal(t, db.URL, url)
	require.Equal(t, db.Version, server.Version())

	t.Run("HasAnIdentityOfItsOwn", func(t *testing.T) {
		const identity = "SELECT system_identifier FROM pg_control_system()"
		require.NotEqual(t, value[int64](t, db, identity), value[int64](t, pgtest.Holding(t), identity))
	})

	t.Run("EndsSessionsOnRestart", func(t *testing.T) {
		conn := db.Conn(t)
		server.Restart(t)
		require.Error(t, conn.Ping(t.Context()))
		require.Equal(t, 1, value[int](t, db, "SELECT n FROM kept"))
	})

	t.Run("RecoversFromACrash", func(t *testing.T) {
		server.StopImmediate(t)
		_, err := pgx.Connect(t.Context(), url)
		require.Error(t, err)
		server.Start(t)
		require.Equal(t, 1, value[int](t, db, "SELECT n FROM kept"))
	})

	t.Run("MayBeLeftStopped", func(*testing.T) {
		server.StopImmediate(t)
	})
}

// value reads one value on a connection of its own, for a pool may hold dead ones.
func value[T any](t *testing.T, db *pgtest.DB, sql string, args ...any) T {
	t.Helper()
	rows, err := db.Conn(t).Query(t.Context(), sql, args...)
	require.NoError(t, err)
	v, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[T])
	require.NoError(t, err)
	return v
}

func TestDataIsPutBack(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t)
	db := server.Empty(t)
	db.Exec(t, "CREATE TABLE things AS SELECT 1 AS id")
	server.Stop(t)
	server.KeepData(t)
	server.Start(t)
	conn := db.Conn(t)
	_, err := conn.Exec(t.Context(), "CREATE TABLE lost (); INSERT INTO things VALUES (2)")
	require.NoError(t, err)
	server.Stop(t)
	server.PutBackData(t)
	server.Start(t)
	var things, lost int
	require.NoError(t, db.Conn(t).QueryRow(t.Context(), "SELECT (SELECT sum(id) FROM things), (SELECT count(*) FROM pg_tables WHERE tablename = 'lost')").Scan(&things, &lost))
	require.Equal(t, []int{1, 0}, []int{things, lost})
}

func TestStatementsOfATemplateRunOnce(t *testing.T) {
	t.Parallel()
	const made = "CREATE TABLE made AS SELECT pg_backend_pid() AS by"
	first, second := pgtest.New(t, made), pgtest.New(t, made)
	const by = "SELECT by FROM made"
	require.Equal(t, value[int](t, first, by), value[int](t, second, by))
	require.Zero(t, value[int](t, pgtest.New(t), "SELECT count(*)::int FROM pg_tables WHERE tablename = 'made'"))
	require.NotZero(t, value[int](t, first, "SELECT count(*)::int FROM reconciler.settings"))
}
