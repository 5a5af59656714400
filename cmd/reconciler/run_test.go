package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// output is a writer that a test may read while a command writes.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// await waits until something was written.
func (o *output) await(t *testing.T, text string) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Contains(o.String(), text) }, patience, 10*time.Millisecond, "%q is not written:\n%s", text, outputText{o})
}

// outputText reads the output when it is printed, not when it is passed on.
type outputText struct{ o *output }

func (t outputText) String() string { return t.o.String() }

func TestRunAppliesAndDrains(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.db.Exec(t, "TRUNCATE reconciler.targets, reconciler.configs, reconciler.left_places, reconciler.streams, reconciler.stream_controls, reconciler.stream_watches, reconciler.published, reconciler.guard_passes, reconciler.operations, reconciler.tasks, reconciler.sync_runs, reconciler.drift_found, reconciler.health_asks, reconciler.object_health, reconciler.ledger, reconciler.ticks, reconciler.instances, reconciler.heartbeats, reconciler.cursors")
	w.db.Exec(t, "UPDATE reconciler.leases SET owner = NULL")
	ctx, cancel := context.WithCancelCause(t.Context())
	var stderr output
	a := &app{stdout: &stderr, stderr: &stderr, dir: w.dir, registry: registry()}
	code := make(chan int, 1)
	go func() { code <- a.execute(ctx, []string{"run", "--log-format", "json"}) }()
	stderr.await(t, `"msg":"started"`)
	w.db.Exec(t, "INSERT INTO public.deployments (id, region, image) VALUES (20, 'eu', 'app:20')")
	require.Eventually(t, func() bool {
		_, err := os.Stat(filepath.Join(w.dir, "eu", "deployments", "20.json"))
		return err == nil
	}, patience, 5*time.Millisecond, "%s", outputText{&stderr})
	cancel(&signalError{syscall.SIGTERM})
	require.Zero(t, <-code, stderr.String())
	for line := range strings.Lines(stderr.String()) {
		require.True(t, json.Valid([]byte(line)), line)
	}
	require.Contains(t, stderr.String(), `"msg":"stopped"`)
}

func TestRunNeedsItsPort(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	r := w.run(t, "run", "--listen", taken.Addr().String(), "--log-level", "error")
	require.Equal(t, result{code: 1, stderr: fmt.Sprintf("reconciler: listen: cannot listen on %s: address already in use (is another process running there? \"off\" disables it)\n", taken.Addr())}, r)
}

func TestFlagsWinOverEnvironmentAndFile(t *testing.T) {
	t.Parallel()
	p := newPlace(t, "RECONCILER_LOG_LEVEL=warn", "RECONCILER_NOTIFY=off")
	p.write(t, "reconciler.yaml", "log: {level: error, format: json}\nnotify: on\n")
	r := p.run(t, "config", "print", "--log-level", "debug", "--retention-max-rows", "5000")
	require.Zero(t, r.code)
	for _, line := range []string{
		"log.level              debug           flag --log-level", "notify                 off             env RECONCILER_NOTIFY",
		"log.format             json            /etc/reconciler/reconciler.yaml:1:29", "retention.max_rows     5000            flag --retention-max-rows",
		"shutdown_timeout       20s             default",
	} {
		require.Contains(t, r.stdout, line+"\n")
	}
}

func TestSupervise(t *testing.T) {
	t.Parallel()

	t.Run("ReturnsWhatTheCommandReturns", func(t *testing.T) {
		t.Parallel()
		require.Equal(t, 3, supervise(t.Context(), nil, func(context.Context) int { return 3 }))
	})

	t.Run("EndsTheContextAtTheFirstSignal", func(t *testing.T) {
		t.Parallel()
		signals := make(chan os.Signal, 1)
		signals <- syscall.SIGTERM
		code := supervise(t.Context(), signals, func(ctx context.Context) int {
			<-ctx.Done()
			require.EqualError(t, context.Cause(ctx), "stopped by signal: terminated")
			return 0
		})
		require.Zero(t, code)
	})

	t.Run("WaitsForNothingAfterTheSecond", func(t *testing.T) {
		t.Parallel()
		signals := make(chan os.Signal, 2)
		signals <- syscall.SIGTERM
		signals <- os.Interrupt
		stuck := make(chan struct{})
		defer close(stuck)
		require.Equal(t, 130, supervise(t.Context(), signals, func(context.Context) int {
			<-stuck
			return 0
		}))
	})
}
