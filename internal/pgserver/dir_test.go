package pgserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// joined returns a directory that this process uses until the end of the test, and its share.
func joined(t *testing.T, dir string) *os.File {
	t.Helper()
	users, err := Join(dir)
	require.NoError(t, err)
	t.Cleanup(func() { _ = users.Close() })
	return users
}

func names(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

// What a process that died while it removed a directory has left is not the server that lives under its former name by now.
func TestSweepOfWhatIsLeftOfADirectoryTouchesNoOther(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	dir := filepath.Join(base, "server")
	users := joined(t, dir)
	require.NoError(t, (&Server{Dir: dir, Local: NewLocal(dir, "none")}).Save())
	left := dir + ".removed"
	require.NoError(t, retire(dir, left))
	require.NoError(t, users.Close())
	joined(t, dir)

	Sweep(t.Context(), base, dir)
	require.NoDirExists(t, left)
	s, err := Load(dir)
	require.NoError(t, err)
	require.Nil(t, s)
}

func TestSweepRemovesOnlyWhatNoProcessUses(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	joined(t, filepath.Join(base, "used"))
	require.NoError(t, joined(t, filepath.Join(base, "dead")).Close())
	require.NoError(t, joined(t, filepath.Join(base, "excepted")).Close())
	long := time.Now().Add(-2 * strayAge)
	for _, name := range []string{"young", "stray", "kept"} {
		dir := filepath.Join(base, name)
		require.NoError(t, os.Mkdir(dir, 0o755))
		if name == "kept" {
			require.NoError(t, (&Server{Dir: dir, Keep: true}).Save())
		}
		if name != "young" {
			require.NoError(t, os.Chtimes(dir, long, long))
		}
	}

	Sweep(t.Context(), base, filepath.Join(base, "excepted"))
	require.Equal(t, []string{"excepted", "kept", "used", "young"}, names(t, base))
}

func TestRemoveLeavesADirectoryThatIsAnotherServersByNow(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "server")
	old := joined(t, dir)
	require.NoError(t, os.RemoveAll(dir))
	current := joined(t, dir)

	require.NoError(t, Remove(t.Context(), old, dir))
	require.True(t, IsAt(current, filepath.Join(dir, UsersLock)))
	require.NoError(t, Remove(t.Context(), current, dir))
	require.NoDirExists(t, dir)
}

func TestRemoveThatGivesUpLeavesAMark(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "server")
	users := joined(t, dir)
	require.NoError(t, (&Server{Dir: dir, Container: &Container{Name: "none"}}).Save())

	ended, end := context.WithCancel(t.Context())
	end()
	require.ErrorIs(t, Remove(ended, users, dir), context.Canceled)
	s, err := Load(dir)
	require.NoError(t, err)
	require.True(t, s.Ending)
}

// A server's directory vanishes at once: a process that joined it while it was being emptied would lose what it makes there.
func TestNoProcessJoinsADirectoryThatIsBeingRemoved(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	dir := filepath.Join(base, "server")
	old := joined(t, dir)
	data := filepath.Join(dir, "data")
	require.NoError(t, os.Mkdir(data, 0o755))
	for i := range 5_000 {
		require.NoError(t, os.WriteFile(filepath.Join(data, strconv.Itoa(i)), nil, 0o600))
	}
	gone := make(chan error)
	go func() { gone <- errors.Join(Remove(t.Context(), old, dir), old.Close()) }()

	require.Eventually(t, func() bool { return !IsAt(old, filepath.Join(dir, UsersLock)) }, time.Minute, time.Microsecond)
	current := joined(t, dir)
	require.NoDirExists(t, data)
	require.NoError(t, <-gone)
	require.True(t, IsAt(current, filepath.Join(dir, UsersLock)))
	require.Equal(t, []string{"server"}, names(t, base), "nothing is left of the old directory")
}

// atOnce calls start for many directories in base at the same time.
func atOnce(t *testing.T, base string, start func(dir string) error) (count int) {
	t.Helper()
	const servers = 40
	started := make(chan error, servers)
	for n := range servers {
		go func() { started <- start(filepath.Join(base, strconv.Itoa(n))) }()
	}
	for range servers {
		require.NoError(t, <-started)
	}
	return servers
}

func TestProcessesThatStartAtOnceDoNotSweepEachOther(t *testing.T) {
	t.Parallel()
	base := filepath.Join(t.TempDir(), "base")
	count := atOnce(t, base, func(dir string) error {
		users, err := Join(dir)
		if err == nil {
			t.Cleanup(func() { _ = users.Close() })
			Sweep(t.Context(), base, dir)
		}
		return err
	})
	require.Len(t, names(t, base), count)
}

func TestLastServerRemovesTheBaseWhileOthersCome(t *testing.T) {
	t.Parallel()
	base := filepath.Join(t.TempDir(), "base")
	atOnce(t, base, func(dir string) error {
		users, err := Join(dir)
		if err == nil {
			_, err = os.Stat(filepath.Join(dir, UsersLock))
			err = errors.Join(err, Remove(t.Context(), users, dir), users.Close())
		}
		return err
	})
	require.NoDirExists(t, base)
}

func TestBaseThatOthersCanWriteToIsRefused(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	require.NoError(t, os.Chmod(base, 0o777))
	_, err := Join(filepath.Join(base, "server"))
	require.EqualError(t, err, base+" is not a directory that only this user can write to: remove it, or set TMPDIR")
	require.Empty(t, names(t, base))
}

func TestStateFile(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"{", "{}", `{"local": 3}`} {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, stateFile), []byte(text), 0o600))
		_, err := Load(dir)
		require.Error(t, err, text)
		require.Error(t, Remove(t.Context(), joined(t, dir), dir))
		require.FileExists(t, filepath.Join(dir, stateFile), "what cannot be read is left alone")
	}
	dir := t.TempDir()
	none, err := Load(dir)
	require.NoError(t, err)
	require.Nil(t, none)

	want := &Server{
		Dir: dir, Port: 23456, Version: 15, Keep: true, Ending: true,
		Container: &Container{Name: "n", Image: "i"}, Local: &Local{Bin: "b", Data: "d"},
	}
	require.NoError(t, want.Save())
	got, err := Load(dir)
	require.NoError(t, err)
	require.Equal(t, want, got)
}

func TestOwnServerIsAliveBeforeItHasArguments(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{})
	// This process stands for a server that starts: its arguments do not name the data directory.
	l := &Local{Data: "/nowhere/data", Child: os.Getpid(), Ended: ended}
	require.NoError(t, l.Alive(t.Context()))
	close(ended)
	require.EqualError(t, l.Alive(t.Context()), "the server has ended")
}

func TestProcessThatGotTheNumberOfADeadServerIsLeftAlone(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "server")
	users := joined(t, dir)
	bystander := exec.CommandContext(t.Context(), "sleep", "60")
	require.NoError(t, bystander.Start())
	l := NewLocal(dir, "/nowhere")
	require.NoError(t, os.Mkdir(l.Data, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(l.Data, "postmaster.pid"), fmt.Appendf(nil, "%d\n", bystander.Process.Pid), 0o600))
	require.NoError(t, (&Server{Dir: dir, Local: l}).Save())
	require.EqualError(t, l.Alive(t.Context()), "the server has ended")
	require.NoError(t, Remove(t.Context(), users, dir))
	require.NoDirExists(t, dir)
	require.NoError(t, bystander.Process.Signal(syscall.Signal(0)), "it lives")
	require.NoError(t, bystander.Process.Kill())
	_ = bystander.Wait()
}
