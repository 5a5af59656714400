package exec_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	osexec "os/exec"
	"path/filepath"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/drivertest"
	"github.com/pgreconciler/reconciler/internal/driver/exec"
)

// store is the program of testdata/store.
var store string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "exec-driver-*")
	if err == nil {
		store = filepath.Join(dir, "store")
		var output []byte
		if output, err = osexec.Command("go", "build", "-o", store, "./testdata/store").CombinedOutput(); err != nil {
			err = fmt.Errorf("build testdata/store: %w\n%s", err, output)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(dir)
		os.Exit(code)
	}))
}

const token = "t0ken-value"

func open(t *testing.T, opts driver.Options) driver.Driver {
	t.Helper()
	return openWith(t, opts, map[string]string{
		"TOKEN": token, "RECONCILER_DATABASE_URL": "postgres://user:pa55word@host/db", "PGPASSWORD": "pa55word",
	})
}

func openWith(t *testing.T, opts driver.Options, vars map[string]string) driver.Driver {
	t.Helper()
	vars["PATH"] = os.Getenv("PATH")
	d, err := exec.Kind().Open("test", opts, driver.Env{Getenv: func(name string) string { return vars[name] }})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close(t.Context())) })
	return d
}

func TestConformance(t *testing.T) {
	t.Parallel()

	drivertest.Exercise(t, func(t *testing.T) drivertest.Fixture {
		dir, wd := t.TempDir(), t.TempDir()
		objects := func(t *testing.T) []string {
			found, err := filepath.Glob(filepath.Join(dir, "*"))
			require.NoError(t, err)
			var whole []string
			for _, path := range found {
				if filepath.Ext(path) == "" { // not what a killed program left half written
					whole = append(whole, path)
				}
			}
			return whole
		}
		return drivertest.Fixture{
			Driver: open(t, driver.Options{
				"command": []any{store}, "list_command": []any{store, "list"}, "health": shell("cat >&2"), "dir": wd,
				"env": map[string]any{"STORE_DIR": dir}, "env_from": []any{"TOKEN"},
			}),
			Target: "test",
			Read: func(t *testing.T, resource, key string) (string, bool) {
				sum := sha256.Sum256([]byte(resource + "\x00" + key))
				content, err := os.ReadFile(filepath.Join(dir, hex.EncodeToString(sum[:])))
				if errors.Is(err, fs.ErrNotExist) {
					return "", false
				}
				require.NoError(t, err)
				var object struct {
					Spec json.RawMessage `json:"spec"`
				}
				require.NoError(t, json.Unmarshal(content, &object))
				return string(object.Spec), true
			},
			Count:   func(t *testing.T) int { return len(objects(t)) },
			Refuses: func(name string) bool { return !utf8.ValidString(name) },
			Intact: func(t *testing.T) {
				entries, err := os.ReadDir(wd)
				require.NoError(t, err)
				require.Empty(t, entries)
			},
			Secrets: []string{token, "pa55word"},
		}
	})
}
