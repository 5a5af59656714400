//go:build long

package pgtest

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/devdb"
)

const childEnv = "RECONCILER_PGTEST_CHILD" // what TestChild shall do

// TestChild is the body of child processes. In an ordinary run there is nothing for it to do.
func TestChild(t *testing.T) { //nolint:paralleltest // it is the only test of its process
	switch os.Getenv(childEnv) {
	case "own":
		holdOn(t, Server(t).instance)
	case "shared":
		holdOn(t, quiet.join(t))
	}
}

// holdOn says which server this process uses and stays until its standard input ends.
func holdOn(t *testing.T, i *instance) {
	t.Helper()
	_, err := os.Stdout.WriteString("uses " + i.Dir + " " + i.url(superuser, "postgres") + "\n")
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, os.Stdin)
	require.NoError(t, err)
}

type child struct {
	cmd   *exec.Cmd
	stdin io.Closer
	dir   string
	url   string
}

// startChild starts a process that uses a server, with temporary files, and so shared servers, of its own.
func startChild(t *testing.T, what, temp string, env ...string) *child {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestChild$")
	cmd.Env = slices.Concat(os.Environ(), []string{childEnv + "=" + what, "TMPDIR=" + temp}, env)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	c := &child{cmd: cmd, stdin: stdin}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); len(fields) == 3 && fields[0] == "uses" {
			c.dir, c.url = fields[1], fields[2]
			return c
		}
	}
	t.Fatalf("child %s ended without a server", what)
	return nil
}

func (c *child) kill(t *testing.T) {
	t.Helper()
	require.NoError(t, c.cmd.Process.Kill())
	require.Error(t, c.cmd.Wait())
}

// tempFor is a directory that the user postgres gets through to, unlike t.TempDir.
func tempFor(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pgtest") //nolint:usetesting // see above
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755))
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

func requireGone(t *testing.T, i *instance) {
	t.Helper()
	require.Eventually(t, func() bool {
		_, err := os.Stat(i.Dir)
		return os.IsNotExist(err)
	}, reapTimeout, 50*time.Millisecond, "directory of the server")
	require.False(t, i.answers(t.Context()))
}

func TestServerEndsWithAKilledProcess(t *testing.T) {
	t.Parallel()
	c := startChild(t, "own", tempFor(t))
	i, err := load(c.dir)
	require.NoError(t, err)
	require.True(t, i.answers(t.Context()))
	c.kill(t)
	requireGone(t, i)
}

// A lock ends with its file, and a file that nobody mentions any more is closed by the garbage collector.
func TestReaperHoldsItsLockToTheEnd(t *testing.T) {
	t.Parallel()
	c := startChild(t, "own", tempFor(t), "GOMEMLIMIT=1") // its reaper collects garbage all the time
	users, err := os.Open(filepath.Join(c.dir, usersLock))
	require.NoError(t, err)
	defer users.Close()
	c.kill(t)
	require.Eventually(t, func() bool {
		i, err := load(c.dir)
		return err == nil && i != nil && i.Ending || !devdb.IsAt(users, filepath.Join(c.dir, usersLock))
	}, reapTimeout, time.Millisecond)
	require.NoError(t, devdb.Flock(users, syscall.LOCK_SH))
	require.False(t, devdb.IsAt(users, filepath.Join(c.dir, usersLock)), "a share of a server that is being ended")
}

// What a reaper that died over it has left of a directory is not the server that lives under its former name by now.
func TestSweepOfWhatIsLeftOfADirectoryTouchesNoOther(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	dir := filepath.Join(base, "server")
	users, err := join(dir)
	require.NoError(t, err)
	require.NoError(t, (&instance{Dir: dir, Local: newLocal(dir, "none")}).save())
	left := removedName(dir)
	require.NoError(t, retire(dir, left))
	require.NoError(t, users.Close())
	current, err := join(dir)
	require.NoError(t, err)
	defer current.Close()

	sweep(t.Context(), base, dir)
	require.NoDirExists(t, left)
	i, err := load(dir)
	require.NoError(t, err)
	require.Nil(t, i)
}

func TestProcessesShareAServerUntilTheLastOneIsGone(t *testing.T) {
	t.Parallel()
	temp := tempFor(t)
	first := startChild(t, "shared", temp)
	second := startChild(t, "shared", temp)
	require.Equal(t, first.url, second.url)
	i, err := load(first.dir)
	require.NoError(t, err)

	first.kill(t)
	users, err := os.Open(filepath.Join(first.dir, usersLock))
	require.NoError(t, err)
	require.True(t, isBusy(devdb.Flock(users, syscall.LOCK_EX|syscall.LOCK_NB)), "the second one still holds its share")
	require.NoError(t, users.Close())
	require.True(t, i.answers(t.Context()))

	require.NoError(t, second.stdin.Close())
	require.NoError(t, second.cmd.Wait())
	requireGone(t, i)
}

