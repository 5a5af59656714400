package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/migrate"
)

// Fail turns an error of a query into what a person should read: what PostgreSQL or one of our functions said in a
// sentence, the command that makes a missing schema, or the SQL that gives a missing right.
func (s *Session) Fail(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if failure, ok := errors.AsType[*Failure](err); ok {
		return failure
	}
	switch database.Code(err) {
	case "3F000", "42P01", "42883", "42703": // schema, relation, function or column
		if failure := s.schemaFailure(ctx); failure != nil {
			return failure
		}
	case "42501":
		return s.rightFailure(ctx, err)
	}
	return databaseFailure(err)
}

// schemaFailure says what is wrong with the schema as a whole; nil when it fits.
func (s *Session) schemaFailure(ctx context.Context) *Failure {
	if s.conn.PgConn().TxStatus() == 'E' { // a failed transaction answers nothing any more
		if _, err := s.conn.Exec(ctx, "ROLLBACK"); err != nil {
			return nil
		}
	}
	err := migrate.Check(ctx, s.conn)
	if err == nil || database.IsUnavailable(err) {
		return nil
	}
	return schemaError(err)
}

func schemaError(err error) *Failure {
	return &Failure{Code: ExitDatabase, Text: err.Error(), Err: err}
}

func (s *Session) rightFailure(ctx context.Context, err error) error {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return databaseFailure(err)
	}
	role := s.conn.Config().User
	failure := &Failure{Code: ExitDatabase, Text: fmt.Sprintf("role %q lacks a right: %s", role, pgErr.Message), Hint: pgErr.Hint, Err: err}
	if strings.HasPrefix(pgErr.Message, "role ") { // one of our own sentences
		failure.Text = pgErr.Message
	}
	if failure.Hint == "" {
		failure.Hint = s.rightHint(ctx)
	}
	return failure
}

// GrantHint says how the session's role is given the rights that the command needs.
func (s *Session) GrantHint() string {
	return fmt.Sprintf("as the owner of schema reconciler: SELECT reconciler.grant(%s, %s);", QuoteLiteral(s.conn.Config().User), QuoteLiteral(string(s.need)))
}

func (s *Session) rightHint(ctx context.Context) string {
	if s.need != Owner {
		return s.GrantHint()
	}
	var owner *string
	var create string
	err := s.conn.QueryRow(ctx, `SELECT (SELECT nspowner::regrole::text FROM pg_namespace WHERE nspname = 'reconciler'),
		format('GRANT CREATE ON DATABASE %I TO %I;', current_database(), current_user)`).Scan(&owner, &create)
	switch {
	case err != nil:
		return ""
	case owner != nil:
		return fmt.Sprintf("the schema belongs to role %s: run this as that role", *owner)
	}
	return "as the owner of the database: " + create
}

// databaseFailure is Fail without a session to ask.
func databaseFailure(err error) *Failure {
	if failure, ok := errors.AsType[*Failure](err); ok {
		return failure
	}
	pending := new(migrate.PendingError)
	newer := new(migrate.NewerSchemaError)
	encoding := new(migrate.EncodingError)
	if errors.As(err, &pending) || errors.As(err, &newer) || errors.As(err, &encoding) || errors.Is(err, migrate.ErrUnrecorded) {
		return schemaError(err)
	}
	pgErr, isPg := errors.AsType[*pgconn.PgError](err)
	switch {
	case database.IsUnavailable(err):
		return &Failure{Code: ExitDatabase, Text: unavailableText(err), Err: err}
	case isPg:
		return &Failure{Code: codeOf(pgErr.Code), Text: pgErr.Message, Hint: pgErr.Hint, Err: err}
	}
	return &Failure{Code: ExitDiffers, Text: err.Error(), Err: err}
}

func unavailableText(err error) string {
	if unreachable, ok := errors.AsType[*database.UnreachableError](err); ok {
		return fmt.Sprintf("cannot connect to %s: %s", unreachable.Where, reason(unreachable.Unwrap()))
	}
	if database.IsReadOnly(err) {
		return "the database is read-only: it is a standby, or was demoted to one"
	}
	return "the connection to the database was lost: " + reason(err)
}

// reason is what PostgreSQL said, or the innermost cause: pgx wraps it in a page of addresses, once for each attempt.
func reason(err error) string {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pgErr.Message
	}
	for {
		switch wrapped := err.(type) { //nolint:errorlint // it is taken apart here
		case interface{ Unwrap() error }:
			if inner := wrapped.Unwrap(); inner != nil {
				err = inner
				continue
			}
		case interface{ Unwrap() []error }:
			if inner := wrapped.Unwrap(); len(inner) > 0 {
				err = inner[0]
				continue
			}
		}
		return err.Error()
	}
}

// codeOf says whether PostgreSQL refused what it was told (wrong names, values, expressions, states), or failed over it.
func codeOf(sqlstate string) int {
	switch {
	case sqlstate == "55P03": // a lock was not available in time
		return ExitDiffers
	case strings.HasPrefix(sqlstate, "22"), strings.HasPrefix(sqlstate, "42"), strings.HasPrefix(sqlstate, "55"),
		strings.HasPrefix(sqlstate, "P0"), strings.HasPrefix(sqlstate, "0A"), strings.HasPrefix(sqlstate, "23"):
		return ExitUsage
	}
	return ExitDiffers
}
