package file_test

import (
	"maps"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/file"
)

func openReload(t *testing.T, dir string, more driver.Options, script string, args ...any) driver.Driver {
	t.Helper()
	reload := driver.Options{"command": append([]any{"sh", "-c", script, "sh"}, args...)}
	maps.Copy(reload, more)
	vars := map[string]string{"PATH": os.Getenv("PATH"), "TOKEN": "s3cr3t-value", "RECONCILER_DATABASE_URL": "postgres://u:p@h/d"}
	e := env()
	e.Getenv = func(name string) string { return vars[name] }
	d, err := file.Kind().Open("test", driver.Options{"dir": dir, "reload": map[string]any(reload)}, e)
	require.NoError(t, err)
	return d
}

func TestTheReloadCommandRunsAfterEveryChange(t *testing.T) {
	t.Parallel()

	dir, out := filepath.Join(t.TempDir(), "target"), filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, syscall.Mkfifo(out, 0o600))
	d := openReload(t, dir, driver.Options{"debounce": "0s"}, `cat "$1"/apps/*.json > "$2"`, dir, out)
	// Reading waits for the command.
	read := func() string {
		content, err := os.ReadFile(out)
		require.NoError(t, err)
		return string(content)
	}
	requireDone(t, d.Apply(t.Context(), object("a", `1`)))
	require.Equal(t, "1\n", read())
	requireDone(t, d.Apply(t.Context(), object("b", `2`)))
	require.Equal(t, "1\n2\n", read())
	requireDone(t, d.Delete(t.Context(), object("a", `1`).Ref))
	require.Equal(t, "2\n", read())

	requireDone(t, d.Apply(t.Context(), object("b", `2`)))
	requireDone(t, d.Delete(t.Context(), object("a", `1`).Ref))
	require.NoError(t, d.Close(t.Context()), "a run for unchanged files would wait for its reader")
	require.NoFileExists(t, filepath.Join(dir, ".reconciler-reload"))
}

func TestCloseRunsTheReloadThatIsLeft(t *testing.T) {
	t.Parallel()

	dir, out := t.TempDir(), filepath.Join(t.TempDir(), "out")
	d := openReload(t, dir, driver.Options{"debounce": "1m"}, `cat "$1"/apps/*.json > "$2"; env >> "$2"`, dir, out)
	requireDone(t, d.Apply(t.Context(), object("a", `1`)))
	requireDone(t, d.Apply(t.Context(), object("b", `2`)))
	require.NoFileExists(t, out)
	require.NoError(t, d.Close(t.Context()))
	have, err := os.ReadFile(out)
	require.NoError(t, err)
	require.Regexp(t, `^1\n2\n(PATH=[^\n]*\n|PWD=[^\n]*\n|_=[^\n]*\n|SHLVL=[^\n]*\n|OLDPWD=[^\n]*\n)+$`, string(have)) // C69
}

// C69.
func TestTheTroubleOfAReloadIsShownWithoutSecrets(t *testing.T) {
	t.Parallel()

	d := openReload(t, t.TempDir(), driver.Options{"debounce": "1m", "env_from": []any{"TOKEN"}},
		`echo "first line
bad token $TOKEN" >&2; exit 3`)
	requireDone(t, d.Apply(t.Context(), object("a", `1`)))
	require.NoError(t, d.(driver.Troubled).Trouble())
	const text = "reload command: exit status 3: first line bad token [TOKEN]"
	require.EqualError(t, d.Close(t.Context()), text)
	require.EqualError(t, d.(driver.Troubled).Trouble(), text)
}

func TestAReloadThatTakesTooLongIsKilled(t *testing.T) {
	t.Parallel()

	d := openReload(t, t.TempDir(), driver.Options{"debounce": "1m", "timeout": "100ms"}, `sleep 1000 & wait`)
	requireDone(t, d.Apply(t.Context(), object("a", `1`)))
	require.EqualError(t, d.Close(t.Context()), "reload command: the command was stopped: it took longer than 100ms")
}
