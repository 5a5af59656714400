package main

import (
	"context"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// child is a running `reconciler run` or `reconciler agent`.
type child struct {
	cmd      *exec.Cmd
	expected atomic.Bool   // the demo ended it on purpose
	ended    chan struct{} // closed when it has ended
}

// spawn starts `reconciler run` or `reconciler agent`. The demo fails when the process ends by itself.
func (d *demo) spawn(command, config string) (*child, error) {
	c := &child{cmd: exec.Command(d.binary, command, "-c", config), ended: make(chan struct{})} //nolint:noctx // kill and terminate end it
	c.cmd.Stdout, c.cmd.Stderr = d.log, d.log
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
		_ = c.cmd.Wait() // ProcessState has how it ended
		if !c.expected.Load() {
			d.fail(fmt.Errorf("`reconciler %s` ended by itself: %s", command, c.cmd.ProcessState))
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start `reconciler %s`: %w", command, err)
	}
	return c, nil
}

// kill ends it without a chance to do anything.
func (c *child) kill() {
	c.expected.Store(true)
	_ = c.cmd.Process.Kill() // it may be gone already
	<-c.ended
}

// terminate asks it to end, which must succeed, and returns how long that took.
func (c *child) terminate(ctx context.Context) (time.Duration, error) {
	c.expected.Store(true)
	began := time.Now()
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return 0, fmt.Errorf("send SIGTERM: %w", err)
	}
	select {
	case <-c.ended:
	case <-ctx.Done():
		return 0, fmt.Errorf("wait for the end of `reconciler %s`: %w", c.cmd.Args[1], ctx.Err())
	}
	if !c.cmd.ProcessState.Success() {
		return 0, fmt.Errorf("`reconciler %s` ended after SIGTERM: %s", c.cmd.Args[1], c.cmd.ProcessState)
	}
	return time.Since(began), nil
}

// show runs a command of reconciler and prints it with its output. It must end with this exit code.
func (d *demo) show(ctx context.Context, code int, args ...string) error {
	line := "reconciler " + strings.Join(args, " ")
	cmd := exec.CommandContext(ctx, d.binary, append(args, "-c", d.config)...)
	detach(cmd)
	output, err := cmd.CombinedOutput()
	d.quote(line, string(output))
	switch got := cmd.ProcessState.ExitCode(); {
	case got == code:
		return nil
	case got < 0: // it did not start, or a signal ended it
		return fmt.Errorf("run `%s`: %w", line, err)
	default:
		return fmt.Errorf("`%s` ended with exit code %d, not %d", line, got, code)
	}
}
