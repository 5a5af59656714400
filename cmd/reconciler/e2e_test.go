package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// built is the binary that the end-to-end tests run, made once.
var built struct {
	once sync.Once
	dir  string
	path string
	err  error
}

// binary returns the path of the built binary, whose version is e2e.
func binary(t *testing.T) string {
	t.Helper()
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "reconciler-e2e-"); built.err != nil { //nolint:usetesting // it outlives this test
			return
		}
		built.path = filepath.Join(built.dir, "reconciler")
		build := exec.CommandContext(context.WithoutCancel(t.Context()), "go", "build", "-ldflags", "-X main.version=e2e", "-o", built.path, ".")
		if out, err := build.CombinedOutput(); err != nil {
			built.err = fmt.Errorf("%w\n%s", err, out)
		}
	})
	require.NoError(t, built.err)
	return built.path
}

// program is a process of the binary.
type program struct {
	cmd            *exec.Cmd
	stdout, stderr output
	ended          chan struct{}
}

// launch starts the binary in a place. It is killed at the end of the test, if it still runs.
func (p *place) launch(t *testing.T, args ...string) *program {
	t.Helper()
	proc := &program{cmd: exec.CommandContext(context.WithoutCancel(t.Context()), binary(t), args...), ended: make(chan struct{})}
	proc.cmd.Dir = p.dir
	proc.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + p.dir, "TMPDIR=" + os.TempDir()}, p.environ...)
	proc.cmd.Stdout, proc.cmd.Stderr = &proc.stdout, &proc.stderr
	require.NoError(t, proc.cmd.Start())
	go func() {
		defer close(proc.ended)
		_ = proc.cmd.Wait() // The code is in the process's state.
	}()
	t.Cleanup(func() {
		_ = proc.cmd.Process.Kill()
		<-proc.ended
	})
	return proc
}

func (p *program) signal(t *testing.T, sig syscall.Signal) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(sig))
}

// code waits for the end and returns the exit code, -1 if a signal ended the process.
func (p *program) code(t *testing.T) int {
	t.Helper()
	select {
	case <-p.ended:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(patience):
		require.FailNow(t, "the process does not end", "%s%s", p.stdout.String(), p.stderr.String())
		return 0
	}
}

// emptyTarget writes a config with a target that no row names.
func emptyTarget(t *testing.T, p *place, url string) {
	t.Helper()
	require.NoError(t, os.Mkdir(filepath.Join(p.dir, "eu"), 0o700))
	p.write(t, "reconciler.yaml", fmt.Sprintf("database_url: %q\nlisten: 127.0.0.1:0\ntargets: [{name: eu, driver: file, options: {dir: %q}}]\n", url, filepath.Join(p.dir, "eu")))
}

func TestBinary(t *testing.T) {
	t.Parallel()

	t.Run("KnowsItsVersion", binaryKnowsItsVersion)
	t.Run("MigratesRunsAndDrains", binaryMigratesRunsAndDrains)
	t.Run("EndsAtOnceAtTheSecondSignal", binaryEndsAtOnceAtTheSecondSignal)
	t.Run("SaysWhyItDoesNotStart", binarySaysWhyItDoesNotStart)
	t.Run("ShowsNoSecretToOtherUsers", binaryShowsNoSecretToOtherUsers)
	t.Run("LeavesNothingOfDevAfterSIGTERM", binaryLeavesNothingOfDevAfterSIGTERM)
}

// C34.
func binaryMigratesRunsAndDrains(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	p := newPlace(t)
	emptyTarget(t, p, db.URL)
	up := p.launch(t, "migrate", "up", "-c", "reconciler.yaml")
	require.Zero(t, up.code(t), up.stderr.String())
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		proc := p.launch(t, "run")
		proc.stderr.await(t, "msg=started")
		wait := p.launch(t, "wait", "--timeout", "30s")
		require.Zero(t, wait.code(t), wait.stdout.String()+wait.stderr.String())
		proc.signal(t, sig)
		require.Zero(t, proc.code(t), proc.stderr.String())
		require.Empty(t, proc.stdout.String())
		require.Contains(t, proc.stderr.String(), "msg=stopped")
	}
	status := p.launch(t, "status", "-o", "json")
	require.Zero(t, status.code(t))
	require.Contains(t, status.stdout.String(), `"state": "unowned"`, "the lease was given back")
}

