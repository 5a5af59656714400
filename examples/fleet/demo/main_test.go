package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// output is what a run prints; a test may act on a line of it.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
	on   map[string]func()
}

func (o *output) Write(line []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for part, act := range o.on {
		if strings.Contains(string(line), part) {
			act()
		}
	}
	return o.text.Write(line)
}

// setup gives the demo a directory for everything that it makes, which the server's user can reach too.
func setup(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	require.NoError(t, os.Chmod(filepath.Dir(dir), 0o755))
	t.Setenv("TMPDIR", dir)
	return dir
}

// left lists what is in dir.
func left(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

func TestRunRejectsUnknownArguments(t *testing.T) {
	for _, args := range [][]string{{"-nonsense"}, {"more"}} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, exitUsage, run(t.Context(), args, &stdout, &stderr))
		require.Empty(t, stdout.String())
		require.NotEmpty(t, stderr.String())
	}
}

func TestRunThatFailsLeavesNothingBehind(t *testing.T) {
	dir := setup(t)
	stdout := &output{}
	require.Equal(t, exitFailed, run(t.Context(), []string{"-reconciler", "/bin/false"}, stdout, os.Stderr))
	require.Contains(t, stdout.text.String(), "\nVERDICT: FAILED: `reconciler migrate up` ended with exit code 1, not 0\n")
	require.Empty(t, left(t, dir))
}

func TestRunThatIsInterruptedLeavesNothingBehind(t *testing.T) {
	dir := setup(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stdout := &output{on: map[string]func(){"PostgreSQL": cancel}}
	require.Equal(t, exitInterrupted, run(ctx, []string{"-reconciler", "/bin/false"}, stdout, os.Stderr))
	require.Contains(t, stdout.text.String(), "\ninterrupted; everything that was started has been ended and removed\n")
	require.NotContains(t, stdout.text.String(), "VERDICT")
	require.Empty(t, left(t, dir))
}

func TestRunWithoutAReaderLeavesNothingBehind(t *testing.T) {
	dir := setup(t)
	require.Equal(t, exitFailed, run(t.Context(), []string{"-reconciler", "/bin/false"}, brokenPipe{}, os.Stderr))
	require.Empty(t, left(t, dir))
}
