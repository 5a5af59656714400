package faults_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// shiftVariable holds the seconds by which the clock of shiftedBinary is wrong.
const shiftVariable = "RECONCILER_TEST_CLOCK_SHIFT"

var shifted struct {
	once sync.Once
	path string // set by TestMain
	err  error
}

// shiftedBinary returns the command reconciler with a wall clock that is wrong by what the environment says when the process
// starts; the monotonic clock is not touched, as when a machine's time was set wrongly. It is built once.
func shiftedBinary(t *testing.T) string {
	t.Helper()
	shifted.once.Do(func() { shifted.err = buildShifted(t.TempDir()) })
	require.NoError(t, shifted.err)
	return shifted.path
}

func buildShifted(dir string) error {
	root, err := exec.CommandContext(context.Background(), "go", "env", "GOROOT").Output()
	if err != nil {
		return err
	}
	original := filepath.Join(strings.TrimSpace(string(root)), "src/time/time.go")
	source, err := os.ReadFile(original)
	if err != nil {
		return err
	}
	text := string(source)
	const reads, imports = "\tsec, nsec, mono := runtimeNow()\n\tif mono == 0 {\n", "import (\n"
	if strings.Count(text, reads) != 1 {
		return errors.New("time.Now reads the clock in another way")
	}
	text = strings.Replace(text, reads, "\tsec, nsec, mono := runtimeNow()\n\tsec += testShift\n\tif mono == 0 {\n", 1)
	text = strings.Replace(text, imports, imports+"\t\"syscall\"\n", 1)
	text += `
var testShift = func() int64 {
	text, _ := syscall.Getenv("` + shiftVariable + `")
	seconds, _ := atoi(text)
	return int64(seconds)
}()
`
	changed, overlay := filepath.Join(dir, "time.go"), filepath.Join(dir, "overlay.json")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {original: changed}})
	if err == nil {
		err = errors.Join(os.WriteFile(changed, []byte(text), 0o600), os.WriteFile(overlay, replace, 0o600))
	}
	if err != nil {
		return err
	}
	return build(shifted.path, "../../cmd/reconciler", "-overlay="+overlay, "-ldflags=-X main.version=shifted")
}
