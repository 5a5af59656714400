package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgreconciler/reconciler/internal/devdb"
)

const (
	// patience is how long a step waits for what must happen. It is many times what is measured.
	patience = 60 * time.Second
	// stepTimeout bounds a step that goes on, but far too slowly.
	stepTimeout = 90 * time.Second
	// logLines is how much of the process's log a failure shows.
	logLines = 25
)

// demo is one run. What clean has to end is nil until it has been started.
type demo struct {
	screen *screen
	cancel context.CancelCauseFunc
	binary string // of reconciler
	image  string // of PostgreSQL; "" for local binaries

	logPath string // "" for a file that is removed
	began   time.Time

	server *devdb.Server
	pool   *pgxpool.Pool
	config string // path of reconciler.yaml
	line   *line  // from the agent to the daemon
	places []place
	hook   *hook
	child  *child
	agent  *child
	log    *os.File

	agentConfig string // path of agent.yaml

	released int64 // number of the apply
}

// step is one numbered part of the demo.
type step struct {
	title string
	run   func(ctx context.Context) error
}

func (d *demo) run(ctx context.Context) error {
	d.began = time.Now()
	d.screen.say("%s", d.screen.paint("1", "reconciler: a fleet of deployments, from rows to files in three regions"))
	if err := d.setUp(ctx); err != nil {
		return err
	}
	steps := []step{
		{"Initial sync of everything", d.initialSync},
		{"200 rows change, one by one, 40 a second", d.changes},
		{"A region is switched off", d.regionOff},
		{"Rows are deleted and changed with triggers disabled, and files by hand", d.behindTriggers},
		{"kill -9 in the middle of a burst", d.killed},
		{"A target fails while the others flow", d.failing},
		{"An agent is cut off", d.cutOff},
		{"A release rolls from region to region, and one refuses it", d.release},
		{"wait and explain", d.waitAndExplain},
		{"SIGTERM in the middle of a burst", d.drained},
	}
	for _, s := range steps {
		d.screen.title(s.title)
		if err := d.inTime(ctx, s); err != nil {
			return fmt.Errorf("step %d, %s: %w", d.screen.step, strings.ToLower(s.title[:1])+s.title[1:], err)
		}
	}
	return d.verdict(ctx)
}

func (*demo) inTime(ctx context.Context, s step) error {
	ctx, cancel := context.WithTimeoutCause(ctx, stepTimeout, fmt.Errorf("it took longer than %s", stepTimeout))
	defer cancel()
	err := s.run(ctx)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// failed says what went wrong, and shows the end of the process's log, which is kept.
func (d *demo) failed(err error) {
	differ, ok := errors.AsType[*differError](err)
	if !ok {
		d.screen.say("\n%v", err)
	}
	if d.log != nil {
		if tail := lastLines(d.log.Name(), logLines); tail != "" {
			d.screen.say("\nthe end of the log of `reconciler run`, which is all in %s:\n%s", d.log.Name(), tail)
		} else {
			d.removeLog()
		}
	}
	if ok {
		err = differ // without the step's name
	}
	d.screen.verdict(false, "FAILED: %s", firstLine(err.Error()))
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

func lastLines(path string, n int) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// clean ends and removes everything that was started, in whatever state it is.
func (d *demo) clean(ctx context.Context) error {
	for _, c := range []*child{d.agent, d.child} {
		if c != nil {
			c.kill()
		}
	}
	if d.line != nil {
		d.line.close()
	}
	if d.hook != nil {
		d.hook.close()
	}
	if d.pool != nil {
		d.pool.Close()
	}
	if d.server != nil {
		return d.server.Stop(ctx)
	}
	return nil
}

func (d *demo) removeLog() {
	if d.log == nil {
		return
	}
	_ = d.log.Close()
	if d.logPath == "" {
		_ = os.Remove(d.log.Name()) // it is in the directory for temporary files
	}
	d.log = nil
}

func (d *demo) openLog() (err error) {
	if d.logPath == "" {
		d.log, err = os.CreateTemp("", "reconciler-demo-*.log")
	} else {
		d.log, err = os.Create(d.logPath)
	}
	if err != nil {
		return fmt.Errorf("make a file for the log: %w", err)
	}
	return nil
}

// start starts `reconciler run`.
func (d *demo) start() (err error) {
	d.child, err = startChild(d.binary, "run", d.config, d.log, d.cancel)
	return err
}

func (d *demo) place(name string) place {
	for _, p := range d.places {
		if p.name == name {
			return p
		}
	}
	panic("there is no target " + name) // a mistake in this program
}

// until looks again and again until something is so, and returns how long that took. seen says how things are, for the error.
func until(ctx context.Context, what string, pause time.Duration, look func() (ok bool, seen string, err error)) (time.Duration, error) {
	began := time.Now()
	for {
		ok, seen, err := look()
		if ok || err != nil {
			return time.Since(began), err
		}
		if time.Since(began) > patience {
			return 0, fmt.Errorf("waited %s for %s: %s", patience, what, seen)
		}
		select {
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}

// rest lets time pass in which nothing is to happen.
func rest(ctx context.Context, length time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(length):
		return nil
	}
}

// row reads one row.
func (d *demo) row(ctx context.Context, sql string, args []any, into ...any) error {
	if err := d.pool.QueryRow(ctx, sql, args...).Scan(into...); err != nil {
		return fmt.Errorf("%s: %w", sql, err)
	}
	return nil
}

// exec changes rows, and returns how many.
func (d *demo) exec(ctx context.Context, sql string, args ...any) (int, error) {
	tag, err := d.pool.Exec(ctx, sql, args...)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", sql, err)
	}
	return int(tag.RowsAffected()), nil
}

// list reads one column.
func list[T any](ctx context.Context, d *demo, sql string, args ...any) ([]T, error) {
	rows, err := d.pool.Query(ctx, sql, args...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", sql, err)
	}
	defer rows.Close()
	var values []T
	for rows.Next() {
		var value T
		if err := rows.Scan(&value); err != nil {
			return nil, fmt.Errorf("%s: %w", sql, err)
		}
		values = append(values, value)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", sql, err)
	}
	return values, nil
}
