//go:build long

package main

import (
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

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
	require.Equal(t, map[string]int{"writers": 12, "latency": 13, "creates": 6, "streams": 6, "agent": 6, "bulk": 4, "drain": 3, "sync": 13, "idle": 2, "start": 1, "targets": 4, "cost": 7, "applies": 6, "sustained": 4, "churn": 6}, count)
	require.Len(t, results, len(benches))
	left, err := pgx.Connect(t.Context(), l.admin)
	require.NoError(t, err)
	defer left.Close(t.Context())
	var databases int
	require.NoError(t, left.QueryRow(t.Context(), "SELECT count(*) FROM pg_database WHERE datname = $1", benchDatabase).Scan(&databases))
	require.Zero(t, databases, "the database is dropped")
}
