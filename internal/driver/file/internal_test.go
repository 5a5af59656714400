package file

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// C26.
func TestOutcomesOfWhatTheSystemSays(t *testing.T) {
	t.Parallel()

	d := &directory{path: t.TempDir()}
	for errno, want := range map[syscall.Errno]driver.Verdict{
		syscall.ENOSPC:       driver.VerdictBackoff, // deletes must go on: they make room
		syscall.EDQUOT:       driver.VerdictBackoff,
		syscall.EROFS:        driver.VerdictUnreachable,
		syscall.EIO:          driver.VerdictUnreachable,
		syscall.ESTALE:       driver.VerdictUnreachable,
		syscall.EACCES:       driver.VerdictBackoff, // while the directory itself can be written
		syscall.EMFILE:       driver.VerdictBackoff,
		syscall.EISDIR:       driver.VerdictBackoff,
		syscall.ENAMETOOLONG: driver.VerdictTerminal,
	} {
		for _, err := range []error{
			&fs.PathError{Op: "openat", Path: "apps/.reconciler-x.tmp", Err: errno},
			&os.LinkError{Op: "renameat", Old: "apps/.reconciler-x.tmp", New: "apps/web.json", Err: errno},
		} {
			o := d.outcome(t.Context(), "write", "apps/web.json", err)
			require.Equal(t, want, o.Verdict, "%v", errno)
			require.EqualError(t, o.Err, "write "+d.path+"/apps/web.json: "+errno.Error())
			require.ErrorIs(t, o.Err, errno)
		}
	}
	require.Equal(t, driver.Done(), d.outcome(t.Context(), "write", "apps/web.json", nil))

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.Equal(t, driver.VerdictBackoff, d.outcome(ctx, "write", "x", syscall.EIO).Verdict, "the call was cut short")
	gone := &directory{path: filepath.Join(d.path, "gone")}
	require.Equal(t, driver.VerdictUnreachable, gone.outcome(t.Context(), "write", "x", syscall.EACCES).Verdict)
	require.Less(t, len(d.outcome(t.Context(), "write", strings.Repeat("x", 5000), syscall.EACCES).Err.Error()), 500)
}

func TestEverythingIsOnDiskBeforeACallIsDone(t *testing.T) {
	t.Parallel()

	var synced []string
	d := &directory{
		path: filepath.Join(t.TempDir(), "new"), create: true, fsync: true, mode: 0o644,
		synced: func(what string) { synced = append(synced, what) },
	}
	long := strings.Repeat("k", 200)
	spec := []byte(`{}`)
	apply := func(key string) []string {
		synced = nil
		obj := driver.Object{Ref: driver.Ref{Resource: "apps", Key: key}, Spec: spec}
		require.Equal(t, driver.Done(), d.Apply(t.Context(), obj))
		return synced
	}
	remove := func(key string) []string {
		synced = nil
		require.Equal(t, driver.Done(), d.Delete(t.Context(), driver.Ref{Resource: "apps", Key: key}))
		return synced
	}
	require.Equal(t, []string{"..", ".", "apps", "file", "apps/" + long + "%"}, apply(long+"x"))
	require.Equal(t, []string{"file", "apps"}, apply("web"))
	require.Equal(t, []string{"file", "apps"}, apply("web"), "nothing changed, but an earlier call may have failed to sync")
	require.Equal(t, []string{"apps"}, remove("web"))
	require.Equal(t, []string{"apps"}, remove("web"))

	d.fsync = false
	require.Empty(t, apply("web"))
	require.Empty(t, remove("web"))
}

// I10: the last moment to turn back is after the temporary file is written.
func TestAnOwnerThatIsDeposedDuringACallReplacesNothing(t *testing.T) {
	t.Parallel()

	ctx, cancel := context.WithCancelCause(t.Context())
	d := &directory{path: t.TempDir(), fsync: true, mode: 0o644}
	obj := driver.Object{Ref: driver.Ref{Resource: "apps", Key: "web"}, Spec: []byte(`1`)}
	require.Equal(t, driver.Done(), d.Apply(ctx, obj))
	d.synced = func(what string) {
		if what == "file" {
			cancel(errors.New("the lease was lost"))
		}
	}
	obj.Spec = []byte(`2`)
	o := d.Apply(ctx, obj)
	require.Equal(t, driver.VerdictBackoff, o.Verdict)
	require.EqualError(t, o.Err, "write "+d.path+"/apps/web.json: the lease was lost")
	content, err := os.ReadFile(filepath.Join(d.path, "apps", "web.json"))
	require.NoError(t, err)
	require.Equal(t, "1\n", string(content))
	entries, err := os.ReadDir(filepath.Join(d.path, "apps"))
	require.NoError(t, err)
	require.Len(t, entries, 1, "the temporary file is gone")
}

func TestContentHashesDoNotDependOnHowAFileIsRead(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(t *rapid.T) {
		content := rapid.StringOf(rapid.RuneFrom([]rune("a\"\\\n\x01é{}"))).Draw(t, "content")
		want := []driver.Hash{driver.HashSpec(driver.StringSpec([]byte(content)))}
		if spec, ok := strings.CutSuffix(content, "\n"); ok && spec != "" && spec[0] != '"' {
			want = append(want, driver.HashSpec([]byte(spec)))
		}
		for _, reader := range []io.Reader{
			strings.NewReader(content), iotest.OneByteReader(strings.NewReader(content)),
			iotest.HalfReader(strings.NewReader(content)), iotest.DataErrReader(strings.NewReader(content)),
		} {
			have, err := contentHashes(reader)
			require.NoError(t, err)
			require.Equal(t, want, have)
		}
	})
	_, err := contentHashes(iotest.ErrReader(syscall.EIO))
	require.ErrorIs(t, err, syscall.EIO)
}

func TestARenderedSpecIsFoundByItsHash(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(t *rapid.T) {
		text := rapid.String().Draw(t, "text")
		for _, spec := range []string{string(driver.StringSpec([]byte(text))), `{"k": 1}`, `[]`, `0`, `null`} {
			content, err := render([]byte(spec))
			require.NoError(t, err)
			hashes, err := contentHashes(strings.NewReader(string(content)))
			require.NoError(t, err)
			require.Contains(t, hashes, driver.HashSpec([]byte(spec)))
		}
	})
}

func TestConcurrentSyncsOfADirectoryAreShared(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		var s dirSyncs
		var runs []chan error
		do := func(dir string) chan error {
			result := make(chan error, 1)
			go func() {
				result <- s.do(dir, func() error {
					finish := make(chan error)
					runs = append(runs, finish)
					return <-finish
				})
			}()
			synctest.Wait()
			return result
		}
		first := do("a")
		require.Len(t, runs, 1)
		// These renamed while the first sync was running: it may have missed them, so they need another one.
		second, third := do("a"), do("a")
		require.Len(t, runs, 1)
		other := do("b")
		require.Len(t, runs, 2, "directories do not wait for each other")

		runs[0] <- nil
		synctest.Wait()
		require.NoError(t, <-first)
		require.Len(t, runs, 3)
		fourth := do("a")
		require.Len(t, runs, 3)
		broken := errors.New("disk broken")
		runs[2] <- broken
		synctest.Wait()
		require.Equal(t, broken, <-second)
		require.Equal(t, broken, <-third)
		require.Len(t, runs, 4)
		runs[3] <- nil
		runs[1] <- nil
		require.NoError(t, <-fourth)
		require.NoError(t, <-other)
		synctest.Wait()
		require.Empty(t, s.dirs, "nothing is kept for directories that nobody syncs")
	})
}
