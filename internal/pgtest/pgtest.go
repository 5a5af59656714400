package pgtest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgreconciler/reconciler/internal/pgserver"
)

// Patience is how long tests wait for what must happen, on a machine that is slow and busy. No test sleeps through it.
const Patience = 4 * time.Minute

const (
	superuser      = pgserver.Superuser
	cleanupTimeout = time.Minute
	poolConns      = 10
)

// DB is a database that belongs to one test. After the test it is dropped, with the sessions that are left.
type DB struct {
	Name    string
	URL     string        // as superuser and owner, without TLS and password
	Pool    *pgxpool.Pool // on URL, at most 10 connections, closed at the end of the test
	Version int           // major version of the server, such as 15

	server *instance
}

// New returns a database that has every migration of db/migrations, and in which the statements of setup have run. They run once for
// all tests with the same ones.
func New(t testing.TB, setup ...string) *DB {
	t.Helper()
	return quiet.join(t).database(t, setup)
}

// Holding is New on a second shared server, for tests that keep transactions open or prepared for seconds, make giant ones
// or take snapshots for long. In the tests of the first one the ticker falls asleep, and captures begin, only when every
// transaction of the whole server has ended.
func Holding(t testing.TB, setup ...string) *DB {
	t.Helper()
	return holding.join(t).database(t, setup)
}

// Empty returns a database without the schema reconciler.
func Empty(t testing.TB) *DB {
	t.Helper()
	return create(t, quiet.join(t), "template0")
}

// Exec runs statements, several if there are no args, and fails the test if one of them fails.
func (d *DB) Exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	if _, err := d.Pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%v\nin: %s", err, sql)
	}
}

// Conn returns a connection of its own, outside the pool, closed at the end of the test.
func (d *DB) Conn(t testing.TB) *pgx.Conn {
	t.Helper()
	return connect(t, d.URL)
}

// Explaining is Conn, and tells the plan of each statement and what it came across, as EXPLAIN ANALYZE shows it: the plan
// that the session uses, prepared statements' and functions' own too.
func (d *DB) Explaining(t testing.TB, told func(plan string)) *pgx.Conn {
	t.Helper()
	conn := connect(t, d.URL, func(config *pgx.ConnConfig) {
		config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { told(n.Message + "\n") }
	})
	const explain = `LOAD 'auto_explain'; SET auto_explain.log_min_duration = 0; SET auto_explain.log_analyze = on;
		SET auto_explain.log_timing = off; SET auto_explain.log_level = notice`
	if _, err := conn.Exec(t.Context(), explain); err != nil {
		t.Fatalf("%s: %v", explain, err)
	}
	return conn
}

// ConnAs is Conn as another role.
func (d *DB) ConnAs(t testing.TB, role string) *pgx.Conn {
	t.Helper()
	return connect(t, d.URLFor(role))
}

// URLFor returns the URL for a role that can log in; it needs no password.
func (d *DB) URLFor(role string) string { return d.server.url(role, d.Name) }

// Role makes a role that can log in, with a name that begins with prefix and that no other test uses, and
// drops it at the end of the test with all it owns. options is what CREATE ROLE takes, such as "CREATEROLE".
func (d *DB) Role(t testing.TB, prefix, options string) string {
	t.Helper()
	role := pgserver.Unique(prefix + "_")
	quoted := pgx.Identifier{role}.Sanitize()
	d.Exec(t, "CREATE ROLE "+quoted+" LOGIN "+options)
	t.Cleanup(func() {
		ctx, cancel := cleanupContext(t)
		defer cancel()
		if err := d.server.admin(ctx, d.Name, "DROP OWNED BY "+quoted+" CASCADE", "DROP ROLE "+quoted); err != nil {
			t.Errorf("drop role %s: %v", role, err)
		}
	})
	return role
}

// create makes a database from a template and hands it to the test.
func create(t testing.TB, server *instance, from string) *DB {
	t.Helper()
	name := pgserver.Unique("test_")
	// template0 carries no lock that concurrent copies could trip over, and neither does ours: they allow no connections.
	statement := fmt.Sprintf("CREATE DATABASE %s TEMPLATE %s", name, from)
	if server.Version >= 15 {
		statement += " STRATEGY file_copy" // a third of the processor time of wal_log, where fsync is off
	}
	if err := server.admin(t.Context(), "postgres", statement); err != nil {
		t.Fatalf("create a database for the test: %v\n%s", err, server.log(t))
	}
	db := &DB{Name: name, URL: server.url(superuser, name), Version: server.Version, server: server}
	// Registered before the pool's, so it runs after it.
	t.Cleanup(func() { db.end(t) })
	db.Pool = pool(t, db.URL)
	return db
}

// Log returns what the server's log has about this database, at least its last lines.
func (d *DB) Log(t testing.TB) string {
	t.Helper()
	return d.server.logOf(t.Context(), d.Name)
}

// end shows why the test failed, and drops the database of a shared server in the background.
func (d *DB) end(t testing.TB) {
	t.Helper()
	ctx, cancel := cleanupContext(t)
	defer cancel()
	if t.Failed() {
		t.Logf("server log of %s:\n%s", d.Name, d.server.logOf(ctx, d.Name))
	}
	if d.server.shared { // else the data goes with the server
		drops.add(d.server, d.Name)
	}
}

func pool(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatalf("configure a pool: %v", err)
	}
	config.MaxConns = poolConns
	p, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatalf("make a pool: %v", err)
	}
	t.Cleanup(p.Close)
	return p
}

func connect(t testing.TB, url string, change ...func(*pgx.ConnConfig)) *pgx.Conn {
	t.Helper()
	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	for _, set := range change {
		set(config)
	}
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := cleanupContext(t)
		defer cancel()
		_ = conn.Close(ctx) // The test may have killed it.
	})
	return conn
}

// cleanupContext is for what runs after the test, whose own context is over by then.
func cleanupContext(t testing.TB) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(t.Context()), cleanupTimeout)
}
