package faulttest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// rareBuilds are the binaries that tests asked for, each built once.
var rareBuilds struct {
	mu    sync.Mutex // guards what follows
	dir   string
	built map[string]error // by path
}

// rareRemoveBinaries removes what was built; TestMain calls it.
func rareRemoveBinaries() {
	rareBuilds.mu.Lock()
	defer rareBuilds.mu.Unlock()
	_ = os.RemoveAll(rareBuilds.dir)
	rareBuilds.dir, rareBuilds.built = "", nil
}

// rareShiftVariable holds the seconds by which the clock of rareShiftedBinary is wrong.
const rareShiftVariable = "RECONCILER_TEST_CLOCK_SHIFT"

// rareShiftedBinary builds the command reconciler with a wall clock that is wrong by what the environment says when the
// process starts; the monotonic clock is not touched, as when a machine's time was set wrongly.
func rareShiftedBinary(t *testing.T) string {
	t.Helper()
	original := filepath.Join(rareGoroot(t), "src/time/time.go")
	source, err := os.ReadFile(original)
	require.NoError(t, err)
	text := string(source)
	const reads, imports = "\tsec, nsec, mono := runtimeNow()\n\tif mono == 0 {\n", "import (\n"
	require.Equal(t, 1, strings.Count(text, reads), "time.Now reads the clock in another way")
	text = strings.Replace(text, reads, "\tsec, nsec, mono := runtimeNow()\n\tsec += rareShift\n\tif mono == 0 {\n", 1)
	text = strings.Replace(text, imports, imports+"\t\"syscall\"\n", 1)
	text += `
var rareShift = func() int64 {
	text, _ := syscall.Getenv("` + rareShiftVariable + `")
	seconds, _ := atoi(text)
	return int64(seconds)
}()
`
	dir := t.TempDir()
	shifted, overlay := filepath.Join(dir, "time.go"), filepath.Join(dir, "overlay.json")
	require.NoError(t, os.WriteFile(shifted, []byte(text), 0o600))
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {original: shifted}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(overlay, replace, 0o600))
	return rareBuild(t, "reconciler-shifted", "-tags=faults", "-overlay="+overlay, "-ldflags=-X main.version=shifted")
}

func rareGoroot(t *testing.T) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "env", "GOROOT").Output()
	require.NoError(t, err)
	return strings.TrimSpace(string(out))
}

// rareBuild builds a binary of this name, unless that was done before.
func rareBuild(t *testing.T, name string, flags ...string) string {
	t.Helper()
	rareBuilds.mu.Lock()
	defer rareBuilds.mu.Unlock()
	if rareBuilds.dir == "" {
		dir, err := os.MkdirTemp("", "reconciler-faulttest-") //nolint:usetesting // it is for other tests too
		require.NoError(t, err)
		// Whoever the tests run the binary as.
		require.NoError(t, os.Chmod(dir, 0o755))
		rareBuilds.dir, rareBuilds.built = dir, map[string]error{}
	}
	path := filepath.Join(rareBuilds.dir, name)
	err, done := rareBuilds.built[path]
	if !done {
		args := append([]string{"build", "-o", path}, flags...)
		said, failed := exec.CommandContext(context.WithoutCancel(t.Context()), "go", append(args, "../../cmd/reconciler")...).CombinedOutput()
		if failed != nil {
			err = fmt.Errorf("build %s: %w\n%s", name, failed, said)
		}
		rareBuilds.built[path] = err
	}
	require.NoError(t, err)
	return path
}
