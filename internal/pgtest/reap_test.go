//go:build long

package pgtest

import (
	"bufio"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgserver"
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

// holdOn prints which server this process uses and stays until its standard input ends.
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

// startChild starts a process that uses a server, with its own temporary files and so its own shared servers.
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

func loaded(t *testing.T, dir string) *instance {
	t.Helper()
	s, err := pgserver.Load(dir)
	require.NoError(t, err)
	return &instance{Server: s}
}

func requireGone(t *testing.T, i *instance) {
	t.Helper()
	require.Eventually(t, func() bool {
		_, err := os.Stat(i.Dir)
		return os.IsNotExist(err)
	}, cleanupTimeout, 50*time.Millisecond, "directory of the server")
	require.False(t, pgserver.Answers(t.Context(), i.url(superuser, "postgres")))
}

func TestServerEndsWithAKilledProcess(t *testing.T) {
	t.Parallel()
	c := startChild(t, "own", tempFor(t))
	i := loaded(t, c.dir)
	require.True(t, pgserver.Answers(t.Context(), i.url(superuser, "postgres")))
	c.kill(t)
	requireGone(t, i)
}

// A lock ends with its file, and a file without references is closed by the garbage collector.
func TestReaperHoldsItsLockToTheEnd(t *testing.T) {
	t.Parallel()
	c := startChild(t, "own", tempFor(t), "GOMEMLIMIT=1") // its reaper collects garbage all the time
	users, err := os.Open(filepath.Join(c.dir, pgserver.UsersLock))
	require.NoError(t, err)
	defer users.Close()
	c.kill(t)
	require.Eventually(t, func() bool {
		i, err := pgserver.Load(c.dir)
		return err == nil && i != nil && i.Ending || !pgserver.IsAt(users, filepath.Join(c.dir, pgserver.UsersLock))
	}, cleanupTimeout, time.Millisecond)
	require.NoError(t, pgserver.Flock(users, syscall.LOCK_SH))
	require.False(t, pgserver.IsAt(users, filepath.Join(c.dir, pgserver.UsersLock)), "a share of a server that is being ended")
}

func TestProcessesShareAServerUntilTheLastOneIsGone(t *testing.T) {
	t.Parallel()
	temp := tempFor(t)
	first := startChild(t, "shared", temp)
	second := startChild(t, "shared", temp)
	require.Equal(t, first.url, second.url)
	i := loaded(t, first.dir)

	first.kill(t)
	users, err := os.Open(filepath.Join(first.dir, pgserver.UsersLock))
	require.NoError(t, err)
	require.True(t, pgserver.IsBusy(pgserver.Flock(users, syscall.LOCK_EX|syscall.LOCK_NB)), "the second one still holds its share")
	require.NoError(t, users.Close())
	require.True(t, pgserver.Answers(t.Context(), i.url(superuser, "postgres")))

	require.NoError(t, second.stdin.Close())
	require.NoError(t, second.cmd.Wait())
	requireGone(t, i)
}

// firstServer starts a server with a database by which it is known again. What runs in its directory ends with the test.
func firstServer(t *testing.T) (dir string, i *instance) {
	t.Helper()
	dir = filepath.Join(baseDir(), pgserver.Unique("own_"))
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
	require.NoError(t, i.Save())
	i, err := findOrStart(t.Context(), dir, 0, start)
	require.NoError(t, err)
	require.NoError(t, i.admin(t.Context(), "postgres", "CREATE DATABASE of_the_first"), "another server")
}

// A server that does not answer at once may be in use, and busy.
func TestJoinersWaitForAServerThatIsBusy(t *testing.T) {
	t.Parallel()
	dir, i := firstServer(t)

	line := NewLine(t, i.url(superuser, "postgres"))
	var asked atomic.Int32
	line.Startup = func(m *pgproto3.StartupMessage) {
		if asked.Add(1) <= 3 {
			m.Parameters["database"] = "missing"
		}
	}
	there, err := url.Parse(line.URL)
	require.NoError(t, err)
	i.Port, err = strconv.Atoi(there.Port())
	require.NoError(t, err)
	require.NoError(t, i.Save())
	found, err := findOrStart(t.Context(), dir, 0, start)
	require.NoError(t, err)
	require.Equal(t, i.Port, found.Port)
	require.Greater(t, asked.Load(), int32(3))
	require.ErrorContains(t, found.admin(t.Context(), "postgres", "CREATE DATABASE of_the_first"), "already exists")
}
