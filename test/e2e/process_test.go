package e2e_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// daemon is a running `reconciler run`.
type daemon struct {
	t       testing.TB
	cmd     *exec.Cmd
	log     *logbook
	exited  chan struct{}
	address string // of probes and metrics
	streams string // where agents and clients connect
}

// start runs the daemon with the world's config, and returns when it has started.
func (w *world) start(args ...string) *daemon {
	w.t.Helper()
	return w.startWith(w.config, args...)
}

// startWith is start with another config. As a service manager does, it starts the daemon again when the database did not
// answer in time: on a busy machine that happens.
func (w *world) startWith(config string, args ...string) *daemon {
	w.t.Helper()
	for begun := time.Now(); ; {
		d := w.launch(config, args...)
		if !d.unanswered() || time.Since(begun) > patience {
			d.started()
			return d
		}
	}
}

// unanswered waits until the daemon has started or ended, and reports whether it ended for want of the database.
func (d *daemon) unanswered() bool {
	timeout := time.After(patience)
	for {
		_, grown := d.log.lines()
		if d.logged("started") > 0 {
			return false
		}
		select {
		case <-grown:
		case <-d.exited:
			return d.cmd.ProcessState.ExitCode() == 3
		case <-timeout:
			return false
		}
	}
}

// launch begins to run the daemon. It is killed at the end of the test.
func (w *world) launch(config string, args ...string) *daemon {
	w.t.Helper()
	return w.launchCommand("run", config, args...)
}

// launchCommand is launch for any command that runs until it is stopped.
func (w *world) launchCommand(name, config string, args ...string) *daemon {
	w.t.Helper()
	cmd := w.command(context.WithoutCancel(w.t.Context()), append([]string{name, "-c", config}, args...)...)
	d := &daemon{t: w.t, cmd: cmd, log: newLogbook(), exited: make(chan struct{})}
	read, write := io.Pipe()
	cmd.Stdout, cmd.Stderr = write, write
	require.NoError(w.t, cmd.Start())
	go d.log.read(read)
	go func() {
		_ = cmd.Wait() // ProcessState tells how it ended
		_ = write.Close()
		<-d.log.closed
		close(d.exited)
	}()
	w.t.Cleanup(func() {
		d.kill()
		if w.t.Failed() {
			w.t.Logf("log of process %d:\n%s", cmd.Process.Pid, d.log.text())
		}
	})
	return d
}

// started waits until the daemon's loops run.
func (d *daemon) started() {
	d.t.Helper()
	d.awaits("started")
	for _, line := range d.log.all() {
		if line["msg"] != "listening" {
			continue
		}
		switch address, _ := line["address"].(string); line["key"] {
		case "listen":
			d.address = address
		case "streams.listen":
			d.streams = address
		}
	}
}

// kill ends the process as kill -9 does, stopped or not, and waits until it is gone.
func (d *daemon) kill() {
	d.signal(syscall.SIGKILL)
	<-d.exited
}

func (d *daemon) signal(s syscall.Signal) {
	// It may have ended by itself.
	_ = d.cmd.Process.Signal(s)
}

// stop ends the process as service managers do; it must end well.
func (d *daemon) stop() {
	d.t.Helper()
	d.signal(syscall.SIGTERM)
	require.Equal(d.t, 0, d.code(), d.log.text())
}

// code waits until the process has ended, and returns its exit code; -1 if a signal ended it.
func (d *daemon) code() int {
	d.t.Helper()
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	select {
	case <-d.exited:
	case <-timeout.C:
		require.FailNow(d.t, "the process does not end", d.log.text())
	}
	return d.cmd.ProcessState.ExitCode()
}

// awaits waits for a line of the log whose attributes (pairs of name and value) are these.
func (d *daemon) awaits(message string, attributes ...any) object {
	d.t.Helper()
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	for {
		lines, grown := d.log.lines()
		for _, line := range lines {
			if matches(line, message, attributes) {
				return line
			}
		}
		select {
		case <-grown:
		case <-d.exited:
			require.FailNow(d.t, "the process has ended", "without %s %v:\n%s", message, attributes, d.log.text())
		case <-timeout.C:
			require.FailNow(d.t, "a line of the log is missing", "%s %v in:\n%s", message, attributes, d.log.text())
		}
	}
}

