package database

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/puddle/v2"
)

// Code returns the SQLSTATE of an error, or "".
func Code(err error) string {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pgErr.Code
	}
	return ""
}

// IsFenced reports whether a write was refused because another process took over (see reconciler.fence).
func IsFenced(err error) bool { return Code(err) == "RC001" }

// IsReadOnly reports whether the server is a standby, or was demoted to one.
func IsReadOnly(err error) bool { return Code(err) == "25006" }

// IsCancelled reports whether a statement was cancelled: it took longer than statement_timeout, or somebody cancelled it.
func IsCancelled(err error) bool { return Code(err) == "57014" }

// IsHidden reports whether a query failed because row security would hide rows from it: see valueSettings.
func IsHidden(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pgErr.Code == "42501" && pgErr.Routine == "check_enable_rls"
}

// IsUnavailable reports whether the database as a whole is out of reach: no connection, going down, starting up, out
// of connections, or read-only. Trying again later is right.
func IsUnavailable(err error) bool {
	if err == nil || errors.Is(err, context.Canceled) {
		return false
	}
	if _, ok := errors.AsType[*UnreachableError](err); ok {
		return true
	}
	code := Code(err)
	if code == "" {
		return isBroken(err)
	}
	return strings.HasPrefix(code, "08") || strings.HasPrefix(code, "57P") || code == "53300" || code == "25006" || code == wrongServer
}

// isBroken reports whether an error that is no answer of PostgreSQL's is about the connection to it.
func isBroken(err error) bool {
	var connect *pgconn.ConnectError
	// Not net.Error: every error of the operating system is one, a missing file too.
	var network *net.OpError
	return errors.As(err, &connect) || errors.As(err, &network) || errors.Is(err, context.DeadlineExceeded) || pgconn.SafeToRetry(err) || pgconn.Timeout(err) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, puddle.ErrClosedPool) ||
		strings.Contains(err.Error(), "conn closed") // pgconn has no value for it
}

// explainedError is an error with a sentence that says how to mend it.
type explainedError struct {
	sentence, message string
	err               error
}

func (e *explainedError) Error() string {
	return fmt.Sprintf("%s (%s): %s", e.sentence, e.message, e.err)
}

func (e *explainedError) Unwrap() error { return e.err }

// Explain turns errors that a person can mend into sentences that say how. It returns others, and those that it has explained
// before, as they are.
func Explain(err error) error {
	var pgErr *pgconn.PgError
	var before *explainedError
	if !errors.As(err, &pgErr) || errors.As(err, &before) {
		return err
	}
	switch pgErr.Code {
	case "42P01":
		if strings.Contains(pgErr.Message, "reconciler.desired_") {
			return &explainedError{"the definition of a resource is broken: see SELECT * FROM reconciler.doctor();", pgErr.Message, err}
		}
		fallthrough
	case "3F000", "42883":
		if strings.Contains(pgErr.Message, "reconciler") {
			return &explainedError{"the schema is missing or too old: run `reconciler migrate up`", pgErr.Message, err}
		}
	case "42501":
		if IsHidden(err) {
			return &explainedError{"row security hides rows of a tracked table from the owner of its definition, so nothing of it is applied or deleted: see SELECT * FROM reconciler.doctor();", pgErr.Message, err}
		}
		return &explainedError{"a right is missing: as the owner of schema reconciler run SELECT reconciler.grant('<role>', 'runtime')", pgErr.Message, err}
	}
	return err
}
