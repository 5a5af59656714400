package migrate_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/migrate"
	"github.com/pgreconciler/reconciler/internal/pgtest"
)

func TestStatus(t *testing.T) {
	t.Parallel()

	t.Run("ChangesNothing", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Empty(t)
		states, err := migrate.New(three()).Status(t.Context(), db.URL)
		require.NoError(t, err)
		require.Equal(t, []migrate.State{
			{Version: 1, Name: "00001_one.sql"},
			{Version: 2, Name: "00002_two.sql"},
			{Version: 3, Name: "00003_three.sql"},
		}, states)
		require.True(t, states[0].Pending())
		var exists bool
		require.NoError(t, db.Pool.QueryRow(t.Context(), "SELECT to_regnamespace('reconciler') IS NOT NULL").Scan(&exists))
		require.False(t, exists)
	})

	t.Run("SaysWhenEachWasApplied", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Empty(t)
		set := migrate.New(three())
		_, err := set.Up(t.Context(), db.URL)
		require.NoError(t, err)
		_, err = set.Down(t.Context(), db.URL)
		require.NoError(t, err)
		states, err := set.Status(t.Context(), db.URL)
		require.NoError(t, err)
		require.Len(t, states, 3)
		require.WithinDuration(t, time.Now(), states[0].AppliedAt, time.Minute)
		require.WithinDuration(t, time.Now(), states[1].AppliedAt, time.Minute)
		require.True(t, states[2].Pending())
	})

	t.Run("ListsAlsoWhenTheSchemaIsNewer", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Empty(t)
		_, err := migrate.New(three()).Up(t.Context(), db.URL)
		require.NoError(t, err)
		older := three()
		delete(older, "00003_three.sql")
		states, err := migrate.New(older).Status(t.Context(), db.URL)
		var newer *migrate.NewerSchemaError
		require.ErrorAs(t, err, &newer)
		require.Len(t, states, 2)
		require.False(t, states[1].Pending())
	})
}

// A URL may have settings for pools, which the server does not know.
func TestUpTakesAURLWithSettingsForPools(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	_, err := migrate.New(three()).Up(t.Context(), db.URL+"&pool_max_conns=3")
	require.NoError(t, err)
}

func TestCheck(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	set := migrate.New(three())

	require.EqualError(t, set.Check(t.Context(), db.Pool), "the database has no schema reconciler yet: run `reconciler migrate up`")

	_, err := set.Up(t.Context(), db.URL)
	require.NoError(t, err)
	require.NoError(t, set.Check(t.Context(), db.Conn(t)))

	_, err = set.Down(t.Context(), db.URL)
	require.NoError(t, err)
	require.EqualError(t, set.Check(t.Context(), db.Pool), "the database has schema version 2, this binary needs 3: run `reconciler migrate up`")

	// C54
	older := three()
	delete(older, "00002_two.sql")
	delete(older, "00003_three.sql")
	var newer *migrate.NewerSchemaError
	require.ErrorAs(t, migrate.New(older).Check(t.Context(), db.Pool), &newer)
	have, want, err := migrate.New(older).Version(t.Context(), db.Pool)
	require.ErrorAs(t, err, &newer)
	require.Equal(t, []int64{2, 1}, []int64{have, want})
}

func TestVersionNamesTheCauseWhenTheSchemaMayNotBeRead(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	_, err := migrate.New(three()).Up(t.Context(), db.URL)
	require.NoError(t, err)
	conn := db.ConnAs(t, db.Role(t, "stranger", ""))
	_, _, err = migrate.New(three()).Version(t.Context(), conn)
	require.EqualError(t, err, "read the schema version (has the role been granted its rights?): ERROR: permission denied for schema reconciler (SQLSTATE 42501)")
}

func TestVersionWorksInsideATransaction(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	_, err := migrate.New(three()).Up(t.Context(), db.URL)
	require.NoError(t, err)
	require.NoError(t, pgx.BeginTxFunc(t.Context(), db.Pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		return migrate.New(three()).Check(t.Context(), tx)
	}))
}

// In another encoding one key that has no form in UTF8 would stop everything, and one reason that has none in the
// database's would never be recorded.
func TestF18_DatabasesThatAreNotUTF8AreRefused(t *testing.T) {
	t.Parallel()
	for _, encoding := range []string{"SQL_ASCII", "LATIN1", "WIN1252"} {
		t.Run(encoding, func(t *testing.T) {
			t.Parallel()
			db := pgtest.Empty(t)
			name, provider := db.Name+"_other", ""
			require.NoError(t, db.Pool.QueryRow(t.Context(), `SELECT CASE WHEN current_setting('server_version_num')::int >= 150000 THEN 'LOCALE_PROVIDER libc' ELSE '' END`).Scan(&provider))
			db.Exec(t, `CREATE DATABASE `+name+` ENCODING '`+encoding+`' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0 `+provider)
			defer func() { db.Exec(t, `DROP DATABASE `+name+` WITH (FORCE)`) }()
			url := strings.Replace(db.URL, db.Name, name, 1)
			sentence := `the database has encoding ` + encoding + `, and only UTF8 can be used: dump it and load it into one made with CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0`
			_, err := migrate.Up(t.Context(), url)
			require.EqualError(t, err, "apply migrations: "+sentence)
			conn, err := pgx.Connect(t.Context(), url)
			require.NoError(t, err)
			defer func() { require.NoError(t, conn.Close(context.WithoutCancel(t.Context()))) }()
			var schema *string
			require.NoError(t, conn.QueryRow(t.Context(), `SELECT to_regnamespace('reconciler')::text`).Scan(&schema))
			require.Nil(t, schema)
			// One that was loaded into it is not run.
			_, err = conn.Exec(t.Context(), `CREATE SCHEMA reconciler; CREATE TABLE reconciler.goose_db_version (id int, version_id bigint, is_applied boolean, tstamp timestamp); INSERT INTO reconciler.goose_db_version VALUES (1, 3, true)`)
			require.NoError(t, err)
			require.EqualError(t, migrate.New(three()).Check(t.Context(), conn), sentence)
		})
	}
}

func TestPrintReportsAWriterThatFails(t *testing.T) {
	t.Parallel()
	full := errors.New("disk full")
	err := migrate.New(three()).Print(writerFunc(func([]byte) (int, error) { return 0, full }))
	require.ErrorIs(t, err, full)
	require.EqualError(t, err, "print migration 00001_one.sql: disk full")
}

func TestSetWithoutMigrationsIsRefused(t *testing.T) {
	t.Parallel()
	require.EqualError(t, migrate.New(fstest.MapFS{}).Print(new(bytes.Buffer)), "list migrations: no migrations found")
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
