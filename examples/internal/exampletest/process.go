package exampletest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	stopTimeout = 20 * time.Second
	logPoll     = 10 * time.Millisecond
)

// Build builds the command reconciler in dir and returns its path.
func Build(ctx context.Context, dir string) (string, error) {
	binary := filepath.Join(dir, "reconciler")
	output, err := exec.CommandContext(ctx, "go", "build", "-o", binary, "github.com/pgreconciler/reconciler/cmd/reconciler").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build cmd/reconciler: %w\n%s", err, output)
	}
	return binary, nil
}

// Main builds the command reconciler, sets binary to its path until run returns, and returns the exit code of run. Programs that the
// tests start do not see the configuration of reconciler in the environment.
func Main(binary *string, run func() int) int {
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		if strings.HasPrefix(name, "RECONCILER_") && !strings.HasPrefix(name, "RECONCILER_TEST_") {
			_ = os.Unsetenv(name)
		}
	}
	dir, err := os.MkdirTemp("", "reconciler-example-")
	if err == nil {
		defer func() { _ = os.RemoveAll(dir) }()
		*binary, err = Build(context.Background(), dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return run()
}

// Process is a program that runs until the end of the test.
type Process struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed when it has ended
	err    error         // of Wait; may be read once exited is closed

	mu     sync.Mutex
	output bytes.Buffer // guarded by mu
}

// Run runs a program to its end, which must be a good one.
func Run(t testing.TB, env []string, program string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env = append(os.Environ(), env...)
	output, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s\n%s", cmd, output)
}

// Start starts a program. At the end of the test it is told to end, by SIGTERM, and must end well.
func Start(t testing.TB, env []string, program string, args ...string) *Process {
	t.Helper()
	p := &Process{cmd: exec.CommandContext(context.WithoutCancel(t.Context()), program, args...), exited: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = p, p
	require.NoError(t, p.cmd.Start())
	go func() {
		defer close(p.exited)
		p.err = p.cmd.Wait()
	}()
	t.Cleanup(func() { p.stop(t) })
	return p
}

// Write collects what the program prints.
func (p *Process) Write(text []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.output.Write(text)
}

func (p *Process) printed() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.output.String()
}

// Printed waits until the program has printed something, and returns the first group of the pattern.
func (p *Process) Printed(t testing.TB, pattern string, timeout time.Duration) string {
	t.Helper()
	compiled := regexp.MustCompile(pattern)
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	poll := time.NewTicker(logPoll)
	defer poll.Stop()
	for {
		if found := compiled.FindStringSubmatch(p.printed()); found != nil {
			return found[1]
		}
		select {
		case <-p.exited:
			t.Fatalf("%s has ended: %v", p.cmd.Path, p.err)
		case <-ctx.Done():
			t.Fatalf("%s has not printed %s within %s", p.cmd.Path, pattern, timeout)
		case <-poll.C:
		}
	}
}

func (p *Process) stop(t testing.TB) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("stop %s: %v", p.cmd.Path, err)
	}
	timeout := time.NewTimer(stopTimeout)
	defer timeout.Stop()
	select {
	case <-p.exited:
	case <-timeout.C:
		t.Errorf("%s has not stopped within %s", p.cmd.Path, stopTimeout)
		_ = p.cmd.Process.Kill()
		<-p.exited
	}
	if p.err != nil {
		t.Errorf("%s: %v", p.cmd.Path, p.err)
	}
	if t.Failed() {
		t.Logf("%s printed:\n%s", p.cmd.Path, p.printed())
	}
}
