// Command vet is what `go vet -vettool` runs for `make lint`: most of go vet's own checks, staticcheck's SA checks,
// errcheck and nilness. Results are cached for each package. `make lint/all` runs every other linter.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

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
	if err := skip(os.Args[len(os.Args)-1]); err != nil {
		fmt.Fprintln(os.Stderr, "vet:", err)
		os.Exit(1)
	}
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

// skip ends the program where go vet asks only for facts about a package of another module, with none: they take a quarter of
// the time of a run without cache. Facts of the standard library stay, such as which functions do not return, except those of its
// cryptography and of modules that it contains.
func skip(file string) error {
	if !strings.HasSuffix(file, ".cfg") {
		return nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("reading what to check: %w", err)
	}
	var unit unitchecker.Config
	if err := json.Unmarshal(text, &unit); err != nil {
		return fmt.Errorf("reading what to check: %s: %w", file, err)
	}
	module, _, _ := strings.Cut(unit.ImportPath, "/")
	foreign := strings.Contains(module, ".") || module == "vendor" || strings.HasPrefix(unit.ImportPath, "crypto/internal/")
	if !unit.VetxOnly || !foreign || strings.HasPrefix(unit.ImportPath, "github.com/pgreconciler/") {
		return nil
	}
	if err := os.WriteFile(unit.VetxOutput, nil, 0o666); err != nil {
		return fmt.Errorf("writing facts: %w", err)
	}
	os.Exit(0)
	return nil
}
