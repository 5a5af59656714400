package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/pgreconciler/reconciler/internal/config"
)

// Exit codes, the same for every command.
const (
	ExitOK          = 0
	ExitDiffers     = 1            // not converged, something differs, or the command failed half-way
	ExitUsage       = 2            // wrong arguments or configuration; nothing was started
	ExitDatabase    = 3            // the database is out of reach, or its schema or the role's rights do not fit
	ExitUnreachable = ExitDatabase // what a command looks at is out of reach
	ExitTimeout     = 4            // what was waited for did not come in time
)

// Failure is an error as a person reads it, with the exit code that goes with it.
type Failure struct {
	Code int
	Text string // one sentence; "" when what was printed says it all
	Hint string // what would help; "" for nothing
	Err  error  // the cause, for errors.As; may be nil
}

func (f *Failure) Error() string {
	if f.Text == "" {
		return fmt.Sprintf("exit code %d", f.Code)
	}
	return f.Text
}

// Unwrap returns the cause.
func (f *Failure) Unwrap() error { return f.Err }

// Silent ends a command with a code and without a word.
func Silent(code int) error { return &Failure{Code: code} }

// Usage says that a command was called in a wrong way.
func Usage(text, hint string) error { return &Failure{Code: ExitUsage, Text: text, Hint: hint} }

// Report writes an error to w, as "reconciler: ..." with a line "hint: ..." where there is one, and returns the exit code.
func Report(w io.Writer, err error) int {
	if err == nil {
		return ExitOK
	}
	failure := asFailure(err)
	if failure.Text != "" {
		_, _ = fmt.Fprintf(w, "reconciler: %s\n", CleanLines(failure.Text))
	}
	if failure.Hint != "" {
		_, _ = fmt.Fprintf(w, "hint: %s\n", CleanLines(failure.Hint))
	}
	return failure.Code
}

func asFailure(err error) *Failure {
	if failure, ok := errors.AsType[*Failure](err); ok {
		return failure
	}
	if bad, ok := errors.AsType[*config.Error](err); ok {
		return &Failure{Code: ExitUsage, Text: bad.Error(), Err: err}
	}
	return databaseFailure(err)
}

// list renders problems as one sentence, or as a heading and one line for each.
func list(problems []string) string {
	if len(problems) == 1 {
		return problems[0]
	}
	return fmt.Sprintf("%d problems:\n  %s", len(problems), strings.Join(problems, "\n  "))
}
