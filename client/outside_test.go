package client_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The package is for modules of others: the programs of docs/client.md build and run outside of this one, with neither pgx nor what the
// server needs.
func TestProgramsOfThePageRunInAModuleOutsideTheTree(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("..")
	require.NoError(t, err)
	sums, err := os.ReadFile(filepath.Join(root, "go.sum"))
	require.NoError(t, err)
	own, err := os.ReadFile(filepath.Join(root, "go.mod"))
	require.NoError(t, err)
	_, requires, _ := strings.Cut(string(own), "\n\n") // of the module: the versions that are here
	page, err := os.ReadFile(filepath.Join(root, "docs/client.md"))
	require.NoError(t, err)
	var programs []string
	for _, block := range strings.Split(string(page), "\n```go\n")[1:] {
		program, _, closed := strings.Cut(block, "\n```\n")
		require.True(t, closed)
		programs = append(programs, program+"\n")
	}
	require.Len(t, programs, 2)
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.sum": string(sums),
		"go.mod": "module example.org/outside\n\n" + requires + "\nrequire github.com/pgreconciler/reconciler v0.0.0\n\n" +
			"replace github.com/pgreconciler/reconciler => " + root + "\n",
		"main.go":      programs[0],
		"main_test.go": programs[1],
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	run := func(args ...string) string {
		cmd := exec.CommandContext(t.Context(), "go", args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOPROXY=off", "GOWORK=off")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
		return string(out)
	}
	run("test", "-vet=off", ".") // vet would look at all that they import
	for path := range strings.Lines(run("list", "-deps", ".")) {
		require.False(t, strings.Contains(path, "jackc/pgx") || strings.Contains(path, "reconciler/internal"), path)
	}
}
