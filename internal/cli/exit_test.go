package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/migrate"
)

func unreachable(t *testing.T) error {
	t.Helper()
	_, err := database.Connect(t.Context(), "postgres://app:hunter2@127.0.0.1:1/shop", database.Options{})
	require.Error(t, err)
	return err
}

func TestReport(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		err  error
		code int
		want string
	}{
		"Nothing":       {nil, 0, ""},
		"Silence":       {Silent(4), 4, ""},
		"Usage":         {Usage("no target is named 'x'", "Targets: eu"), 2, "reconciler: no target is named 'x'\nhint: Targets: eu\n"},
		"Wrapped":       {fmt.Errorf("more: %w", Usage("that", "")), 2, "reconciler: that\n"},
		"Configuration": {&config.Error{Problems: []config.Problem{{Path: "listen", Text: "is odd"}}}, 2, "reconciler: invalid configuration: listen: is odd\n"},
		"Refused": {
			&pgconn.PgError{Code: "42704", Message: "no target is named 'x'", Hint: "Targets: eu"}, 2,
			"reconciler: no target is named 'x'\nhint: Targets: eu\n",
		},
		"Locked":      {&pgconn.PgError{Code: "55P03", Message: "table is in use"}, 1, "reconciler: table is in use\n"},
		"Internal":    {&pgconn.PgError{Code: "XX000", Message: "oops"}, 1, "reconciler: oops\n"},
		"ReadOnly":    {&pgconn.PgError{Code: "25006", Message: "cannot execute UPDATE"}, 3, "reconciler: the database is read-only: it is a standby, or was demoted to one\n"},
		"ShutDown":    {&pgconn.PgError{Code: "57P01", Message: "terminating connection"}, 3, "reconciler: the connection to the database was lost: terminating connection\n"},
		"Lost":        {fmt.Errorf("read: %w", io.ErrUnexpectedEOF), 3, "reconciler: the connection to the database was lost: unexpected EOF\n"},
		"Unreachable": {unreachable(t), 3, "reconciler: cannot connect to database \"shop\" at 127.0.0.1:1 as user \"app\": connection refused\n"},
		"NoSchema":    {fmt.Errorf("check: %w", &migrate.PendingError{Want: 3}), 3, "reconciler: check: the database has no schema reconciler yet: run `reconciler migrate up`\n"},
		"NewerSchema": {
			&migrate.NewerSchemaError{Have: 4, Want: 3}, 3, "reconciler: the database has schema version 4, this binary knows up to 3: " +
				"use a newer reconciler, or take the schema back with the newer one (`reconciler migrate down`)\n",
		},
		"Other":   {errors.New("it\x1b[31m broke\nin two"), 1, "reconciler: it\\x1b[31m broke\nin two\n"},
		"Several": {errors.Join(errors.New("first"), errors.New("second")), 1, "reconciler: first\nsecond\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var b bytes.Buffer
			require.Equal(t, test.code, Report(&b, test.err))
			require.Equal(t, test.want, b.String())
		})
	}
}

func TestReasonIsTheInnermostCause(t *testing.T) {
	t.Parallel()
	dial := &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	require.Equal(t, "connection refused", reason(fmt.Errorf("a: %w", errors.Join(fmt.Errorf("b: %w", dial), errors.New("c")))))
	require.Equal(t, "wrong password", reason(fmt.Errorf("a: %w", &pgconn.PgError{Code: "28P01", Message: "wrong password"})))
	require.Equal(t, "context deadline exceeded", reason(context.DeadlineExceeded))
}

func TestFailureKeepsItsCause(t *testing.T) {
	t.Parallel()
	cause := &pgconn.PgError{Code: "42704", Message: "m"}
	failure := databaseFailure(fmt.Errorf("w: %w", cause))
	require.ErrorIs(t, failure, cause)
	require.EqualError(t, failure, "m")
	require.EqualError(t, Silent(1), "exit code 1")
}

// full refuses every write.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

func TestResultThatCannotBeWrittenIsAFailure(t *testing.T) {
	t.Parallel()
	for name, write := range map[string]func(Printer) error{
		"Line":  func(p Printer) error { return p.Line("x") },
		"Value": func(p Printer) error { return p.Value(1) },
		"Table": func(p Printer) error { return p.Table(&Table{Rows: []Row{{}}}, []Column{Col("x")}, "") },
		"Goose": func(p Printer) error { return Definition{}.Goose(p.W) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := write(Printer{W: full{}, Format: FormatTable})
			require.EqualError(t, err, "the result cannot be written: no space left on device")
			require.Equal(t, 1, Report(io.Discard, err))
		})
	}
}
