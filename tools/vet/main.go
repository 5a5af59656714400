// Command vet is what `go vet -vettool` runs for `make lint`: most of go vet's own checks, staticcheck's SA checks,
// errcheck and nilness. Results are cached for each package. `make lint/all` runs every other linter.
package main

import (
	"github.com/kisielk/errcheck/errcheck"
	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/appends"
	"golang.org/x/tools/go/analysis/passes/atomic"
	"golang.org/x/tools/go/analysis/passes/bools"
	"golang.org/x/tools/go/analysis/passes/buildtag"
	"golang.org/x/tools/go/analysis/passes/copylock"
	"golang.org/x/tools/go/analysis/passes/defers"
	"golang.org/x/tools/go/analysis/passes/directive"
	"golang.org/x/tools/go/analysis/passes/errorsas"
	"golang.org/x/tools/go/analysis/passes/httpresponse"
	"golang.org/x/tools/go/analysis/passes/ifaceassert"
	"golang.org/x/tools/go/analysis/passes/loopclosure"
	"golang.org/x/tools/go/analysis/passes/lostcancel"
	"golang.org/x/tools/go/analysis/passes/nilness"
	"golang.org/x/tools/go/analysis/passes/printf"
	"golang.org/x/tools/go/analysis/passes/shift"
	"golang.org/x/tools/go/analysis/passes/slog"
	"golang.org/x/tools/go/analysis/passes/stdmethods"
	"golang.org/x/tools/go/analysis/passes/structtag"
	"golang.org/x/tools/go/analysis/passes/testinggoroutine"
	"golang.org/x/tools/go/analysis/passes/tests"
	"golang.org/x/tools/go/analysis/passes/unmarshal"
	"golang.org/x/tools/go/analysis/passes/unreachable"
	"golang.org/x/tools/go/analysis/passes/unusedresult"
	"golang.org/x/tools/go/analysis/passes/waitgroup"
	"golang.org/x/tools/go/analysis/unitchecker"
	"honnef.co/go/tools/staticcheck"
)

// unchecked may fail unseen: what is read or locked is let go, and a program cannot report that printing fails.
var unchecked = []string{
	"(io.Closer).Close", "(*os.File).Close", "(*os.Root).Close", "(net.Conn).Close", "(net.Listener).Close",
	"(*database/sql.DB).Close", "(*github.com/jackc/pgx/v5.Conn).Close", "fmt.Fprint", "fmt.Fprintf", "fmt.Fprintln",
}

func main() {
	errcheck.DefaultExcludedSymbols = append(errcheck.DefaultExcludedSymbols, unchecked...)
	analyzers := []*analysis.Analyzer{
		appends.Analyzer, atomic.Analyzer, bools.Analyzer, buildtag.Analyzer, copylock.Analyzer, defers.Analyzer,
		directive.Analyzer, errorsas.Analyzer, httpresponse.Analyzer, ifaceassert.Analyzer, loopclosure.Analyzer,
		lostcancel.Analyzer, printf.Analyzer, shift.Analyzer, slog.Analyzer, stdmethods.Analyzer, structtag.Analyzer,
		testinggoroutine.Analyzer, tests.Analyzer, unmarshal.Analyzer, unreachable.Analyzer, unusedresult.Analyzer,
		waitgroup.Analyzer, errcheck.Analyzer, nilness.Analyzer,
	}
	for _, check := range staticcheck.Analyzers {
		analyzers = append(analyzers, check.Analyzer)
	}
	unitchecker.Main(analyzers...)
}
