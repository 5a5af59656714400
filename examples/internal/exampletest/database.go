// Package exampletest is what the tests of the examples share.
package exampletest

import (
	"database/sql"
	"net/url"
	"slices"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/examples"
)

// Database is a database, usually with the schema of one example.
type Database struct {
	SQL *sql.DB

	mu       sync.Mutex
	messages []string // guarded by mu
}

// New puts the example's schema, without rows, into a database that has reconciler's. Its sessions get these settings.
func New(t testing.TB, databaseURL string, e examples.Example, settings map[string]string) *Database {
	t.Helper()
	db := Connect(t, databaseURL, settings)
	require.NoError(t, e.Up(t.Context(), db.SQL))
	return db
}

// Connect returns a database as it is. Its sessions get these settings.
func Connect(t testing.TB, databaseURL string, settings map[string]string) *Database {
	t.Helper()
	location, err := url.Parse(databaseURL)
	require.NoError(t, err)
	query := location.Query()
	for name, value := range settings {
		query.Set(name, value)
	}
	location.RawQuery = query.Encode()
	config, err := pgx.ParseConfig(location.String())
	require.NoError(t, err)
	db := &Database{}
	config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		db.mu.Lock()
		defer db.mu.Unlock()
		db.messages = append(db.messages, n.Severity+": "+n.Message)
	}
	db.SQL = stdlib.OpenDB(*config)
	t.Cleanup(func() { require.NoError(t, db.SQL.Close()) })
	return db
}

// Messages returns what the server has said since the last call, such as "NOTICE: ...".
func (d *Database) Messages() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	said := slices.Clone(d.messages)
	d.messages = nil
	return said
}

// Exec runs statements, several if there are no args.
func (d *Database) Exec(t testing.TB, statement string, args ...any) {
	t.Helper()
	_, err := d.SQL.ExecContext(t.Context(), statement, args...)
	require.NoError(t, err, statement)
}

// Rows returns a query's only column.
func Rows[T any](t testing.TB, d *Database, query string, args ...any) []T {
	t.Helper()
	rows, err := d.SQL.QueryContext(t.Context(), query, args...)
	require.NoError(t, err, query)
	defer func() { require.NoError(t, rows.Close()) }()
	var values []T
	for rows.Next() {
		var value T
		require.NoError(t, rows.Scan(&value), query)
		values = append(values, value)
	}
	require.NoError(t, rows.Err(), query)
	return values
}
