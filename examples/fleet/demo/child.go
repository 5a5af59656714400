package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"
)

// child is a running `reconciler run` or `reconciler agent`.
type child struct {
	cmd      *exec.Cmd
	expected atomic.Bool   // somebody ended it on purpose
	ended    chan struct{} // closed when it is gone; then err may be read
	err      error
}

// startChild starts a command of reconciler, whose log goes to a file. It calls lost when the process ends by itself.
func startChild(binary, command, config string, log *os.File, lost func(error)) (*child, error) {
	c := &child{cmd: exec.Command(binary, command, "-c", config), ended: make(chan struct{})} //nolint:noctx // kill and terminate end it
	c.cmd.Stdout, c.cmd.Stderr = log, log
	detach(c.cmd)
	started := make(chan error, 1)
	go func() {
		defer close(c.ended)
		// The kernel ends the process when the thread that started it ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := c.cmd.Start()
		started <- err
		if err != nil {
			return
		}
		c.err = c.cmd.Wait()
		if !c.expected.Load() {
			lost(fmt.Errorf("`reconciler %s` ended by itself: %w", command, orSuccess(c.err)))
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start `reconciler %s`: %w", command, err)
	}
	return c, nil
}

func orSuccess(err error) error {
	if err == nil {
		return errors.New("exit status 0")
	}
	return err
}

// kill ends it without a chance to do anything.
func (c *child) kill() {
	c.expected.Store(true)
	_ = c.cmd.Process.Kill() // it may be gone already
	<-c.ended
}

// terminate asks it to end, and returns its exit code and how long it took.
func (c *child) terminate(ctx context.Context) (int, time.Duration, error) {
	c.expected.Store(true)
	began := time.Now()
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return 0, 0, fmt.Errorf("send SIGTERM: %w", err)
	}
	select {
	case <-c.ended:
		return c.cmd.ProcessState.ExitCode(), time.Since(began), nil
	case <-ctx.Done():
		return 0, 0, ctx.Err()
	}
}

// answer is what a command of the CLI said.
type answer struct {
	code int
	text string
}

// ask runs a command of the CLI, shows it and returns its answer.
func (d *demo) ask(ctx context.Context, args ...string) (answer, error) {
	cmd := exec.CommandContext(ctx, d.binary, append(args, "-c", d.config)...)
	detach(cmd)
	out, err := cmd.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.Exited() {
		return answer{exit.ExitCode(), string(out)}, nil
	}
	if err != nil {
		return answer{}, fmt.Errorf("run `reconciler %s`: %w", args[0], err)
	}
	return answer{0, string(out)}, nil
}

// tell is ask for a command that must succeed.
func (d *demo) tell(ctx context.Context, args ...string) (string, error) {
	said, err := d.ask(ctx, args...)
	if err == nil && said.code != 0 {
		err = fmt.Errorf("`reconciler %s` ended with exit code %d: %s", args[0], said.code, said.text)
	}
	return said.text, err
}
