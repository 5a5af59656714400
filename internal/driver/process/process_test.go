package process_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/pgreconciler/reconciler/internal/driver/process"
)

// helperFIFO makes the test binary a process that runs a program and never ends by itself.
const helperFIFO = "PROCESS_TEST_HELPER_FIFO"

func TestMain(m *testing.M) {
	if fifo := os.Getenv(helperFIFO); fifo != "" {
		_, err := shell(`exec 9>"$1"; exec sleep 1000`, fifo).Run(context.Background())
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

func shell(script string, args ...string) process.Command {
	return process.Command{
		Args: append([]string{"/bin/sh", "-c", script, "sh"}, args...),
		Env:  []string{"PATH=" + os.Getenv("PATH")},
	}
}

func TestRunReturnsWhatTheProgramSays(t *testing.T) {
	t.Parallel()

	c := shell(`cat; echo problem >&2; exit 3`)
	c.Stdin = []byte("hello")
	result, err := c.Run(t.Context())
	require.NoError(t, err)
	require.Equal(t, process.Result{Code: 3, Stdout: []byte("hello"), Stderr: []byte("problem\n")}, result)
	require.Equal(t, "exit status 3", result.String())
}

func TestRunReportsTheSignalThatEndedTheProgram(t *testing.T) {
	t.Parallel()

	result, err := shell(`kill -SEGV $$`).Run(t.Context())
	require.NoError(t, err)
	require.Equal(t, -1, result.Code)
	require.Equal(t, "killed by a signal (segmentation fault)", result.String())
}

func TestRunDoesNotMindAProgramThatReadsNothing(t *testing.T) {
	t.Parallel()

	c := shell(`exec 0<&-; exit 0`)
	c.Stdin = bytes.Repeat([]byte("x"), 4<<20)
	result, err := c.Run(t.Context())
	require.NoError(t, err)
	require.Zero(t, result.Code)
}

// C69.
func TestRunHandsDownNoEnvironmentOfItsOwn(t *testing.T) {
	t.Parallel()

	c := process.Command{Args: []string{"/usr/bin/env"}}
	result, err := c.Run(t.Context())
	require.NoError(t, err)
	require.Empty(t, result.Stdout)

	c.Env = []string{"ONLY=this"}
	result, err = c.Run(t.Context())
	require.NoError(t, err)
	require.Equal(t, "ONLY=this\n", string(result.Stdout))
}

func TestRunUsesTheDirectory(t *testing.T) {
	t.Parallel()

	c := shell("pwd -P")
	c.Dir = t.TempDir()
	result, err := c.Run(t.Context())
	require.NoError(t, err)
	resolved, err := filepath.EvalSymlinks(c.Dir)
	require.NoError(t, err)
	require.Equal(t, resolved+"\n", string(result.Stdout))
}

// I9.
func TestRunKeepsOnlyTheEndOfALongOutput(t *testing.T) {
	t.Parallel()

	result, err := shell(`i=0; while [ $i -lt 20000 ]; do echo "line $i"; i=$((i+1)); done; echo last`).Run(t.Context())
	require.NoError(t, err)
	require.Len(t, result.Stdout, 8<<10)
	require.True(t, strings.HasSuffix(string(result.Stdout), "line 19999\nlast\n"))
}

func TestRunHandsTheOutputToAWriter(t *testing.T) {
	t.Parallel()

	var out bytes.Buffer
	c := shell(`echo one; echo two`)
	c.Stdout = &out
	result, err := c.Run(t.Context())
	require.NoError(t, err)
	require.Equal(t, "one\ntwo\n", out.String())
	require.Empty(t, result.Stdout)
}

func TestRunSaysThatTheProgramCannotBeStarted(t *testing.T) {
	t.Parallel()

	_, err := process.Command{Args: []string{"/no/such/program"}}.Run(t.Context())
	var startErr *process.StartError
	require.ErrorAs(t, err, &startErr)
	require.EqualError(t, err, "start the command: fork/exec /no/such/program: no such file or directory")
}

func TestRunStartsNothingOnceTheContextEnded(t *testing.T) {
	t.Parallel()

	cause := errors.New("the target was handed over")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	file := filepath.Join(t.TempDir(), "started")
	_, err := shell(`touch "$1"`, file).Run(ctx)
	var stopped *process.StoppedError
	require.ErrorAs(t, err, &stopped)
	require.ErrorIs(t, err, cause)
	require.EqualError(t, err, "the command was stopped: the target was handed over")
	require.NoFileExists(t, file)
}

// A named pipe tells both moments without waiting for time to pass: opening it returns when the program has
// it open, and reading returns when the last process that had it is gone.
func fifo(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, syscall.Mkfifo(path, 0o600))
	return path
}

func requireAllGone(t *testing.T, pipe *os.File) {
	_, err := io.ReadAll(pipe)
	require.NoError(t, err)
	require.NoError(t, pipe.Close())
}

func TestRunStopsTheWholeGroupWhenTheContextEnds(t *testing.T) {
	t.Parallel()

	for name, script := range map[string]string{
		"TheProgramItself":               `exec 9>"$1"; exec sleep 1000`,
		"GrandchildHoldingTheOutput":     `exec 9>"$1"; sleep 1000 & wait`,
		"GrandchildThatIgnoresSIGTERM":   `exec 9>"$1"; (trap "" TERM; while :; do sleep 1000; done) & wait`,
		"ProgramThatIgnoresSIGTERM":      `exec 9>"$1"; trap "" TERM; while :; do sleep 1000; done`,
		"ProgramThatExitsWellOnSIGTERM":  `exec 9>"$1"; trap "exit 0" TERM; sleep 1000 & wait`,
		"GrandchildWithClosedDescriptor": `exec 9>"$1"; sleep 1000 >/dev/null 2>&1 </dev/null & wait`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			path := fifo(t)
			cause := errors.New("too slow")
			ctx, cancel := context.WithCancelCause(t.Context())
			opened := make(chan *os.File, 1)
			go func() {
				pipe, _ := os.Open(path)
				opened <- pipe
				cancel(cause)
			}()
			c := shell(script, path)
			c.Grace = 50 * time.Millisecond
			_, err := c.Run(ctx)
			require.EqualError(t, err, "the command was stopped: too slow")
			requireAllGone(t, <-opened)
		})
	}
}

