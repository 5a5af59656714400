package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgreconciler/reconciler/internal/devdb"
)

const (
	// stepTimeout bounds a step. It is many times what is measured.
	stepTimeout = 90 * time.Second
	// logLines is how much of the processes' log a failure shows.
	logLines = 40
)

// demo is one run. What clean has to end is nil until it has been started.
type demo struct {
	out     io.Writer
	fail    context.CancelCauseFunc
	binary  string // of reconciler
	image   string // of PostgreSQL; "" for local binaries
	logPath string // "" for a file in the server's directory

	server      *devdb.Server
	pool        *pgxpool.Pool
	config      string // path of reconciler.yaml
	agentConfig string // path of agent.yaml
	hook        *hook
	daemon      *child
	agent       *child
	log         *os.File
}

func (d *demo) run(ctx context.Context) error {
	d.say("reconciler: a fleet of deployments, from rows to files in four regions and a webhook")
	if err := d.setUp(ctx); err != nil {
		return err
	}
	for n, step := range []struct {
		title string
		run   func(ctx context.Context) error
	}{
		{"Start in front of empty targets", d.start},
		{"Deployments get a new image, one after the other", d.changes},
		{"A region is switched off", d.regionOff},
		{"Rows are changed with triggers disabled, and files by hand", d.behindTriggers},
		{"kill -9 in the middle of a burst", d.killed},
		{"A target fails while the others go on", d.failing},
		{"A release rolls from region to region, and one refuses it", d.release},
		{"SIGTERM in the middle of a burst, while an agent goes on", d.stopped},
		{"Every object is compared with its row, by code that shares nothing with reconciler", d.verdict},
	} {
		d.say("\n%2d  %s", n+1, step.title)
		if err := inTime(ctx, step.run); err != nil {
			return fmt.Errorf("step %d, %s: %w", n+1, step.title, err)
		}
	}
	return nil
}

// inTime runs a step. The error of one that takes too long has that as its cause.
func inTime(ctx context.Context, step func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, stepTimeout, fmt.Errorf("it took longer than %s", stepTimeout))
	defer cancel()
	err := step(ctx)
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	return err
}

// clean ends and removes everything that was started, in whatever state it is.
func (d *demo) clean(ctx context.Context) error {
	for _, c := range []*child{d.agent, d.daemon} {
		if c != nil {
			c.kill()
		}
	}
	if d.hook != nil {
		d.hook.close()
	}
	if d.pool != nil {
		d.pool.Close()
	}
	if d.log != nil {
		d.log.Close()
	}
	if d.server != nil {
		return d.server.Stop(ctx)
	}
	return nil
}

// lastLines returns the end of the processes' log.
func (d *demo) lastLines() string {
	if d.log == nil {
		return ""
	}
	text, err := os.ReadFile(d.log.Name())
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return "\nthe end of the processes' log:\n" + strings.Join(lines[max(0, len(lines)-logLines):], "\n") + "\n"
}

// dir is the directory of a target of driver file.
func (d *demo) dir(target string) string { return filepath.Join(d.server.Dir, "regions", target) }

// value reads one value.
func value[T any](ctx context.Context, d *demo, sql string, args ...any) (T, error) {
	rows, err := d.pool.Query(ctx, sql, args...)
	if err != nil {
		var none T
		return none, err
	}
	return pgx.CollectExactlyOneRow(rows, pgx.RowTo[T])
}

// until looks again and again until something is so, and returns how long that took.
func until(ctx context.Context, what string, pause time.Duration, look func() (bool, error)) (time.Duration, error) {
	began := time.Now()
	for {
		ok, err := look()
		if ok || err != nil {
			return time.Since(began), err
		}
		if err := rest(ctx, pause); err != nil {
			return 0, fmt.Errorf("wait for %s: %w", what, err)
		}
	}
}

// rest lets time pass.
func rest(ctx context.Context, length time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(length):
		return nil
	}
}
