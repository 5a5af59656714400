package main

import (
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// The harness works from end to end: every measurement gives figures, and both files have them. How large they are is no
// matter.
func TestEveryMeasurementGivesFigures(t *testing.T) {
	t.Parallel()
	out := t.TempDir()
	binary := filepath.Join(out, "reconciler")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "../cmd/reconciler")
	said, err := build.CombinedOutput()
	require.NoError(t, err, "%s", said)
	l := &lab{admin: pgtest.Server(t).URL("postgres"), binary: binary}
	l.hurry()
	require.NoError(t, perform(t.Context(), l, regexp.MustCompile("."), out))

	results, err := kept(out)
	require.NoError(t, err)
	table, err := os.ReadFile(filepath.Join(out, "RESULTS.md"))
	require.NoError(t, err)
	count := map[string]int{}
	for _, s := range results {
		for _, f := range s.Figures {
			count[f.Bench]++
			require.NotEmpty(t, f.Values, f.What)
			for _, v := range append(f.Values, f.Limits...) {
				require.False(t, math.IsNaN(v) || math.IsInf(v, 0) || v < 0, "%s: %v", f.What, v)
			}
			require.Equal(t, f.Goal != "", f.Met != nil, f.What)
			require.Contains(t, string(table), f.line()+"\n")
		}
	}
	require.Equal(t, map[string]int{"writers": 12, "latency": 13, "creates": 6, "open": 10, "bulk": 4, "drain": 3, "sync": 13, "idle": 2, "start": 1, "targets": 4, "cost": 7, "applies": 6, "sustained": 4, "churn": 6}, count)
	require.Len(t, results, len(benches))
	left, err := pgx.Connect(t.Context(), l.admin)
	require.NoError(t, err)
	defer left.Close(t.Context())
	var databases int
	require.NoError(t, left.QueryRow(t.Context(), "SELECT count(*) FROM pg_database WHERE datname = $1", benchDatabase).Scan(&databases))
	require.Zero(t, databases, "the database is dropped")
}

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
