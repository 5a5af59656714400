package pgtest

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgreconciler/reconciler/internal/pgserver"
)

// instance is a server as this process uses it.
type instance struct {
	*pgserver.Server

	templates sync.Map // names of those that are there
	shared    bool     // other tests use it too
}

// settings are the same for every engine. Durability is off; everything that changes behaviour is as in production.
func settings() []string {
	return []string{
		"fsync=off",
		"full_page_writes=off",
		"max_connections=1000",
		"max_prepared_transactions=100",
		"wal_level=logical",
		"shared_buffers=256MB",
		"max_wal_size=4GB",
		"checkpoint_timeout=1h",
		"timezone=UTC",
		"log_timezone=UTC",
		"log_line_prefix=%m [%p] %d ",
		"log_checkpoints=off",
		"jit=off", // compiles for longer than the statements of the tests run
	}
}

func (i *instance) url(role, database string) string { return i.URL(url.User(role), database) }

// log returns the end of the server's log, or why there is none.
func (i *instance) log(t testing.TB) string {
	t.Helper()
	ctx, cancel := cleanupContext(t)
	defer cancel()
	return i.LastLines(ctx, func(string) bool { return true })
}

// logOf returns the end of what the server logged about one database.
func (i *instance) logOf(ctx context.Context, database string) string {
	mentions := false
	return i.LastLines(ctx, func(line string) bool {
		if !strings.HasPrefix(line, "\t") { // Continuation lines belong to the line before.
			mentions = strings.Contains(line, "] "+database+" ")
		}
		return mentions
	})
}

// admin runs statements one by one as superuser, on a connection of their own.
func (i *instance) admin(ctx context.Context, database string, statements ...string) error {
	return pgserver.Exec(ctx, i.url(superuser, database), statements...)
}

// version returns the version as the server shows it, such as 15.4 (Debian 15.4-1).
func (i *instance) version(ctx context.Context) (string, error) {
	conn, err := pgx.Connect(ctx, i.url(superuser, "postgres"))
	if err != nil {
		return "", err
	}
	return conn.PgConn().ParameterStatus("server_version"), conn.Close(ctx)
}

// start starts a server that has been made, and waits until it takes connections.
func (i *instance) start(ctx context.Context) error {
	if err := i.Engine().Start(ctx); err != nil {
		return err
	}
	return i.awaitReady(ctx)
}

// awaitReady waits until the server takes connections, has ended, or ctx ends.
func (i *instance) awaitReady(ctx context.Context) error {
	return i.AwaitReady(ctx, i.url(superuser, "postgres"))
}

// dropDatabase drops a database with everything in it that DROP DATABASE ... (FORCE) balks at.
func (i *instance) dropDatabase(ctx context.Context, name string) error {
	drop := "DROP DATABASE IF EXISTS " + name + " WITH (FORCE)"
	err := i.admin(ctx, "postgres", drop)
	if err == nil {
		return nil
	}
	if err := i.release(ctx, name); err != nil {
		return err
	}
	return i.admin(ctx, "postgres", drop)
}

// release rolls back the prepared transactions of a database and drops its replication slots and subscriptions.
func (i *instance) release(ctx context.Context, name string) (err error) {
	conn, err := pgx.Connect(ctx, i.url(superuser, name))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	// The rows have its error.
	rows, _ := conn.Query(ctx, `
		SELECT format('ROLLBACK PREPARED %L', gid) FROM pg_prepared_xacts WHERE database = current_database()
		UNION ALL
		SELECT s FROM pg_subscription, LATERAL (VALUES
			(format('ALTER SUBSCRIPTION %I DISABLE', subname)),
			(format('ALTER SUBSCRIPTION %I SET (slot_name = NONE)', subname)),
			(format('DROP SUBSCRIPTION %I', subname))) v (s)
		WHERE subdbid = (SELECT oid FROM pg_database WHERE datname = current_database())
		UNION ALL
		SELECT format('SELECT pg_drop_replication_slot(%L)', slot_name) FROM pg_replication_slots WHERE database = current_database()`)
	statements, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	return i.admin(ctx, name, statements...)
}
