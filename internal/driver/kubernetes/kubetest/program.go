//go:build kubernetes

package kubetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"
)

const (
	readyTimeout  = 2 * time.Minute // of a program on a busy machine
	readyInterval = 20 * time.Millisecond
	logTail       = 4096 // bytes that an error shows
)

// program is one of the cluster's, started and stopped any number of times.
type program struct {
	path, log string
	args      []string

	process *os.Process   // nil: stopped
	ended   chan struct{} // closed when the process has ended
}

func newProgram(binaries, dir, name string, args ...string) *program {
	return &program{path: filepath.Join(binaries, name), log: filepath.Join(dir, name+".log"), args: args}
}

// start runs the program, whose output is appended to its log.
func (p *program) start() error {
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	cmd := exec.Command(p.path, p.args...)
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = log, log, attr()
	started, ended := make(chan error), make(chan struct{})
	go func() {
		defer close(ended)
		defer log.Close() //nolint:errcheck // the program wrote it
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start %s: %w", filepath.Base(p.path), err)
	}
	p.process, p.ended = cmd.Process, ended
	return nil
}

// stop kills the program and waits for its end. Stopping a stopped one does nothing.
func (p *program) stop() {
	if p.process == nil {
		return
	}
	_ = p.process.Kill()
	<-p.ended
	p.process = nil
}

// wait returns once a GET of url answers 200. It fails with the end of the log if the program ends or takes too long.
func (p *program) wait(client *http.Client, url, token string) error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), readyTimeout, errors.New("not ready in time"))
	defer cancel()
	ticker := time.NewTicker(readyInterval)
	defer ticker.Stop()
	for !answers(ctx, client, url, token) {
		select {
		case <-ticker.C:
		case <-p.ended:
			return fmt.Errorf("%s ended: %s", filepath.Base(p.path), p.tail())
		case <-ctx.Done():
			return fmt.Errorf("%s: %w: %s", filepath.Base(p.path), context.Cause(ctx), p.tail())
		}
	}
	return nil
}

func answers(ctx context.Context, client *http.Client, url, token string) bool {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return false
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := client.Do(r)
	if err != nil {
		return false
	}
	_ = answer.Body.Close()
	return answer.StatusCode == http.StatusOK
}

func (p *program) tail() string {
	text, _ := os.ReadFile(p.log)
	if len(text) > logTail {
		text = text[len(text)-logTail:]
	}
	return string(bytes.TrimSpace(text))
}
