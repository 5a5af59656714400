// Command reconciler keeps the outside world equal to rows in PostgreSQL. Every subcommand has a file of its own here;
// docs/cli.md shows them all.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// version is set at link time.
var version = "devel"

func main() { os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// run executes one command line and returns its exit code. The first SIGINT or SIGTERM ends ctx; the second does not
// wait for anything any more.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	a := &app{stdin: stdin, stdout: stdout, stderr: stderr, environ: os.Environ(), registry: registry()}
	return supervise(ctx, signals, func(ctx context.Context) int { return a.execute(ctx, args) })
}

// supervise runs a command until it ends by itself, or a second signal ends it at once.
func supervise(ctx context.Context, signals <-chan os.Signal, command func(context.Context) int) int {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan int, 1)
	go func() { done <- command(ctx) }()
	for asked := false; ; asked = true {
		select {
		case code := <-done:
			return code
		case sig := <-signals:
			if asked {
				return signalCode(sig)
			}
			cancel(&signalError{sig})
		}
	}
}

// signalError is the cause of a context that a signal ended.
type signalError struct{ signal os.Signal }

func (e *signalError) Error() string { return fmt.Sprintf("stopped by signal: %v", e.signal) }

// signalCode is the exit code of a process that a signal ended, as shells report it.
func signalCode(sig os.Signal) int {
	if number, ok := sig.(syscall.Signal); ok {
		return 128 + int(number)
	}
	return 128
}
