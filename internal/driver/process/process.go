package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

const (
	graceDefault = 2 * time.Second
	// tailBytes is what is kept of each output: more than anybody shows, so that a secret that the beginning
	// of the tail cuts in two does not reach the text.
	tailBytes = 8 << 10
)

// Command is one run of a program.
type Command struct {
	Args   []string      // the program as an absolute path (see Look), and its arguments
	Dir    string        // working directory; empty for that of this process
	Env    []string      // the whole environment; see Environ
	Stdin  []byte        // what it reads; then end of file
	Stdout io.Writer     // takes its standard output; nil keeps the tail in Result.Stdout
	Grace  time.Duration // between SIGTERM and SIGKILL once the context ended; 0 means two seconds
}

// Result is how a run ended.
type Result struct {
	Code   int            // exit status; -1 if a signal ended it
	Signal syscall.Signal // the signal that ended it, or 0
	Stdout []byte         // the last 8 KiB, unless Command.Stdout took it
	Stderr []byte         // the last 8 KiB
}

// String says how the program ended, such as "exit status 3" or "killed by a signal (segmentation fault)".
func (r Result) String() string {
	if r.Signal != 0 {
		return fmt.Sprintf("killed by a signal (%s)", r.Signal)
	}
	return fmt.Sprintf("exit status %d", r.Code)
}

// StartError says that the program could not be started at all.
type StartError struct{ Err error }

func (e *StartError) Error() string { return "start the command: " + e.Err.Error() }
func (e *StartError) Unwrap() error { return e.Err }

// StoppedError says that the program was stopped because the context ended. The result may be of any kind.
type StoppedError struct{ Cause error }

func (e *StoppedError) Error() string { return "the command was stopped: " + e.Cause.Error() }
func (e *StoppedError) Unwrap() error { return e.Cause }

// Run starts the program and waits until it and every member of its process group is gone. When the context
// ends it sends SIGTERM to the group, and SIGKILL after the grace. What is still running in the group when the
// program itself exits is killed: a call that has returned does nothing any more.
//
// The error is a *StartError or a *StoppedError; a program that ran to its end, well or badly, is no error.
func (c Command) Run(ctx context.Context) (Result, error) {
	if ctx.Err() != nil {
		return Result{}, &StoppedError{Cause: context.Cause(ctx)}
	}
	cmd := exec.CommandContext(ctx, c.Args[0], c.Args[1:]...)
	cmd.Dir, cmd.Env, cmd.Stdin = c.Dir, c.Env, bytes.NewReader(c.Stdin)
	if cmd.Env == nil {
		cmd.Env = []string{} // nil would hand down ours
	}
	var stdout, stderr tail
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if c.Stdout != nil {
		cmd.Stdout = c.Stdout
	}
	cmd.SysProcAttr = groupAttr()
	stopped := false // written by Cancel, which Wait has seen to its end
	cmd.Cancel = func() error {
		stopped = true
		return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
	}
	if cmd.WaitDelay = c.Grace; c.Grace == 0 {
		cmd.WaitDelay = graceDefault
	}
	if err := cmd.Start(); err != nil {
		if ended := ctx.Err(); ended != nil && errors.Is(err, ended) {
			return Result{}, &StoppedError{Cause: context.Cause(ctx)} // just before
		}
		return Result{}, &StartError{Err: err}
	}
	_ = cmd.Wait() // ProcessState tells all of it, and more exactly
	// Grandchildren that ignored SIGTERM, or that nobody had told to stop.
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)

	result := Result{Code: cmd.ProcessState.ExitCode(), Stdout: stdout.bytes(), Stderr: stderr.bytes()}
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		result.Signal = status.Signal()
	}
	if stopped {
		return result, &StoppedError{Cause: context.Cause(ctx)}
	}
	return result, nil
}

// Look finds the program of a command as a shell would, and returns its absolute path. A relative path is one
// below the working directory of this process, also when the command runs elsewhere.
func Look(program string) (string, error) {
	path, err := exec.LookPath(program)
	if lookErr, ok := errors.AsType[*exec.Error](err); ok {
		return "", lookErr.Err
	}
	if err != nil {
		return "", err
	}
	return filepath.Abs(path)
}