func TestSweepRemovesOnlyWhatNobodyUses(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	used, err := join(filepath.Join(base, "used"))
	require.NoError(t, err)
	defer used.Close()
	dead, err := join(filepath.Join(base, "dead"))
	require.NoError(t, err)
	require.NoError(t, dead.Close())
	kept, err := join(filepath.Join(base, "kept"))
	require.NoError(t, err)
	require.NoError(t, kept.Close())
	require.NoError(t, os.Mkdir(filepath.Join(base, "young"), 0o755))
	stray := filepath.Join(base, "stray")
	require.NoError(t, os.Mkdir(stray, 0o755))
	long := time.Now().Add(-2 * strayAge)
	require.NoError(t, os.Chtimes(stray, long, long))

	sweep(t.Context(), base, filepath.Join(base, "kept"))

	entries, err := os.ReadDir(base)
	require.NoError(t, err)
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	require.Equal(t, []string{"kept", "used", "young"}, names)
}

func TestReapLeavesADirectoryThatIsSomebodyElsesByNow(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "server")
	old, err := join(dir)
	require.NoError(t, err)
	defer old.Close()
	require.NoError(t, os.RemoveAll(dir))
	current, err := join(dir)
	require.NoError(t, err)
	defer current.Close()

	require.NoError(t, reap(t.Context(), old, dir))
	require.True(t, devdb.IsAt(current, filepath.Join(dir, usersLock)))
	require.NoError(t, reap(t.Context(), current, dir))
	require.NoDirExists(t, dir)
}

// firstServer starts a server with a database by which it is known again. What runs in its directory ends with the test.
func firstServer(t *testing.T) (dir string, i *instance) {
	t.Helper()
	dir = filepath.Join(baseDir(), uniqueName("own"))
	users, i, err := obtain(t.Context(), dir, 0, start)
	require.NoError(t, err)
	t.Cleanup(func() { _ = users.Close() }) // Its reaper ends it then.
	require.NoError(t, i.admin(t.Context(), "postgres", "CREATE DATABASE of_the_first"))
	return dir, i
}

// The engine goes on ending a server after the reaper has given up waiting for it: until then the server answers.
func TestNobodyJoinsAServerWhoseReaperGaveUp(t *testing.T) {
	t.Parallel()
	dir, i := firstServer(t)

	i.Ending = true
	require.NoError(t, i.save())
	i, err := findOrStart(t.Context(), dir, 0, start)
	require.NoError(t, err)
	require.NoError(t, i.admin(t.Context(), "postgres", "CREATE DATABASE of_the_first"), "another server")
}

// A server that does not answer at once may be in use, and busy.
func TestJoinersWaitForAServerThatIsBusy(t *testing.T) {
	t.Parallel()
	dir, i := firstServer(t)

	var config net.ListenConfig
	busy, err := config.Listen(t.Context(), "tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	var people sync.WaitGroup
	port := i.Port
	people.Go(func() { deafAtFirst(busy, port, 3) })
	defer people.Wait()
	defer busy.Close()
	there, err := netip.ParseAddrPort(busy.Addr().String())
	require.NoError(t, err)
	i.Port = int(there.Port())
	require.NoError(t, i.save())
	i, err = findOrStart(t.Context(), dir, 0, start)
	require.NoError(t, err)
	require.Equal(t, int(there.Port()), i.Port)
	require.ErrorContains(t, i.admin(t.Context(), "postgres", "CREATE DATABASE of_the_first"), "already exists")
}

// deafAtFirst passes what comes on to a port of this machine, but hangs up on the first n.
func deafAtFirst(listener net.Listener, port, n int) {
	for ; ; n-- {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		if n > 0 {
			_ = conn.Close()
			continue
		}
		server, err := new(net.Dialer).DialContext(context.Background(), "tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			_ = conn.Close()
			continue
		}
		go func() { _, _ = io.Copy(server, conn); _ = server.Close() }()
		go func() { _, _ = io.Copy(conn, server); _ = conn.Close() }()
	}
}

func TestReaperThatGivesUpLeavesAMark(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "server")
	users, err := join(dir)
	require.NoError(t, err)
	defer users.Close()
	i := &instance{Dir: dir, Container: newContainer("none")}
	require.NoError(t, i.save())

	ended, end := context.WithCancel(t.Context())
	end()
	require.ErrorIs(t, reap(ended, users, dir), context.Canceled)
	i, err = load(dir)
	require.NoError(t, err)
	require.True(t, i.Ending)
}

// A server's directory vanishes at once: whoever joined it while it was being emptied would lose what it makes there.
func TestNobodyJoinsADirectoryThatIsBeingRemoved(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	dir := filepath.Join(base, "server")
	old, err := join(dir)
	require.NoError(t, err)
	data := filepath.Join(dir, "data")
	require.NoError(t, os.Mkdir(data, 0o755))
	for i := range 5_000 {
		require.NoError(t, os.WriteFile(filepath.Join(data, strconv.Itoa(i)), nil, 0o600))
	}
	gone := make(chan error)
	go func() { gone <- errors.Join(reap(t.Context(), old, dir), old.Close()) }()

	require.Eventually(t, func() bool { return !devdb.IsAt(old, filepath.Join(dir, usersLock)) }, reapTimeout, time.Microsecond)
	current, err := join(dir)
	require.NoError(t, err)
	defer current.Close()
	require.NoDirExists(t, data)
	require.NoError(t, <-gone)
	require.True(t, devdb.IsAt(current, filepath.Join(dir, usersLock)))
	entries, err := os.ReadDir(base)
	require.NoError(t, err)
	require.Len(t, entries, 1, "of the old directory nothing is left")
}
