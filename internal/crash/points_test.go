package crash_test

import (
	"bytes"
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/crash"
)

func TestPointsAreNamedOnceAndDescribed(t *testing.T) {
	t.Parallel()
	seen := map[crash.Name]bool{}
	for _, p := range crash.All() {
		require.Regexp(t, `^[a-z]+(-[a-z]+)*$`, string(p.Name))
		require.Regexp(t, `^[A-Z].*\.$`, p.Where)
		require.False(t, seen[p.Name], p.Name)
		seen[p.Name] = true
	}
}

// Every constant is in the list, and stands at exactly one place of the product.
func TestEveryPointStandsSomewhere(t *testing.T) {
	t.Parallel()
	names := constants(t)
	var listed []string
	for _, p := range crash.All() {
		listed = append(listed, string(p.Name))
	}
	var declared []string
	for _, name := range names {
		declared = append(declared, name)
	}
	require.ElementsMatch(t, declared, listed)
	stands := map[string]int{}
	call := regexp.MustCompile(`crash\.Point\(crash\.(\w+)\)`)
	for _, path := range sources(t) {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, m := range call.FindAllSubmatch(text, -1) {
			stands[string(m[1])]++
		}
	}
	for constant := range names {
		require.Equal(t, 1, stands[constant], "places of %s", constant)
	}
	require.Len(t, stands, len(names))
}

// docs/testing.md shows every point.
func TestPointsAreDocumented(t *testing.T) {
	t.Parallel()
	docs, err := os.ReadFile("../../docs/testing.md")
	require.NoError(t, err)
	var table strings.Builder
	table.WriteString("| point | where |\n|---|---|\n")
	for _, p := range crash.All() {
		table.WriteString("| `" + string(p.Name) + "` | " + p.Where + " |\n")
	}
	_, rest, _ := strings.Cut(string(docs), "## Crash points\n")
	_, rest, _ = strings.Cut(rest, "| point")
	have, _, _ := strings.Cut("| point"+rest, "\n\n")
	require.Equal(t, table.String(), have+"\n")
}

// constants returns the declared points: constant to name.
func constants(t *testing.T) map[string]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "points.go", nil, 0)
	require.NoError(t, err)
	names := map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if ok && len(spec.Values) == 1 {
			names[spec.Names[0].Name] = strings.Trim(spec.Values[0].(*ast.BasicLit).Value, `"`)
		}
		return true
	})
	return names
}

// sources returns the product's Go files.
func sources(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, dir := range []string{"../../cmd", ".."} {
		err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
			if strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") && !strings.HasPrefix(path, "../crash/") {
				all = append(all, path)
			}
			return err
		})
		require.NoError(t, err)
	}
	return all
}

// What people run knows nothing of points; what tests run refuses what it does not understand.
func TestPlainBuildHasNoPoints(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	plain, faulty := filepath.Join(dir, "plain"), filepath.Join(dir, "faulty")
	build(t, plain)
	build(t, faulty, "-tags=faults")
	for _, text := range []string{"RECONCILER_CRASH", "before-hand-out", "none of its objects is in the queue"} {
		require.False(t, holds(t, plain, text), text)
		require.True(t, holds(t, faulty, text), text)
	}
	require.Empty(t, refusal(t, plain))
	require.Equal(t, "reconciler: RECONCILER_CRASH: there is no point \"nowhere\"\n", refusal(t, faulty))
}

func build(t *testing.T, path string, flags ...string) {
	t.Helper()
	args := slices.Concat([]string{"build", "-o", path}, flags, []string{"../../cmd/reconciler"})
	said, err := exec.CommandContext(t.Context(), "go", args...).CombinedOutput()
	require.NoError(t, err, string(said))
}

func holds(t *testing.T, path, text string) bool {
	t.Helper()
	binary, err := os.ReadFile(path)
	require.NoError(t, err)
	return bytes.Contains(binary, []byte(text))
}

// refusal returns what a binary says that is told to break at a place that does not exist, and ends with code 2; "" if
// it starts.
func refusal(t *testing.T, path string) string {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), path, "version")
	cmd.Env = append(os.Environ(), "RECONCILER_CRASH=nowhere:kill")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		require.Equal(t, 2, cmd.ProcessState.ExitCode(), err)
		return stderr.String()
	}
	return ""
}
