// Command demo shows on one machine, in less than two minutes and with figures, what reconciler does: it starts a
// throwaway PostgreSQL, loads the fleet example, runs the built binary as a process of its own, and then changes rows,
// switches a region off, deletes behind the triggers' back, kills, lets a target fail, cuts an agent off, and rolls a release that one target refuses. At the end it compares every
// file with the rows and prints the verdict. scripts/demo.sh sets up what it needs; `make demo` calls that.
//
// It exits with 0 when every step did what it should and every file is as the rows want it, else with 1; with 130
// after Ctrl-C. It leaves nothing behind but, after a failed step, the log of the process.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

const (
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130

	// exitDiffers is how `reconciler apply wait` ends when an apply has failed, exitTimeout how `reconciler wait` ends at
	// its timeout.
	exitDiffers = 1
	exitTimeout = 4
)

func main() { os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr)) }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	flags.SetOutput(stderr)
	binary := flags.String("reconciler", "bin/reconciler", "the built `FILE`")
	image := flags.String("image", "", "Docker `IMAGE` of PostgreSQL, for machines without server binaries")
	log := flags.String("log", "", "`FILE` that gets the log of the process and is kept (default: one that is removed, unless a step fails)")
	if err := flags.Parse(args); err != nil {
		return exitUsage
	}
	if flags.NArg() > 0 {
		_, _ = fmt.Fprintf(stderr, "demo: takes no arguments, and got %q\n", flags.Args())
		return exitUsage
	}
	if err := forgetSettings(); err != nil {
		_, _ = fmt.Fprintln(stderr, "demo:", err)
		return exitFailed
	}
	// A closed pipe is an error of the write, and ends the demo in an orderly way.
	signal.Ignore(syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s := newScreen(stdout, cancel)
	d := &demo{screen: s, cancel: cancel, binary: *binary, image: *image, logPath: *log}
	return d.finish(ctx, d.run(ctx))
}

// forgetSettings removes what would lead this process, or one that it starts, to another database or configuration.
func forgetSettings() error {
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		if strings.HasPrefix(name, "PG") || strings.HasPrefix(name, "RECONCILER_") {
			if err := os.Unsetenv(name); err != nil {
				return fmt.Errorf("forget the environment variable %s: %w", name, err)
			}
		}
	}
	return nil
}

// finish cleans up, says how the demo ended, and returns the exit code.
func (d *demo) finish(ctx context.Context, err error) int {
	interrupted := ctx.Err() != nil && errors.Is(context.Cause(ctx), context.Canceled)
	if cause := context.Cause(ctx); cause != nil && !interrupted {
		err = cause // such as the end of the process, which is why a step failed
	}
	cleanErr := d.clean(context.WithoutCancel(ctx))
	switch {
	case interrupted:
		d.screen.say("\ninterrupted; everything that was started has been ended and removed")
		d.removeLog()
		return d.code(exitInterrupted, cleanErr)
	case errors.Is(err, errUnread):
		d.removeLog()
		return exitFailed
	case err != nil:
		d.failed(err)
		return d.code(exitFailed, cleanErr)
	}
	d.removeLog()
	return d.code(0, cleanErr)
}

func (d *demo) code(code int, cleanErr error) int {
	if cleanErr == nil {
		return code
	}
	d.screen.say("\nnot everything could be removed: %v", cleanErr)
	return max(code, exitFailed)
}
