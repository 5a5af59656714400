package bench

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgreconciler/reconciler/internal/database"
)

const (
	scratchPrefix = "reconciler_bench_"
	// createTimeout and dropTimeout are long: both wait for a checkpoint.
	createTimeout = 5 * time.Minute
	dropTimeout   = 2 * time.Minute
)

// SessionSettings are those of the session that Run is given: it holds the lock that says that the run is alive, idle for
// minutes, and a machine that vanished must not hold it for hours.
func SessionSettings() map[string]string {
	return map[string]string{
		"statement_timeout": "0", "idle_session_timeout": "0",
		"tcp_keepalives_idle": "10", "tcp_keepalives_interval": "5", "tcp_keepalives_count": "3",
	}
}

// scratch is a database that belongs to one run.
type scratch struct {
	admin *pgx.Conn // in the user's database; holds the lock
	home  string    // URL of the user's database
	name  string
	key   int64 // of the lock
	url   string
}

// newScratch makes the database. Whatever it returns, drop is to be called.
func newScratch(ctx context.Context, admin *pgx.Conn, home string) (*scratch, error) {
	var random [8]byte
	if _, err := rand.Read(random[:]); err != nil {
		return nil, fmt.Errorf("name the scratch database: %w", err)
	}
	digits := binary.BigEndian.Uint64(random[:])
	s := &scratch{admin: admin, home: home, name: fmt.Sprintf("%s%016x", scratchPrefix, digits), key: int64(digits)}
	var err error
	if s.url, err = withDatabase(home, s.name); err != nil {
		return nil, err
	}
	// Not to be cut short: the server would go on, and have the database when drop has found none.
	create, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), createTimeout, errors.New("CREATE DATABASE took too long"))
	defer cancel()
	if _, err := admin.Exec(create, "SELECT pg_advisory_lock($1)", s.key); err != nil {
		return nil, fmt.Errorf("lock the name of the scratch database: %w", err)
	}
	place, err := tablespace(create, admin)
	if err != nil {
		return nil, err
	}
	if _, err := admin.Exec(create, "CREATE DATABASE "+s.name+" TEMPLATE template0"+place); err != nil {
		return s, fmt.Errorf("create the scratch database: %w", err)
	}
	return s, ctx.Err()
}

// tablespace is the clause that puts the scratch database on the disk of the user's. "" where that is the usual one,
// for naming it would need a right.
func tablespace(ctx context.Context, admin *pgx.Conn) (clause string, err error) {
	err = admin.QueryRow(ctx, `SELECT coalesce((SELECT format(' TABLESPACE %I', t.spcname) FROM pg_database d JOIN pg_tablespace t ON t.oid = d.dattablespace
		WHERE d.datname = current_database() AND d.dattablespace <> (SELECT dattablespace FROM pg_database WHERE datname = 'template0')), '')`).Scan(&clause)
	if err != nil {
		return "", fmt.Errorf("look which disk the database is on: %w", err)
	}
	return clause, nil
}

// drop removes the database, whoever is connected, also when ctx is over.
func (s *scratch) drop(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), dropTimeout, errors.New("DROP DATABASE took too long"))
	defer cancel()
	if err := s.tryDrop(ctx); err != nil {
		return &LeftError{Name: s.name, err: err}
	}
	return nil
}

// LeftError says that a scratch database could not be dropped.
type LeftError struct {
	Name string
	err  error
}

func (e *LeftError) Error() string {
	return fmt.Sprintf("the scratch database %s was not dropped; the next run does it: %v", e.Name, e.err)
}

// Unwrap returns the cause.
func (e *LeftError) Unwrap() error { return e.err }

func (s *scratch) tryDrop(ctx context.Context) error {
	err := dropDatabase(ctx, s.admin, s.name)
	if err == nil {
		_, err = s.admin.Exec(ctx, "SELECT pg_advisory_unlock($1)", s.key)
		return err
	}
	if !s.admin.IsClosed() {
		return err
	}
	// The session was lost meanwhile, and the lock with it.
	conn, err := database.Connect(ctx, s.home, database.Options{Name: "reconciler bench", Settings: SessionSettings()})
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return dropDatabase(ctx, conn, s.name)
}

func dropDatabase(ctx context.Context, conn *pgx.Conn, name string) error {
	_, err := conn.Exec(ctx, "DROP DATABASE IF EXISTS "+pgx.Identifier{name}.Sanitize()+" WITH (FORCE)")
	return err
}

// errURL says nothing of the URL, which may hold a password.
var errURL = errors.New("the database URL cannot be read: expected postgres://user@host:port/database or key=value pairs")

// withDatabase is a database URL, or key=value pairs, that lead to another database of the same server. The password goes
// along: a line of ~/.pgpass may give it for the user's database only.
func withDatabase(raw, name string) (string, error) {
	cfg, err := pgx.ParseConfig(raw)
	if err != nil {
		return "", errURL
	}
	if !strings.HasPrefix(raw, "postgres://") && !strings.HasPrefix(raw, "postgresql://") {
		if cfg.Password != "" {
			raw += " password='" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(cfg.Password) + "'"
		}
		return raw + " dbname=" + name, nil // the last one counts
	}
	at, err := url.Parse(raw)
	if err != nil {
		return "", errURL
	}
	at.Path, at.RawPath = "/"+name, ""
	moved := []string{"dbname", "database"} // parameters whose values stand elsewhere now
	if cfg.Password != "" {
		at.User = url.UserPassword(cfg.User, cfg.Password)
		moved = append(moved, "user", "password")
	}
	// Query and Encode would turn a space into a plus, which stays one for some.
	at.RawQuery = strings.Join(slices.DeleteFunc(strings.Split(at.RawQuery, "&"), func(parameter string) bool {
		key, _, _ := strings.Cut(parameter, "=")
		return slices.Contains(moved, key)
	}), "&")
	return at.String(), nil
}
