// Command vet is what `go vet -vettool` runs for `make lint`: most of go vet's own checks, staticcheck's SA checks,
// errcheck and nilness. Results are cached for each package. `make lint/all` runs every other linter.
package main

import (
	"encoding/gob"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/kisielk/errcheck/errcheck"
	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/appends"
	"golang.org/x/tools/go/analysis/passes/atomic"
	"golang.org/x/tools/go/analysis/passes/bools"
	"golang.org/x/tools/go/analysis/passes/buildtag"
	"golang.org/x/tools/go/analysis/passes/copylock"
	"golang.org/x/tools/go/analysis/passes/ctrlflow"
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
	"honnef.co/go/tools/analysis/facts/deprecated"
	"honnef.co/go/tools/staticcheck"
)

// unchecked may fail unseen: what is read or locked is let go, and a program cannot report that printing fails.
var unchecked = []string{
	"(io.Closer).Close", "(*os.File).Close", "(*os.Root).Close", "(net.Conn).Close", "(net.Listener).Close",
	"(*database/sql.DB).Close", "(*github.com/jackc/pgx/v5.Conn).Close", "fmt.Fprint", "fmt.Fprintf", "fmt.Fprintln",
}

func main() {
	unit, err := unitOf(os.Args[len(os.Args)-1])
	if err == nil {
		switch module, _, _ := strings.Cut(unit.ImportPath, "/"); {
		case !unit.VetxOnly || strings.HasPrefix(unit.ImportPath, "github.com/pgreconciler/") || slices.Contains(plain, unit.ImportPath):
			unitchecker.Main(checks()...)
		case !strings.Contains(module, "."):
			register(checks())
			unitchecker.Main(ctrlflow.Analyzer, printf.Analyzer, deprecated.Analyzer)
		}
		err = os.WriteFile(unit.VetxOutput, nil, 0o666)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "vet:", err)
		os.Exit(1)
	}
}

// plain are packages of the standard library with many functions that have no effect but a result. Of the others it is only found
// what does not return, what formats, and what is deprecated: that takes a third of the time.
var plain = []string{
	"bytes", "cmp", "errors", "fmt", "maps", "math", "net/netip", "net/url", "path", "path/filepath", "slices", "sort", "strconv",
	"strings", "time", "unicode", "unicode/utf8",
}

// register makes the facts of analyzers readable that do not run.
func register(analyzers []*analysis.Analyzer) {
	for _, analyzer := range analyzers {
		for _, fact := range analyzer.FactTypes {
			gob.Register(fact)
		}
		register(analyzer.Requires)
	}
}

// unitOf returns what go vet asks for: about the packages that ours import, facts alone. There are none about those of other modules:
// they would take most of the time of a run without cache.
func unitOf(file string) (unit unitchecker.Config, err error) {
	if !strings.HasSuffix(file, ".cfg") {
		return unit, nil
	}
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &unit)
	}
	if err != nil {
		err = fmt.Errorf("reading what to check: %s: %w", file, err)
	}
	return unit, err
}

func checks() []*analysis.Analyzer {
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
	return analyzers
}
