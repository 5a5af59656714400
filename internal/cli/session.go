package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/database"
)

// closeTimeout bounds the goodbye to the database.
const closeTimeout = 2 * time.Second

// Need is the kind of role that a command needs, as reconciler.grant() calls it.
type Need string

// The kinds of role.
const (
	Viewer   Need = "viewer"
	Operator Need = "operator"
	Definer  Need = "definer"
	Runtime  Need = "runtime"
	Owner    Need = "owner" // no kind: whoever owns the schema
)

// SessionOptions say what a command's session is for.
type SessionOptions struct {
	Command  string            // such as "status"; shown in pg_stat_activity
	Need     Need              // for the hint when a right is missing
	Settings map[string]string // on top of the pinned ones
	Notices  io.Writer         // where PostgreSQL's NOTICEs and WARNINGs go; nil: nowhere
}

// Session is one command's connection. Its errors are *Failure.
type Session struct {
	conn *pgx.Conn
	need Need
}

// Open connects to the database of a configuration, on direct_url: a command may need a session's settings.
func Open(ctx context.Context, cfg *config.Config, opts SessionOptions) (*Session, error) {
	conn, err := database.Connect(ctx, cfg.DirectURL.Reveal(), database.Options{
		Name: "reconciler " + opts.Command, Settings: opts.Settings, OnNotice: noticePrinter(opts.Notices),
	})
	if err != nil {
		return nil, databaseFailure(err)
	}
	return &Session{conn: conn, need: opts.Need}, nil
}

func noticePrinter(w io.Writer) func(*pgconn.Notice) {
	if w == nil {
		return nil
	}
	return func(n *pgconn.Notice) {
		word := "note"
		if n.SeverityUnlocalized == "WARNING" {
			word = "warning"
		}
		_, _ = fmt.Fprintf(w, "%s: %s\n", word, CleanLines(n.Message))
		if n.Hint != "" {
			_, _ = fmt.Fprintf(w, "hint: %s\n", CleanLines(n.Hint))
		}
	}
}

// Close ends the session.
func (s *Session) Close() {
	ctx, cancel := context.WithTimeoutCause(context.Background(), closeTimeout, errors.New("closing the session took too long"))
	defer cancel()
	_ = s.conn.Close(ctx) // Everything was read and committed before.
}

// Pooled says whether the connection leads through a pooler: a statement may find another session than the one before.
func (s *Session) Pooled() bool { return database.Pooled(s.conn.Config()) }

// NeedsSession refuses a database that is only reached through a pooler in transaction mode: what the command does, such
// as holding a lock, needs one session from beginning to end.
func (s *Session) NeedsSession(ctx context.Context) error {
	if !s.Pooled() {
		return nil
	}
	shared, err := database.SharesSessions(ctx, s.conn.Config())
	if err != nil {
		return databaseFailure(err)
	}
	if shared {
		return &Failure{
			Code: ExitDatabase, Text: "direct_url leads through a pooler in transaction mode, which cannot keep a lock",
			Hint: "let direct_url (RECONCILER_DIRECT_URL) lead to the server itself",
		}
	}
	return nil
}

// Conn returns the connection, for packages that take one. Their errors go through Fail.
func (s *Session) Conn() *pgx.Conn { return s.conn }

// Table runs a query and returns its rows. Timestamps are RFC 3339 in UTC.
func (s *Session) Table(ctx context.Context, sql string, args ...any) (*Table, error) {
	rows, err := s.conn.Query(ctx, "SELECT row_to_json(q)::text FROM ("+sql+") AS q", args...)
	if err != nil {
		return nil, s.Fail(ctx, err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Row, error) {
		var raw []byte
		if err := row.Scan(&raw); err != nil {
			return Row{}, err
		}
		return parseRow(raw)
	})
	if err != nil {
		return nil, s.Fail(ctx, err)
	}
	return &Table{Rows: all}, nil
}

// Text runs a query that gives one value and returns it as text.
func (s *Session) Text(ctx context.Context, sql string, args ...any) (string, error) {
	var text *string
	if err := s.conn.QueryRow(ctx, "SELECT ("+sql+")::text", args...).Scan(&text); err != nil {
		return "", s.Fail(ctx, err)
	}
	if text == nil {
		return "", nil
	}
	return *text, nil
}

// Exec runs a statement.
func (s *Session) Exec(ctx context.Context, sql string, args ...any) error {
	if _, err := s.conn.Exec(ctx, sql, args...); err != nil {
		return s.Fail(ctx, err)
	}
	return nil
}

// EndWithClient has the server end a long statement when this process is gone. Not every platform can: then it ends at
// its own timeout.
func (s *Session) EndWithClient(ctx context.Context) {
	if s.Pooled() {
		return // it would be set for whoever gets that session of the pooler's next
	}
	_, _ = s.conn.Exec(ctx, "SELECT set_config('client_connection_check_interval', '1s', false)")
}

// Optional is NULL for "": what was not given.
func Optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