// logged counts the lines of the log with a message and attributes.
func (d *daemon) logged(message string, attributes ...any) int {
	n := 0
	for _, line := range d.log.all() {
		if matches(line, message, attributes) {
			n++
		}
	}
	return n
}

// failures are messages about what failed; that a machine is slow brings about none of them.
var failures = []string{
	"apply_not_opened", "call_failed", "capture_broken", "cursor_below_floor", "database_restored", "dependency_not_expanded", "driver_panicked",
	"leader_cursor_below_floor", "rights_missing", "rows_unfit", "rows_unreadable", "run_failed", "run_panicked", "server_refused", "sync_failed",
	"target_not_registered", "target_stopped", "targets_unreadable",
}

// failedNothing looks for such messages.
func (d *daemon) failedNothing() {
	d.t.Helper()
	for _, line := range d.log.all() {
		require.NotContains(d.t, failures, line["msg"], line)
	}
}

func matches(line object, message string, attributes []any) bool {
	if line["msg"] != message {
		return false
	}
	for i := 0; i < len(attributes); i += 2 {
		if line[attributes[i].(string)] != attributes[i+1] {
			return false
		}
	}
	return true
}

// get asks the daemon's HTTP server.
func (d *daemon) get(path string) (status int, body string, err error) {
	ctx, cancel := context.WithTimeoutCause(d.t.Context(), patience, errors.New("the daemon's HTTP server does not answer"))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+d.address+path, nil)
	if err != nil {
		return 0, "", err
	}
	req.Close = true
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(text), err
}

// answers waits until a path has this status and a body that begins with these lines. Loops that fail meanwhile add theirs.
func (d *daemon) answers(path string, status int, body string, within time.Duration) {
	d.t.Helper()
	eventually(d.t, within, func() error {
		haveStatus, haveBody, err := d.get(path)
		if err == nil && (haveStatus != status || !strings.HasPrefix(haveBody, body)) {
			err = errors.New(http.StatusText(haveStatus) + ": " + haveBody)
		}
		return err
	}, path)
}

// logbook keeps what a process prints, line by line.
type logbook struct {
	closed chan struct{} // nothing more comes

	mu    sync.Mutex
	raw   strings.Builder
	lined []object
	grown chan struct{} // closed and replaced when something is added
}

func newLogbook() *logbook {
	return &logbook{closed: make(chan struct{}), grown: make(chan struct{})}
}

func (l *logbook) read(from io.Reader) {
	defer close(l.closed)
	scanner := bufio.NewScanner(from)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		l.add(scanner.Text())
	}
	_, _ = io.Copy(io.Discard, from) // a line that is too long must not block the process
}

// add takes a line. What is no JSON, such as an error at the end, has only a text.
func (l *logbook) add(text string) {
	line := object{}
	if json.Unmarshal([]byte(text), &line) != nil {
		line = object{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.raw.WriteString(text + "\n")
	l.lined = append(l.lined, line)
	close(l.grown)
	l.grown = make(chan struct{})
}

func (l *logbook) lines() (lines []object, grown <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clip(l.lined), l.grown
}

func (l *logbook) all() []object {
	lines, _ := l.lines()
	return lines
}

func (l *logbook) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.raw.String()
}

// await waits until the text matches a pattern, and returns the match.
func (l *logbook) await(t testing.TB, pattern string) []string {
	t.Helper()
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	for {
		_, grown := l.lines()
		if match := regexp.MustCompile(pattern).FindStringSubmatch(l.text()); match != nil {
			return match
		}
		select {
		case <-grown:
		case <-timeout.C:
			require.FailNow(t, "it was not printed", "%s in:\n%s", pattern, l.text())
		}
	}
}

// last returns the last line.
func (l *logbook) last() string {
	lines := strings.Split(strings.TrimSuffix(l.text(), "\n"), "\n")
	return lines[len(lines)-1]
}
