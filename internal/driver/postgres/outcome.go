package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// errorShownMax is how much of a server's message stands in an error.
const errorShownMax = 600

// SQLSTATEs by their names in PostgreSQL's documentation.
const (
	undefinedTable       = "42P01"
	undefinedColumn      = "42703"
	undefinedSchema      = "3F000"
	undefinedDatabase    = "3D000"
	noMatchingConstraint = "42P10" // there is no unique constraint for ON CONFLICT
	duplicateTable       = "42P07"
	duplicateObject      = "42710" // the type of the table's rows
	foreignKeyViolation  = "23503"
	uniqueViolation      = "23505"
	noPrivilege          = "42501"
	readOnlyTransaction  = "25006"
	tooManyConnections   = "53300"
	cannotConnectNow     = "57P03"
)

// errStale says that the row was written by somebody who knew more than this call.
var errStale = errors.New("the row was written under a newer term or revision than this call's: another owner is ahead " +
	"(if the reconciler's own database was restored from a backup, set term to 0 in the target's rows)")

// hints are the remedies for what is wrong with the table as a whole.
var hints = map[string]string{
	undefinedTable:       "create it, or set options.create to true",
	undefinedColumn:      "options.columns maps the names",
	undefinedSchema:      "create it first",
	noMatchingConstraint: "the table needs a primary key on target, resource and key",
	noPrivilege:          "grant select, insert, update and delete on the table",
	readOnlyTransaction:  "is it a standby?",
}

// outcome classifies what came of a call.
func (d *database) outcome(ctx context.Context, ref driver.Ref, err error) driver.Outcome {
	switch {
	case err == nil:
		return driver.Done()
	case ctx.Err() != nil:
		return driver.Backoff(context.Cause(ctx))
	case errors.Is(err, errStale):
		return driver.Backoff(fmt.Errorf("term %d, revision %d: %w", ref.Term, ref.Revision, err))
	}
	said := d.said(ctx, err)
	code := codeOf(err)
	if code == readOnlyTransaction {
		d.pool.Reset() // another server may be the writable one by now
	}
	return driver.Outcome{Verdict: verdict(code), Err: said}
}

// verdict classifies a SQLSTATE; "" stands for an error that is not the server's.
func verdict(code string) driver.Verdict {
	if code == "" {
		return driver.VerdictUnreachable // no connection, or one that was lost
	}
	// What is wrong with the table, its rights or the server is wrong for every object, and mended without a new spec.
	whole := []string{
		undefinedTable, undefinedColumn, undefinedSchema, undefinedDatabase, noMatchingConstraint, noPrivilege, readOnlyTransaction,
		tooManyConnections, "57P01", "57P02", cannotConnectNow, "57P04", "57P05",
	}
	if slices.Contains(whole, code) {
		return driver.VerdictUnreachable
	}
	// The row that it refers to may be on its way.
	if code == foreignKeyViolation {
		return driver.VerdictBackoff
	}
	switch code[:2] {
	case "08", "28", "58": // connection, authorization, the server's own system
		return driver.VerdictUnreachable
	case "53": // disk full, out of memory
		return driver.VerdictUnreachable
	case "21", "22", "23", "42", "44", "54": // the data, a constraint, the statement, a limit of the program
		return driver.VerdictTerminal
	default: // serialization, deadlock, lock not available, cancelled, a trigger's exception
		return driver.VerdictBackoff
	}
}

// concernsObject says that another object's row might be written although this one's cannot.
func concernsObject(err error) bool {
	code := codeOf(err)
	return code != "" && verdict(code) != driver.VerdictUnreachable
}

func codeOf(err error) string {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pgErr.Code
	}
	return ""
}

// said makes an error fit for others: one line, without the password and without values of rows.
func (d *database) said(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	text := err.Error()
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		text = fmt.Sprintf("%s (SQLSTATE %s)", pgErr.Message, pgErr.Code)
		if hint := hints[pgErr.Code]; hint != "" {
			text += ": " + hint
		}
	}
	return errors.New(driver.Snippet([]byte(d.scrubber.Text(text)), errorShownMax))
}
