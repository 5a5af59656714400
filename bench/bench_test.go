package main

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func TestFiguresAreComparedRoundByRound(t *testing.T) {
	t.Parallel()
	f := Figure{Bench: "b", What: "w", Unit: "rows/s", Values: []float64{50, 10, 200}, Against: "COPY", Limits: []float64{100, 100, 100}}
	require.Equal(t, "| b | w | 50.0 (10.0 to 200.0) rows/s | COPY 100.0 (100.0 to 100.0) | 0.50 (0.10 to 2.00) | ≥ 0.5 | yes |", f.atLeast(.5, "≥ 0.5").line())
	require.Equal(t, "| b | w | 50.0 (10.0 to 200.0) rows/s | COPY 100.0 (100.0 to 100.0) | 0.50 (0.10 to 2.00) | ≥ 0.6 | **no** |", f.atLeast(.6, "≥ 0.6").line())
	f.Limits = nil
	require.Equal(t, "| b | w | 50.0 (10.0 to 200.0) rows/s |  |  | ≤ 20 | **no** |", f.atMost(20, "≤ 20").line())
}

// A measurement that is made anew takes the place of its older one; the others stay, in their order. What bench/peers has
// written comes first.
func TestResultsAreKeptByMeasurement(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	figure := func(what string) []Figure { return []Figure{{Bench: "b", What: what, Values: []float64{1}}} }
	require.NoError(t, keep(dir, section{Name: "churn", Figures: figure("much")}))
	require.NoError(t, keep(dir, section{Name: "writers", Figures: figure("first")}))
	require.NoError(t, keep(dir, section{Name: "writers", Figures: figure("second")}))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "peers"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, peersFile), []byte("# Ways\n\nAs [README.md](README.md) says.\n"), 0o600))
	require.NoError(t, render(dir))
	text, err := os.ReadFile(filepath.Join(dir, "RESULTS.md"))
	require.NoError(t, err)
	require.Equal(t, []string{"## Against others", "As [README.md](peers/README.md) says.", "## writers", "| b | second | 1.00 (1.00 to 1.00)  |  |  |  |  |", "## churn", "| b | much | 1.00 (1.00 to 1.00)  |  |  |  |  |"},
		regexp.MustCompile(`(?m)^(## .*|As .*|\| b .*)$`).FindAllString(strings.ReplaceAll(string(text), "| bench", ""), -1))
}

func TestFirstErrorEndsAMeasurement(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	after := false
	require.Equal(t, broken, attempt(func() {
		require.Equal(t, 1, must(1, nil))
		must(0, broken)
		after = true
	}))
	require.False(t, after)
	require.NoError(t, attempt(func() {}))
	require.PanicsWithValue(t, "a bug", func() { _ = attempt(func() { panic("a bug") }) })
}
