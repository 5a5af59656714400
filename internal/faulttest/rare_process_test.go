//go:build long

package faulttest_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// rareDaemon is a running `reconciler run`.
type rareDaemon struct {
	t       *testing.T
	cmd     *exec.Cmd
	exited  chan struct{}
	address string // of probes and metrics

	mu    sync.Mutex // guards what follows
	raw   strings.Builder
	lines []rareObject
	grown chan struct{} // closed and replaced with each line
}

// rareStart says how a daemon is started.
type rareStart struct {
	binary string
	config string
	enter  []string // command that runs it elsewhere, such as in another namespace; it must exec
	env    []string
}

// start runs a daemon, and returns when it has started. It is killed at the end of the test.
func (w *rareWorld) start(s rareStart) *rareDaemon {
	w.t.Helper()
	args := slices.Concat(s.enter, []string{s.binary, "run", "-c", s.config})
	cmd := exec.CommandContext(context.WithoutCancel(w.t.Context()), args[0], args[1:]...)
	cmd.Dir = w.dir
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + w.dir}, s.env...)
	d := &rareDaemon{t: w.t, cmd: cmd, exited: make(chan struct{}), grown: make(chan struct{})}
	read, write := io.Pipe()
	cmd.Stdout, cmd.Stderr = write, write
	require.NoError(w.t, cmd.Start())
	closed := make(chan struct{})
	go d.read(read, closed)
	go func() {
		_ = cmd.Wait() // ProcessState tells how it ended
		_ = write.Close()
		<-closed
		close(d.exited)
	}()
	w.t.Cleanup(func() {
		d.kill()
		if w.t.Failed() {
			w.t.Logf("log of process %s:\n%s", d.pid(), d.text())
		}
	})
	d.awaits("started")
	if line, ok := d.find("listening", "key", "listen"); ok {
		d.address = line["address"].(string)
	}
	return d
}

func (d *rareDaemon) pid() string { return strconv.Itoa(d.cmd.Process.Pid) }

// kill ends the process as kill -9 does, stopped or not, and waits until it is gone.
func (d *rareDaemon) kill() {
	_ = d.cmd.Process.Kill() // it may have ended by itself
	<-d.exited
}

// stop ends the process as service managers do, and waits until it has ended well.
func (d *rareDaemon) stop() {
	d.t.Helper()
	require.NoError(d.t, d.cmd.Process.Signal(syscall.SIGTERM))
	require.Equal(d.t, 0, d.code(), d.text())
}

// code waits until the process has ended, and returns its exit code; -1 if a signal ended it.
func (d *rareDaemon) code() int {
	d.t.Helper()
	timeout := time.NewTimer(rarePatience)
	defer timeout.Stop()
	select {
	case <-d.exited:
	case <-timeout.C:
		require.FailNow(d.t, "the process does not end", d.text())
	}
	return d.cmd.ProcessState.ExitCode()
}

func (d *rareDaemon) read(from io.Reader, closed chan<- struct{}) {
	defer close(closed)
	scanner := bufio.NewScanner(from)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		line := rareObject{}
		if json.Unmarshal(scanner.Bytes(), &line) != nil {
			line = rareObject{} // an error at the end has only a text
		}
		d.mu.Lock()
		d.raw.WriteString(scanner.Text() + "\n")
		d.lines = append(d.lines, line)
		close(d.grown)
		d.grown = make(chan struct{})
		d.mu.Unlock()
	}
	_, _ = io.Copy(io.Discard, from) // a line that is too long must not block the process
}

func (d *rareDaemon) text() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.raw.String()
}

func (d *rareDaemon) all() (lines []rareObject, grown <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clip(d.lines), d.grown
}

// find returns the last line of the log with a message and attributes (pairs of name and value).
func (d *rareDaemon) find(message string, attributes ...any) (rareObject, bool) {
	lines, _ := d.all()
	for _, line := range slices.Backward(lines) {
		ok := line["msg"] == message
		for i := 0; i < len(attributes); i += 2 {
			ok = ok && line[attributes[i].(string)] == attributes[i+1]
		}
		if ok {
			return line, true
		}
	}
	return nil, false
}

// awaits waits for a line of the log.
func (d *rareDaemon) awaits(message string, attributes ...any) rareObject {
	d.t.Helper()
	timeout := time.NewTimer(rarePatience)
	defer timeout.Stop()
	for {
		_, grown := d.all()
		if line, ok := d.find(message, attributes...); ok {
			return line
		}
		select {
		case <-grown:
		case <-d.exited:
			if line, ok := d.find(message, attributes...); ok {
				return line
			}
			require.FailNow(d.t, "the process has ended", "without %s %v:\n%s", message, attributes, d.text())
		case <-timeout.C:
			require.FailNow(d.t, "a line of the log is missing", "%s %v", message, attributes)
		}
	}
}

// failures returns the lines of the log at level ERROR. Warnings may be those of a slow machine.
func (d *rareDaemon) failures() []rareObject {
	lines, _ := d.all()
	return slices.DeleteFunc(slices.Clone(lines), func(line rareObject) bool { return line["level"] != "ERROR" })
}

// metric returns the value of a series without labels.
func (d *rareDaemon) metric(name string) (float64, error) {
	ctx, cancel := context.WithTimeout(d.t.Context(), 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+d.address+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	req.Close = true
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	for scanner := bufio.NewScanner(answer.Body); scanner.Scan(); {
		if value, ok := strings.CutPrefix(scanner.Text(), name+" "); ok {
			return strconv.ParseFloat(value, 64)
		}
	}
	return 0, fmt.Errorf("there is no series %s", name)
}