// C64, C65.
func binarySaysWhyItDoesNotStart(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	proc := p.launch(t, "run", "--poll-interval", "5")
	require.Equal(t, 2, proc.code(t))
	require.Equal(t, "reconciler: invalid configuration, 2 problems:\n"+
		"  flag --poll-interval: poll_interval: needs a unit: write \"5s\", \"5m\" or \"5h\" instead of 5\n  "+withoutURL, proc.stderr.String())
	emptyTarget(t, p, "postgres://app:hunter2@127.0.0.1:1/shop")
	proc = p.launch(t, "run")
	require.Equal(t, 3, proc.code(t))
	require.Equal(t, "reconciler: cannot connect to database \"shop\" at 127.0.0.1:1 as user \"app\": connection refused\n", proc.stderr.String())
	require.Empty(t, proc.stdout.String())
}

// C69.
func binaryShowsNoSecretToOtherUsers(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	p := newPlace(t, "RECONCILER_DATABASE_URL="+withPassword(db.URL), "RECONCILER_LOG_LEVEL=debug")
	emptyTarget(t, p, "postgres://nobody@127.0.0.1:1/none")
	proc := p.launch(t, "run")
	proc.stderr.await(t, "msg=started")
	title, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", proc.cmd.Process.Pid))
	require.NoError(t, err)
	require.Equal(t, binary(t)+"\x00run\x00", string(title))
	proc.signal(t, syscall.SIGTERM)
	require.Zero(t, proc.code(t), proc.stderr.String())
	require.NotContains(t, proc.stderr.String(), "hunter2")
	var named string
	require.NoError(t, db.Pool.QueryRow(t.Context(), "SELECT coalesce(string_agg(application_name, ','), '') FROM pg_stat_activity").Scan(&named))
	require.NotContains(t, named, "hunter2")
}

func binaryKnowsItsVersion(t *testing.T) {
	t.Parallel()
	proc := newPlace(t).launch(t, "version")
	require.Zero(t, proc.code(t))
	require.Regexp(t, `^reconciler e2e \(go1\.\d+.*, \w+/\w+\), schema version \d+\n$`, proc.stdout.String())
}

func binaryEndsAtOnceAtTheSecondSignal(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, "CREATE TABLE apps (id int PRIMARY KEY); SELECT reconciler.track('app', 'apps', '{id}', '''eu'''); INSERT INTO apps VALUES (1)")
	p := newPlace(t)
	called := filepath.Join(p.dir, "called")
	p.write(t, "reconciler.yaml", fmt.Sprintf("database_url: %q\nlisten: 127.0.0.1:0\nshutdown_timeout: 10m\ntargets: [{name: eu, driver: exec, timeout: 10m, options: {command: [sh, -c, 'echo > %s; exec sleep 600']}}]\n", db.URL, called))
	proc := p.launch(t, "run")
	require.Eventually(t, func() bool {
		_, err := os.Stat(called)
		return err == nil
	}, patience, 10*time.Millisecond, "%s", outputText{&proc.stderr})
	proc.signal(t, syscall.SIGTERM)
	proc.stderr.await(t, "msg=draining")
	proc.signal(t, syscall.SIGTERM)
	require.Equal(t, 143, proc.code(t))
}

func binaryLeavesNothingOfDevAfterSIGTERM(t *testing.T) {
	t.Parallel()
	proc := newPlace(t).launch(t, "dev", "--example", ownExample(t))
	proc.stdout.await(t, "Ctrl-C ends it.\n")
	d := &devRun{}
	_, _ = d.out.Write([]byte(proc.stdout.String()))
	dir := d.find(t, `Files of the targets:  (\S+)`)
	proc.signal(t, syscall.SIGTERM)
	require.Zero(t, proc.code(t), proc.stderr.String())
	require.NoDirExists(t, dir)
	require.Empty(t, processesOf(t, dir))
	require.True(t, strings.HasSuffix(proc.stdout.String(), "ended; nothing is left behind\n"))
}
