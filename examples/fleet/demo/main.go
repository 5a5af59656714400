// Command demo shows on one machine, in less than two minutes and with figures, what reconciler does: it starts a
// throwaway PostgreSQL, loads the fleet example, runs the built binary, and then changes rows, switches a region off,
// changes rows behind the triggers' back, kills processes, lets a target fail and rolls out a release that one target
// refuses. At the end it compares every object with its row and prints the verdict. scripts/demo.sh sets up what it
// needs; `make demo` calls that.
//
// It exits with 0 when every step did what it should and every object is as its row wants it, else with 1; with 130
// after Ctrl-C. It leaves nothing behind.
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
)

func main() { os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr)) }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	d := &demo{out: stdout}
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&d.binary, "reconciler", "bin/reconciler", "the built `FILE`")
	flags.StringVar(&d.image, "image", "", "Docker `IMAGE` of PostgreSQL, for machines without server binaries")
	flags.StringVar(&d.logPath, "log", "", "`FILE` that keeps the log of the processes (default: one that is removed)")
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
	ctx, d.fail = context.WithCancelCause(ctx)
	defer d.fail(nil)
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

// finish cleans up, prints how the demo ended unless it has printed the verdict, and returns the exit code.
func (d *demo) finish(ctx context.Context, err error) int {
	if cause := context.Cause(ctx); cause != nil {
		err = cause // such as the end of a process, which is why a step failed
	}
	log := d.lastLines()
	cleanErr := d.clean(context.WithoutCancel(ctx))
	code := 0
	switch {
	case errors.Is(err, context.Canceled):
		d.say("\ninterrupted; everything that was started has been ended and removed")
		code = exitInterrupted
	case err != nil:
		first, _, _ := strings.Cut(err.Error(), "\n")
		d.say("\n%v\n%s\nVERDICT: FAILED: %s", err, log, first)
		code = exitFailed
	}
	if cleanErr != nil {
		d.say("\nnot everything could be removed: %v", cleanErr)
		code = max(code, exitFailed)
	}
	return code
}
