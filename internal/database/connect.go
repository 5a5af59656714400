package database

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"sync/atomic"
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
	// pingTimeout is for how long such a connection may think about it.
	pingTimeout = 2 * time.Second
	// connLife is when a pooled connection is replaced, so that memory that its server process has gathered is given back. No
	// failover is noticed by it: see Fleet.
	connLife, connLifeJitter = time.Hour, 10 * time.Minute
	// statementTimeout bounds every statement but those that set their own: nothing of ours runs for minutes.
	statementTimeout = 60 * time.Second
	// idleInTransactionTimeout ends the transaction of a process that froze inside one, and with it its locks.
	idleInTransactionTimeout = 10 * time.Second
	// minConns is the least number of connections of a pool: a session that waits for a lock stops nothing else.
	minConns = 2
	// SessionTimeout ends the session of a process that froze while it held a session's advisory lock. Its owner
	// says something more often than that.
	SessionTimeout = 15 * time.Second
)

// Options choose what differs between the connections of one process.
type Options struct {
	Name     string            // application_name; shown in pg_stat_activity
	MaxConns int32             // for pools; 0 means 4; the URL's pool_max_conns lowers it
	Settings map[string]string // on top of the pinned ones
	Simple   bool              // through a pooler in transaction mode: no prepared statements, no settings but those it keeps
	// Fleet is what the connections belong to. Nil: they are by themselves.
	Fleet *Fleet
	// OnNotice is told what PostgreSQL says beside results (NOTICE, WARNING). Nil: nobody is.
	OnNotice func(*pgconn.Notice)
}

// Session returns the settings of a session that holds advisory locks: the server ends it when it goes silent.
func Session() map[string]string {
	return map[string]string{"idle_session_timeout": fmt.Sprintf("%dms", SessionTimeout.Milliseconds())}
}

// rowsLock is how long a read of users' rows waits for a lock: a table that somebody has locked keeps only its own objects
// waiting. It is shorter than deadlock_timeout, so that no transaction of a user is ended because we are in its way.
const rowsLock = 500 * time.Millisecond

// RowsSession are the settings of a session that reads users' rows and nothing else.
func RowsSession() map[string]string {
	return map[string]string{"lock_timeout": fmt.Sprintf("%dms", rowsLock.Milliseconds())}
}

// WalkSession are the settings of a session that reads the outbox all the time. Its plans are kept, and each part of the
// outbox is empty again and again: a plan that was made then reads the whole part when it has grown, for every tick, until
// somebody analyzes it.
func WalkSession() map[string]string {
	settings := Session()
	settings["enable_seqscan"], settings["enable_bitmapscan"] = "off", "off"
	return settings
}

// WatchSession are the settings of a session that reads streams: their tables begin empty, and nothing may be read twice because
// the planner does not know yet how much is in them. Through a pooler, Walk does the same.
func WatchSession() map[string]string {
	return map[string]string{"enable_seqscan": "off", "enable_bitmapscan": "off"}
}

// Connect opens one connection. Where the URL turns out to lead through a pooler, it goes on as with Options.Simple.
func Connect(ctx context.Context, url string, opts Options) (*pgx.Conn, error) {
	cfg, err := parse(url)
	if err != nil {
		return nil, err
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
	cfg.MaxConns = maxConns(cfg, opts)
	cfg.MaxConnIdleTime = 5 * time.Minute
	cfg.MaxConnLifetime, cfg.MaxConnLifetimeJitter = connLife, connLifeJitter
	cfg.PingTimeout = pingTimeout
	cfg.ConnConfig.Tracer = readOnlyTracer{opts.Fleet}
	cfg.AfterRelease = func(conn *pgx.Conn) bool {
		if !writable(conn) || !renewPlans(conn, planLife, planUses) {
			return false
		}
		if s := socketOf(conn.PgConn()); s != nil {
			s.resting.Store(true)
		}
		return true
	}
	// When one connection broke the others may be broken as well: those that were idle at that time are asked first.
	var broke atomic.Pointer[time.Time]
	cfg.BeforeClose = func(conn *pgx.Conn) {
		if conn.IsClosed() {
			now := time.Now()
			broke.Store(&now)
		}
	}
	cfg.ShouldPing = func(_ context.Context, idle pgxpool.ShouldPingParams) bool {
		at := broke.Load()
		return idle.IdleDuration > pingAfter || at != nil && time.Since(*at) < idle.IdleDuration
	}
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
	opts.Fleet.addPool(pool)
	return pool, nil
}

// parse reads a URL for a single connection. Its settings for pools are not sent to the server, which does not know them.
func parse(url string) (*pgx.ConnConfig, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, parseError(err)
	}
	return cfg.ConnConfig, nil
}

// maxConns is the bound of a pool: pool_max_conns of the URL lowers it, to no less than minConns.
func maxConns(cfg *pgxpool.Config, opts Options) int32 {
	most := cmp.Or(opts.MaxConns, 4)
	// What the URL does not set has a default that depends on the machine.
	if plain, err := pgx.ParseConfig(cfg.ConnString()); err == nil && plain.RuntimeParams["pool_max_conns"] != "" {
		return min(most, max(cfg.MaxConns, minConns))
	}
	return most
}

func apply(cfg *pgx.ConnConfig, opts Options) {
	cfg.ConnectTimeout = ConnectTimeout
	cfg.DialFunc = opts.Fleet.dial
	if cfg.RuntimeParams == nil {
		cfg.RuntimeParams = map[string]string{}
	}
	if opts.Name != "" {
		cfg.RuntimeParams["application_name"] = opts.Name
	}
	if opts.Simple {
		for _, name := range pooledSettings {
			cfg.RuntimeParams[name] = sessionSettings(nil)[name]
		}
	} else {
		maps.Copy(cfg.RuntimeParams, sessionSettings(opts.Settings))
	}
	// After a failover the old primary may still answer: do not settle there (SQLSTATE 25006 on every write).
	if cfg.ValidateConnect = validateSession; opts.Simple {
		cfg.DefaultQueryExecMode, cfg.ValidateConnect = pgx.QueryExecModeExec, validateLent
	}
	cfg.ValidateConnect = opts.Fleet.admitting(cfg.ValidateConnect)
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
	if refused := refusal(e.err); refused != nil {
		return fmt.Sprintf("cannot connect to %s: %v", e.Where, refused)
	}
	cause := e.err
	for next := errors.Unwrap(cause); next != nil; next = errors.Unwrap(cause) {
		cause = next
	}
	return fmt.Sprintf("cannot connect to %s: %v", e.Where, cause)
}

// Unwrap returns the cause.
func (e *UnreachableError) Unwrap() error { return e.err }
