package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/pgreconciler/reconciler/internal/cli"
	"github.com/pgreconciler/reconciler/internal/config"
)

const (
	topIntervalDefault = time.Second
	topIntervalMin     = 100 * time.Millisecond
	// topPending is how many objects that are not applied are shown.
	topPending = 10

	// Home, clear to the end: unlike clearing all at once it does not flicker.
	ansiHome  = "\x1b[H"
	ansiClear = "\x1b[J"
	ansiLine  = "\x1b[K"
)

const topPendingSQL = `SELECT * FROM reconciler.pending ORDER BY target, resource, key NULLS FIRST LIMIT $1`

func (a *app) topCommand() *cobra.Command {
	var interval time.Duration
	var once bool
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show the status again and again",
		Long:  "Shows the status and what is on its way, again and again until Ctrl-C. With -o json it prints one line with an array for each look.",
		Args:  a.args(0, 0),
	}
	a.problems.Duration(cmd.Flags(), &interval, "interval", topIntervalDefault, "pause between two looks")
	cmd.Flags().BoolVar(&once, "once", false, "look once and end")
	cmd.PreRun = func(*cobra.Command, []string) {
		if interval < topIntervalMin {
			a.problems.Add("--interval: must be %s at least, not %s", topIntervalMin, interval)
		}
	}
	cmd.RunE = a.configured(func(ctx context.Context, cfg *config.Config, _ *cobra.Command, _ []string) error {
		t := &top{app: a, cfg: cfg, repeat: !once}
		defer t.close()
		if once {
			return t.look(ctx)
		}
		return t.run(ctx, interval)
	})
	return cmd
}

// top is a status that is shown again and again, over one session for as long as that lives.
type top struct {
	app     *app
	cfg     *config.Config
	session *cli.Session
	repeat  bool
}

func (t *top) close() {
	if t.session != nil {
		t.session.Close()
	}
	t.session = nil
}

// run looks until ctx ends, which is how a person leaves. A database that cannot be reached for a while is shown as that;
// one that could not be reached at all ends it.
func (t *top) run(ctx context.Context, interval time.Duration) error {
	if err := t.look(ctx); err != nil {
		return t.left(ctx, err)
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		err := t.look(ctx)
		if failure, ok := errors.AsType[*cli.Failure](err); ok && failure.Code == cli.ExitDatabase && ctx.Err() == nil {
			t.close()
			err = t.show([]byte(failure.Text + "\n"))
		}
		if err != nil {
			return t.left(ctx, err)
		}
	}
}

// left hides an error that only says that a person left.
func (*top) left(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// look prints the status once.
func (t *top) look(ctx context.Context) (err error) {
	if t.session == nil {
		t.session, err = cli.Open(ctx, t.cfg, cli.SessionOptions{Command: "top", Need: cli.Viewer})
		if err != nil {
			return err
		}
	}
	if t.app.printer().JSON() {
		return t.lookJSON(ctx)
	}
	var page bytes.Buffer
	paper := &app{stdout: &page, stderr: t.app.stderr, output: "table"}
	if err := paper.status(ctx, t.session, ""); err != nil {
		return err
	}
	pending, err := t.session.Table(ctx, topPendingSQL, topPending)
	if err != nil {
		return err
	}
	if len(pending.Rows) > 0 {
		page.WriteString("\n")
		columns := []cli.Column{cli.Col("target"), cli.Col("resource"), cli.Col("key"), cli.Col("state"), cli.Col("reason")}
		if err := paper.printer().Table(pending, columns, ""); err != nil {
			return err
		}
	}
	return t.show(page.Bytes())
}

func (t *top) lookJSON(ctx context.Context) error {
	table, err := t.session.Table(ctx, statusSQL, nil)
	if err != nil {
		return err
	}
	line, err := json.Marshal(table.JSON())
	if err != nil {
		return fmt.Errorf("print as JSON: %w", err)
	}
	return t.write(append(line, '\n'))
}

// show prints a page, over the last one when it is shown again and again.
func (t *top) show(page []byte) error {
	if !t.repeat || t.app.printer().JSON() {
		return t.write(page)
	}
	page = bytes.ReplaceAll(page, []byte("\n"), []byte(ansiLine+"\n"))
	return t.write(append(append([]byte(ansiHome), page...), ansiClear...))
}

func (t *top) write(text []byte) error {
	if _, err := t.app.stdout.Write(text); err != nil {
		return fmt.Errorf("print the status: %w", err)
	}
	return nil
}