func TestRunLeavesNothingBehindWhenTheProgramExits(t *testing.T) {
	t.Parallel()

	path := fifo(t)
	opened := make(chan *os.File, 1)
	go func() {
		pipe, _ := os.Open(path)
		opened <- pipe
	}()
	c := shell(`exec 9>"$1"; sleep 1000 & exit 0`, path)
	c.Grace = 50 * time.Millisecond
	result, err := c.Run(t.Context())
	require.NoError(t, err)
	require.Zero(t, result.Code)
	requireAllGone(t, <-opened)
}

// C33.
func TestProgramDiesWithTheProcessThatStartedIt(t *testing.T) {
	t.Parallel()

	path := fifo(t)
	helper := exec.Command(os.Args[0])
	helper.Env = append(os.Environ(), helperFIFO+"="+path)
	require.NoError(t, helper.Start())
	pipe, err := os.Open(path)
	require.NoError(t, err)
	require.NoError(t, helper.Process.Kill())
	require.EqualError(t, helper.Wait(), "signal: killed")
	requireAllGone(t, pipe)
}

func TestLook(t *testing.T) {
	t.Parallel()

	path, err := process.Look("sh")
	require.NoError(t, err)
	require.True(t, filepath.IsAbs(path))

	_, err = process.Look("no-such-program-anywhere")
	require.EqualError(t, err, "executable file not found in $PATH")
	_, err = process.Look("/no/such/program")
	require.EqualError(t, err, "stat /no/such/program: no such file or directory")
	_, err = process.Look(t.TempDir())
	require.EqualError(t, err, "is a directory")

	path, err = process.Look("./testdata/program")
	require.NoError(t, err)
	dir, err := os.Getwd()
	require.NoError(t, err)
	require.Equal(t, filepath.Join(dir, "testdata", "program"), path)
}

// C69.
func TestEnvironHoldsNothingOfOurs(t *testing.T) {
	t.Parallel()

	vars := map[string]string{
		"PATH": "/bin", "HOME": "/root", "RECONCILER_DATABASE_URL": "postgres://u:p@h/d", "PGPASSWORD": "p", "TOKEN": "t",
	}
	environ := process.Environ(func(name string) string { return vars[name] }, map[string]string{"TOKEN": "t", "HOME": "/x"})
	require.Equal(t, []string{"HOME=/x", "PATH=/bin", "TOKEN=t"}, environ)
}

// lateContext has not ended when it is asked for the first time, and has when the program is started.
type lateContext struct {
	context.Context

	asked atomic.Bool
}

func (c *lateContext) Err() error {
	if c.asked.Swap(true) {
		return context.Canceled
	}
	return nil
}

func TestContextThatEndsJustBeforeTheStartIsNoFaultOfTheProgram(t *testing.T) {
	t.Parallel()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := process.Command{Args: []string{"/bin/true"}}.Run(&lateContext{Context: ended})
	var stopped *process.StoppedError
	require.ErrorAs(t, err, &stopped)
	require.ErrorIs(t, err, context.Canceled)
}
