package file_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// pipe makes a named pipe that nobody reads or writes.
func pipe(t *testing.T, elements ...string) string {
	t.Helper()
	path := filepath.Join(elements...)
	require.NoError(t, syscall.Mkfifo(path, 0o600))
	return path
}

// promptly fails the test when something waits for a pipe.
func promptly(t *testing.T, do func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	select {
	case <-done:
	case <-time.After(pgtest.Patience):
		require.FailNow(t, "it waits for a named pipe")
	}
}

// Whatever stands as a named pipe in a target's directory, no call waits for it.
func TestF29_NamedPipesHangNothing(t *testing.T) {
	t.Parallel()
	all := func(t *testing.T, d driver.Driver) (apply, remove driver.Outcome) {
		t.Helper()
		ref := driver.Ref{Target: "test", Resource: "apps", Key: "a"}
		promptly(t, func() {
			remove = d.Delete(t.Context(), ref)
			apply = d.Apply(t.Context(), driver.Object{Ref: ref, Spec: []byte(`{}`)})
			for _, err := range d.(driver.Lister).List(t.Context(), []string{"apps"}) {
				_ = err
			}
			_ = d.Close(t.Context())
		})
		return apply, remove
	}
	t.Run("WordOfAReload", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		word := pipe(t, dir, ".reconciler-reload")
		apply, remove := all(t, openReload(t, dir, nil, `exit 0`))
		require.Equal(t, driver.Done(), apply)
		require.Equal(t, driver.Done(), remove)
		require.NoFileExists(t, word)
	})
	t.Run("Object", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		require.NoError(t, os.Mkdir(filepath.Join(dir, "apps"), 0o700))
		pipe(t, dir, "apps", "a.json")
		apply, remove := all(t, open(t, dir, nil))
		require.Equal(t, driver.Done(), apply)
		require.Equal(t, driver.Done(), remove)
		requireFile(t, filepath.Join(dir, "apps", "a.json"), "{}\n")
	})
	t.Run("Resource", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		pipe(t, dir, "apps")
		apply, remove := all(t, open(t, dir, nil))
		require.Equal(t, driver.VerdictBackoff, apply.Verdict)
		require.Equal(t, driver.Done(), remove)
	})
	t.Run("Directory", func(t *testing.T) {
		t.Parallel()
		dir := filepath.Join(t.TempDir(), "target")
		require.NoError(t, os.Mkdir(dir, 0o700))
		d := open(t, dir, nil)
		require.NoError(t, os.Remove(dir))
		pipe(t, dir)
		apply, remove := all(t, d)
		require.Equal(t, driver.VerdictUnreachable, apply.Verdict)
		require.Equal(t, driver.VerdictUnreachable, remove.Verdict)
	})
}
