package database

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// ConnectTimeout bounds one attempt to connect.
	ConnectTimeout = 10 * time.Second
	// pingAfter is for how long a pooled connection may have been idle and is still taken to be alive. It is longer than the
	// pauses between the heartbeats, and between the ticks, of a process that has nothing to do: a ping would double them.
	pingAfter = 6 * time.Second
	// statementTimeout bounds every statement but those that set their own: nothing of ours runs for minutes.
	statementTimeout = 60 * time.Second
	// idleInTransactionTimeout ends the transaction of a process that froze inside one, and with it its locks.
	idleInTransactionTimeout = 10 * time.Second
	// SessionTimeout ends the session of a process that froze while it held a session's advisory lock. Its owner
	// says something more often than that.
	SessionTimeout = 15 * time.Second
)

// settings pins what decides the text form of values, which specs and keys are made of.
var settings = map[string]string{
	"TimeZone":                      "UTC",
	"DateStyle":                     "ISO, MDY",
	"IntervalStyle":                 "iso_8601",
	"extra_float_digits":            "1",
	"bytea_output":                  "hex",
	"client_encoding":               "UTF8",
	"search_path":                   "pg_catalog, pg_temp",
	"default_transaction_isolation": "read committed",
	"statement_timeout":             fmt.Sprintf("%dms", statementTimeout.Milliseconds()),
	"lock_timeout":                  "10s",
	// Our statements take milliseconds; compiling one on the strength of a wrong estimate takes tens of them.
	"jit":                                 "off",
	"idle_in_transaction_session_timeout": fmt.Sprintf("%dms", idleInTransactionTimeout.Milliseconds()),
}

// pooledSettings are those that a pooler in transaction mode keeps for each client; it refuses others.
var pooledSettings = []string{"TimeZone", "DateStyle", "client_encoding"}

// Options choose what differs between the connections of one process.
type Options struct {
	Name     string            // application_name; shown in pg_stat_activity
	MaxConns int32             // for pools; 0 means 4
	Settings map[string]string // on top of the pinned ones
	Simple   bool              // through a pooler in transaction mode: no prepared statements, no settings but those it keeps
	// OnNotice is told what PostgreSQL says beside results (NOTICE, WARNING). Nil: nobody is.
	OnNotice func(*pgconn.Notice)
}

// Session returns the settings of a session that holds advisory locks: the server ends it when it goes silent.
func Session() map[string]string {
	return map[string]string{"idle_session_timeout": fmt.Sprintf("%dms", SessionTimeout.Milliseconds())}
}

// WalkSession are the settings of a session that reads the outbox all the time. Its plans are kept, and each part of the
// outbox is empty again and again: a plan that was made then reads the whole part when it has grown, for every tick, until
// somebody analyzes it.
func WalkSession() map[string]string {
	settings := Session()
	settings["enable_seqscan"], settings["enable_bitmapscan"] = "off", "off"
	return settings
}

// Connect opens one connection. Where the URL turns out to lead through a pooler, it goes on as with Options.Simple.
func Connect(ctx context.Context, url string, opts Options) (*pgx.Conn, error) {
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, parseError(err)
	}
	apply(cfg, opts)
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if isPooler(err) {
		opts.Simple = true
		return Connect(ctx, url, opts)
	}
	if err != nil {
		return nil, connectError(cfg, err)
	}
	return conn, nil
}

// NewPool opens a pool and checks that it can connect. Where the URL turns out to lead through a pooler, it goes on as
// with Options.Simple.
func NewPool(ctx context.Context, url string, opts Options) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, parseError(err)
	}
	apply(cfg.ConnConfig, opts)
	cfg.MaxConns = 4
	if opts.MaxConns > 0 {
		cfg.MaxConns = opts.MaxConns
	}
	cfg.MaxConnIdleTime = 5 * time.Minute
	cfg.ConnConfig.Tracer = readOnlyTracer{}
	cfg.AfterRelease = func(conn *pgx.Conn) bool { return writable(conn) && renewPlans(conn, planLife, planUses) }
	cfg.ShouldPing = func(_ context.Context, idle pgxpool.ShouldPingParams) bool { return idle.IdleDuration > pingAfter }
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, connectError(cfg.ConnConfig, err)
	}
	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		if isPooler(err) {
			opts.Simple = true
			return NewPool(ctx, url, opts)
		}
		return nil, connectError(cfg.ConnConfig, err)
	}
	return pool, nil
}

func apply(cfg *pgx.ConnConfig, opts Options) {
	cfg.ConnectTimeout = ConnectTimeout
	if cfg.RuntimeParams == nil {
		cfg.RuntimeParams = map[string]string{}
	}
	if opts.Name != "" {
		cfg.RuntimeParams["application_name"] = opts.Name
	}
	if opts.Simple {
		for _, name := range pooledSettings {
			cfg.RuntimeParams[name] = settings[name]
		}
	} else {
		maps.Copy(cfg.RuntimeParams, settings)
		maps.Copy(cfg.RuntimeParams, opts.Settings)
	}
	// After a failover the old primary may still answer: do not settle there (SQLSTATE 25006 on every write).
	cfg.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	if opts.Simple {
		cfg.DefaultQueryExecMode = pgx.QueryExecModeExec
	} else {
		cfg.ValidateConnect = validateSession
	}
	if opts.OnNotice != nil {
		cfg.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { opts.OnNotice(n) }
	}
}

// parseError hides the URL, which pgx quotes, for it may hold a password.
func parseError(err error) error {
	if _, ok := errors.AsType[*pgconn.ParseConfigError](err); ok {
		return errors.New("the database URL cannot be read: expected postgres://user@host:port/database or key=value pairs")
	}
	return err
}

// connectError names server and database, never the password, and what may be the cause.
func connectError(cfg *pgx.ConnConfig, err error) error {
	where := fmt.Sprintf("database %q at %s:%d as user %q", cfg.Database, cfg.Host, cfg.Port, cfg.User)
	return &UnreachableError{Where: where, err: err}
}

// UnreachableError says that no session could be had.
type UnreachableError struct {
	Where string // database, host, port and user
	err   error
}

func (e *UnreachableError) Error() string {
	if pgErr, ok := errors.AsType[*pgconn.PgError](e.err); ok {
		return fmt.Sprintf("cannot connect to %s: %s", e.Where, pgErr.Message)
	}
	cause := e.err
	for next := errors.Unwrap(cause); next != nil; next = errors.Unwrap(cause) {
		cause = next
	}
	return fmt.Sprintf("cannot connect to %s: %v", e.Where, cause)
}

// Unwrap returns the cause.
func (e *UnreachableError) Unwrap() error { return e.err }
