package pgtest

import (
	"context"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgserver"
)

func TestTemplateIsMadeOnceForEachContent(t *testing.T) {
	t.Parallel()
	server := quiet.join(t)
	files := func(sql string) fstest.MapFS {
		return fstest.MapFS{"00001_one.sql": {Data: []byte("-- +goose Up\n" + sql + ";\n-- +goose Down\n")}}
	}
	// No other test has it: a template of an earlier run would prove nothing.
	unique := pgserver.Unique("t_")
	one := files("CREATE TABLE " + unique + " ()")
	names := make(chan string)
	for range 4 {
		go func() {
			fresh := &instance{Server: server.Server}
			name, err := fresh.template(context.Background(), one, nil)
			if err != nil {
				name = err.Error()
			}
			names <- name
		}()
	}
	first := <-names
	for range 3 {
		require.Equal(t, first, <-names)
	}
	t.Cleanup(func() {
		require.NoError(t, server.admin(context.Background(), "postgres", "DROP DATABASE "+first))
	})
	require.Regexp(t, `^template_[0-9a-f]{16}$`, first)
	db := create(t, server, first)
	db.Exec(t, "TABLE "+unique)

	other, err := templateName(files("CREATE TABLE other ()"), nil)
	require.NoError(t, err)
	require.NotEqual(t, first, other)
}

func TestDropDatabaseReleasesWhatHoldsIt(t *testing.T) {
	t.Parallel()
	server := Server(t) // a slot waits for every open transaction of its server
	db := server.New(t)
	db.Exec(t, "CREATE TABLE x (n int)")
	db.Exec(t, "SELECT pg_create_logical_replication_slot('slot', 'pgoutput')")
	_, err := db.Conn(t).Exec(t.Context(), "BEGIN; INSERT INTO x VALUES (1)")
	require.NoError(t, err)
	db.Exec(t, "BEGIN; INSERT INTO x VALUES (2); PREPARE TRANSACTION 'left over'")
	db.Exec(t, "CREATE SUBSCRIPTION sub CONNECTION 'host=nowhere.invalid' PUBLICATION p WITH (connect = false)")
	require.NoError(t, server.instance.dropDatabase(t.Context(), db.Name))
	require.ErrorContains(t, server.instance.admin(t.Context(), db.Name, "SELECT 1"), "does not exist")
}

func TestLogShowsOneDatabaseAndTheBeginningOfStatements(t *testing.T) {
	t.Parallel()
	server := quiet.join(t)
	db, other := Empty(t), Empty(t)
	long := "SELECT 1/0" + strings.Repeat("\n, 1", 30)
	_, err := db.Conn(t).Exec(t.Context(), long)
	require.ErrorContains(t, err, "division by zero")
	_, err = other.Conn(t).Exec(t.Context(), "SELECT 'not this'::int")
	require.Error(t, err)

	require.Eventually(t, func() bool { // The log is written by another process.
		return strings.Count(server.logOf(t.Context(), db.Name), "\n") == 1+8
	}, cleanupTimeout, 20*time.Millisecond)
	text := server.logOf(t.Context(), db.Name)
	require.Contains(t, text, "] "+db.Name+" ERROR:  division by zero\n")
	require.NotContains(t, text, "not this")
}
