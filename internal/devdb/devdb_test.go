package devdb

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/pgreconciler/reconciler/internal/pgserver"
)

// sleeperEnv has the test binary start a server, say where, and wait for its death.
const sleeperEnv = "RECONCILER_TEST_DEVDB_BASE"

func TestMain(m *testing.M) {
	if base := os.Getenv(sleeperEnv); base != "" {
		s, err := Start(context.Background(), Options{Base: base})
		if err != nil {
			_, _ = fmt.Fprintln(os.Stdout, err)
			os.Exit(1)
		}
		_, _ = fmt.Fprintln(os.Stdout, s.Dir, s.server.Local.Child)
		select {}
	}
	goleak.VerifyTestMain(m)
}

func start(t *testing.T, opts Options) *Server {
	t.Helper()
	s, err := Start(t.Context(), opts)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Stop(context.WithoutCancel(t.Context())) })
	return s
}

// base returns a directory that the server's user can get through to.
func base(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "devdb-test-") //nolint:usetesting // that of a test is closed to others
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o711))
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func query(t *testing.T, url, sql string) (text string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer conn.Close(context.WithoutCancel(t.Context()))
	require.NoError(t, conn.QueryRow(t.Context(), sql).Scan(&text))
	return text
}

func TestServerComesAndGoes(t *testing.T) {
	t.Parallel()
	s := start(t, Options{Base: base(t)})
	require.NoError(t, s.CreateDatabase(t.Context(), "dev"))
	require.Equal(t, "dev postgres", query(t, s.URL("dev"), "SELECT current_database() || ' ' || current_user"))
	require.True(t, strings.HasPrefix(query(t, s.URL("dev"), "SHOW server_version"), strings.SplitN(s.Version, " ", 2)[0]))
	require.Equal(t, fmt.Sprintf("PGPASSFILE=%s/pgpass psql -h 127.0.0.1 -p %d -U postgres dev", s.Dir, s.Port), s.Psql("dev"))
	out, err := exec.CommandContext(t.Context(), "sh", "-c", s.Psql("dev")+" -Atc 'SELECT 1'").CombinedOutput()
	require.NoError(t, err, string(out))
	require.Equal(t, "1\n", string(out))

	_, err = pgx.Connect(t.Context(), strings.Replace(s.URL("dev"), s.password, "wrong", 1))
	require.ErrorContains(t, err, "password authentication failed", "other users of this machine are kept out")
	arguments, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", s.server.Local.Child))
	require.NoError(t, err)
	require.NotContains(t, string(arguments), s.password)

	pid := s.server.Local.Child
	require.NoError(t, s.Stop(t.Context()))
	<-s.Ended()
	require.NoDirExists(t, s.Dir)
	require.ErrorIs(t, syscall.Kill(pid, 0), syscall.ESRCH)
}

func TestEndedIsClosedWhenTheServerDies(t *testing.T) {
	t.Parallel()
	s := start(t, Options{Base: base(t)})
	require.NoError(t, syscall.Kill(s.server.Local.Child, syscall.SIGQUIT))
	<-s.Ended()
	require.NoError(t, s.Stop(t.Context()))
	require.NoDirExists(t, s.Dir)
}

func TestKeepLeavesTheDirectory(t *testing.T) {
	t.Parallel()
	dir := base(t)
	s := start(t, Options{Base: dir, Keep: true})
	require.NoError(t, s.CreateDatabase(t.Context(), "dev"))
	require.NoError(t, s.Stop(t.Context()))
	require.DirExists(t, filepath.Join(s.Dir, "data"))
	require.Contains(t, s.Restart(), "/postgres -D "+s.Dir+"/data")

	next := start(t, Options{Base: dir})
	require.DirExists(t, filepath.Join(s.Dir, "data"), "the next run leaves it alone")
	require.NoError(t, next.Stop(t.Context()))

	// What is said restarts it, with what it had.
	again := exec.CommandContext(t.Context(), "sh", "-c", "exec "+s.Restart())
	again.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	require.NoError(t, again.Start())
	require.Eventually(t, func() bool {
		conn, err := pgx.Connect(t.Context(), s.URL("dev"))
		return err == nil && conn.Close(t.Context()) == nil
	}, time.Minute, 50*time.Millisecond)
	require.Equal(t, "on", query(t, s.URL("dev"), "SHOW fsync"))
	require.NoError(t, pgserver.NewLocal(s.Dir, s.server.Local.Bin).Stop(t.Context(), pgserver.Immediate))
	_ = again.Wait()
}

// A killed run leaves a directory; its server is ended by the kernel, or else by the next run, which removes both.
func TestNextRunRemovesWhatAKilledOneLeft(t *testing.T) {
	t.Parallel()
	dir := base(t)
	killed := exec.CommandContext(t.Context(), os.Args[0])
	killed.Env = append(os.Environ(), sleeperEnv+"="+dir)
	out, err := killed.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, killed.Start())
	var left string
	var pid int
	_, err = fmt.Fscan(out, &left, &pid)
	require.NoError(t, err)
	other := start(t, Options{Base: dir})
	require.DirExists(t, left, "while it lives it is left alone")
	require.NoError(t, killed.Process.Kill())
	_ = killed.Wait()

	next := start(t, Options{Base: dir})
	require.NoDirExists(t, left)
	require.Eventually(t, func() bool {
		arguments, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // a dead process has none
		return !strings.Contains(string(arguments), left)
	}, time.Minute, 10*time.Millisecond)
	require.Equal(t, "1", query(t, next.URL("postgres"), "SELECT '1'"))
	require.Equal(t, "1", query(t, other.URL("postgres"), "SELECT '1'"), "a run that lives is left alone")
}

func TestServerLeftRunningIsEnded(t *testing.T) {
	t.Parallel()
	dir := base(t)
	s := start(t, Options{Base: dir})
	// As after a kill where the kernel does not end the server: no process holds the lock, and the server runs.
	require.NoError(t, syscall.Flock(int(s.users.Fd()), syscall.LOCK_UN))
	start(t, Options{Base: dir})
	<-s.Ended()
	require.NoDirExists(t, s.Dir)
}

func TestStartThatIsCancelledLeavesNothing(t *testing.T) {
	t.Parallel()
	dir := base(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Start(ctx, Options{Base: dir})
	require.Error(t, err)
	require.NoDirExists(t, dir)
}
