package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/pgreconciler/reconciler/internal/cli"
)

const (
	applyWatchInterval   = time.Second
	applyAttemptsDefault = 10 // like begin_resync()
	applyAttemptsMost    = 1000

	applyListSQL = `SELECT * FROM reconciler.apply_status WHERE $1 OR completed_at IS NULL ORDER BY id DESC LIMIT $2`
	applyShowSQL = `SELECT s.*, (SELECT coalesce(json_agg(t ORDER BY t.ordinal, t.target), '[]') FROM reconciler.apply_targets t WHERE t.apply = s.id) AS by_target
		FROM reconciler.apply_status s WHERE s.id = $1`
	applyTargetsSQL = `SELECT * FROM reconciler.apply_targets WHERE apply = $1 ORDER BY ordinal, target`
)

func (a *app) applyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "apply",
		Short: "Follow and steer applies: changes that roll out as one",
		Long: "An apply is the changes of one transaction, made one by SELECT reconciler.begin_apply('release 42') in it. These\n" +
			"commands follow one by its number and steer it.",
		Args: a.subcommand,
		RunE: group,
	}
	cmd.AddCommand(
		a.applyListCommand(), a.applyShowCommand(), a.applyWatchCommand(), a.applyWaitCommand(),
		a.applyOrder("pause", "Start in no further target", "Has an apply start in no further target until release. What runs ends."),
		a.applyOrder("stop", "Stop an apply, also where it runs", "Stops an apply: calls that are on their way end, no other begins, until start."),
		a.applyOrder("start", "Let a stopped apply go on", "Lets a stopped apply go on where it was."),
		a.applyOrder("release", "Let a paused apply go on", "Lets a paused apply go on, also past what failed. One that failed or was cancelled lets go of the objects that it still holds."),
		a.applyOrder("cancel", "End an apply for good", "Ends an apply for good. Objects that it has not reached keep what they have, until release or a newer apply."),
		a.applyRetryCommand(), a.applyResyncCommand(),
	)
	return cmd
}

// applyNumber reads an apply's number.
func applyNumber(text string) (int64, error) {
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil || id < 1 {
		return 0, cli.Usage(fmt.Sprintf("an apply has a number, and %q is none", text), "`reconciler apply list` shows them")
	}
	return id, nil
}

func (a *app) applyOrder(verb, short, long string) *cobra.Command {
	var reason string
	cmd := &cobra.Command{Use: verb + " APPLY", Short: short, Long: long, Args: a.args(1, 1)}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the log of the apply")
	cmd.RunE = a.onApply(cli.Operator, func(ctx context.Context, s *cli.Session, id int64) error {
		text, err := s.Text(ctx, "SELECT reconciler.apply_"+verb+"($1, $2)", id, cli.Optional(reason))
		if err != nil {
			return err
		}
		return a.printer().Message(text)
	})
	return cmd
}

func (a *app) applyRetryCommand() *cobra.Command {
	var reason, target string
	cmd := &cobra.Command{
		Use: "retry APPLY", Short: "Try again what failed of an apply", Args: a.args(1, 1),
		Long: "Tries again what failed of an apply, in one target or all, with fresh attempts. What a halt kept from starting gets its turn when that succeeds.",
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the log of the apply")
	cmd.Flags().StringVar(&target, "target", "", "in this target only")
	cmd.RunE = a.onApply(cli.Operator, func(ctx context.Context, s *cli.Session, id int64) error {
		text, err := s.Text(ctx, "SELECT reconciler.apply_retry($1, $2, $3)", id, cli.Optional(target), cli.Optional(reason))
		if err != nil {
			return err
		}
		return a.printer().Message(text)
	})
	return cmd
}

func (a *app) applyResyncCommand() *cobra.Command {
	var order struct {
		title, strategy, waves, onFailure, labels string
		targets, keys                             []string
		soak                                      time.Duration
		attempts                                  int
	}
	cmd := &cobra.Command{
		Use: "resync RESOURCE", Short: "Apply objects again, as an apply", Args: a.args(1, 1),
		Long: "Begins an apply that applies objects of a resource again, also where nothing has changed, one target after the other.",
	}
	flags := cmd.Flags()
	flags.StringVar(&order.title, "title", "", "how to call it; none: after the resource")
	flags.StringArrayVar(&order.targets, "target", nil, "in this target only; may be given again")
	flags.StringArrayVar(&order.keys, "key", nil, "this object only; may be given again")
	a.problems.Choice(flags, &order.strategy, "strategy", "", []string{"rolling", "parallel", "waves"}, "which targets come first")
	flags.StringVar(&order.waves, "waves", "", `with --strategy waves: such as '[["eu"], ["us", "asia"]]'`)
	a.problems.Choice(flags, &order.onFailure, "on-failure", "", []string{"halt", "pause", "continue"}, "what a failure does to targets that have not started")
	a.problems.Duration(flags, &order.soak, "soak", 0, "how long to wait after a target before the next")
	a.problems.Int(flags, &order.attempts, "attempts", applyAttemptsDefault, 1, applyAttemptsMost, "how often an object may fail")
	flags.StringVar(&order.labels, "labels", "{}", `for hooks and queries: such as '{"ticket": "OPS-1"}'`)
	begin := a.onDatabase(cli.SessionOptions{Need: cli.Operator}, func(ctx context.Context, s *cli.Session, args []string) error {
		id, err := s.Text(ctx, `SELECT reconciler.begin_resync($1, $2, $3, $4, $5, $6, $7::text::jsonb, make_interval(secs => $8), $9, $10::text::jsonb)::text`,
			args[0], cli.Optional(order.title), order.targets, order.keys, order.onFailure, order.strategy, cli.Optional(order.waves), order.soak.Seconds(), order.attempts, order.labels)
		if err != nil {
			return err
		}
		return a.printer().Message(fmt.Sprintf("apply %s begins; `reconciler apply watch %s` follows it", id, id))
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if order.waves != "" && !json.Valid([]byte(order.waves)) {
			return cli.Usage(fmt.Sprintf("--waves must be JSON, and %q is none", order.waves), `such as '[["eu"], ["us", "asia"]]'`)
		}
		if !json.Valid([]byte(order.labels)) {
			return cli.Usage(fmt.Sprintf("--labels must be JSON, and %q is none", order.labels), `such as '{"ticket": "OPS-1"}'`)
		}
		return begin(cmd, args)
	}
	return cmd
}

// onApply is onDatabase for a command whose one argument is the number of an apply.
func (a *app) onApply(need cli.Need, fn func(ctx context.Context, s *cli.Session, id int64) error) func(*cobra.Command, []string) error {
	var id int64
	run := a.onDatabase(waitSession(need), func(ctx context.Context, s *cli.Session, _ []string) error { return fn(ctx, s, id) })
	return func(cmd *cobra.Command, args []string) (err error) {
		if len(args) == 1 { // run says how many there must be
			if id, err = applyNumber(args[0]); err != nil {
				return err
			}
		}
		return run(cmd, args)
	}
}

func (a *app) applyListCommand() *cobra.Command {
	var all bool
	var limit int
	cmd := &cobra.Command{
		Use: "list", Short: "List applies that have not ended", Args: a.args(0, 0),
		Long: "Lists applies that have not ended, the newest first; with --all also those that have.",
	}
	cmd.Flags().BoolVar(&all, "all", false, "also those that have ended")
	a.problems.Int(cmd.Flags(), &limit, "limit", listRowsDefault, 1, listRowsMax, "list at most so many")
	cmd.RunE = a.onDatabase(cli.SessionOptions{Need: cli.Viewer}, func(ctx context.Context, s *cli.Session, _ []string) error {
		table, err := s.Table(ctx, applyListSQL, all, limit)
		if err != nil {
			return err
		}
		return a.printer().Table(table, []cli.Column{
			cli.Titled("APPLY", "id"), cli.Col("title"), cli.Col("state"), {Title: "TARGETS", Value: outOf("targets_done", "targets")},
			{Title: "OBJECTS", Value: outOf("completed", "tasks")}, cli.Col("failed"), cli.Titled("BY", "created_by"), cli.Time("CREATED AT", "created_at"), cli.Col("error"),
		}, "no apply is under way")
	})
	return cmd
}

func outOf(part, whole string) func(cli.Row) string {
	return func(r cli.Row) string { return r.Text(part) + "/" + r.Text(whole) }
}

func (a *app) applyShowCommand() *cobra.Command {
	return &cobra.Command{
		Use: "show APPLY", Short: "Show how far an apply is, target by target", Args: a.args(1, 1),
		Long: "Shows an apply: its state, what failed first, what to do next, and a line for each target with what that waits for.",
		RunE: a.onApply(cli.Viewer, func(ctx context.Context, s *cli.Session, id int64) error {
			_, err := a.showApply(ctx, s, id)
			return err
		}),
	}
}

// showApply prints an apply and reports whether it has ended.
func (a *app) showApply(ctx context.Context, s *cli.Session, id int64) (ended bool, err error) {
	table, err := s.Table(ctx, applyShowSQL, id)
	if err != nil {
		return false, err
	}
	if len(table.Rows) == 0 {
		return false, cli.Usage(fmt.Sprintf("there is no apply %d", id), "`reconciler apply list --all` shows them")
	}
	row := table.Rows[0]
	ended = row.Text("completed_at") != ""
	if a.printer().JSON() {
		return ended, a.printer().Value(table.JSON()[0])
	}
	lines := []string{
		fmt.Sprintf("apply %d (%s): %s", id, row.Text("title"), row.Text("state")),
		fmt.Sprintf("%s of %s targets done; %s of %s objects completed, %s failed, %s superseded, %s pending",
			row.Text("targets_done"), row.Text("targets"), row.Text("completed"), row.Text("tasks"), row.Text("failed"), row.Text("superseded"), row.Text("pending")),
	}
	if first := row.Text("error"); first != "" {
		lines = append(lines, "First failure: "+first)
	}
	lines = append(lines, "Next: "+row.Text("next"), "")
	for _, line := range lines {
		if err := a.printer().Line(line); err != nil {
			return false, err
		}
	}
	targets, err := s.Table(ctx, applyTargetsSQL, id)
	if err != nil {
		return false, err
	}
	return ended, a.printer().Table(targets, []cli.Column{
		cli.Col("ordinal"), cli.Col("target"), cli.Col("phase"), {Title: "OBJECTS", Value: outOf("completed", "tasks")}, cli.Col("failed"), cli.Col("detail"),
	}, emptyApply(row))
}

// emptyApply says why an apply has no targets.
func emptyApply(apply cli.Row) string {
	switch apply.Text("state") {
	case "completed", "cancelled":
		return "it has changed nothing that is tracked"
	case "failed":
		return "its objects were not written down"
	}
	return "its objects are being written down"
}

func (a *app) applyWatchCommand() *cobra.Command {
	return &cobra.Command{
		Use: "watch APPLY", Short: "Show an apply again and again until it ends", Args: a.args(1, 1),
		Long: "Shows an apply again and again until it has ended, or until Ctrl-C.",
		RunE: a.onApply(cli.Viewer, func(ctx context.Context, s *cli.Session, id int64) error {
			for {
				ended, err := a.showApply(ctx, s, id)
				if err != nil || ended {
					return err
				}
				select {
				case <-time.After(applyWatchInterval):
				case <-ctx.Done():
					return nil
				}
				if err := a.printer().Line(""); err != nil {
					return err
				}
			}
		}),
	}
}

func (a *app) applyWaitCommand() *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use: "wait APPLY", Short: "Wait until an apply has ended", Args: a.args(1, 1),
		Long: "Returns 0 when the apply is completed, 1 when it has failed, was cancelled or superseded, or waits for you, and 4 at the timeout.",
	}
	a.problems.Duration(cmd.Flags(), &timeout, "timeout", waitTimeoutDefault, "how long to wait; 0 only looks")
	cmd.RunE = a.onApply(cli.Viewer, func(ctx context.Context, s *cli.Session, id int64) error {
		s.EndWithClient(ctx)
		table, err := s.Table(ctx, "SELECT * FROM reconciler.apply_wait($1, make_interval(secs => $2))", id, timeout.Seconds())
		if err != nil {
			return err
		}
		row := table.Rows[0]
		if a.printer().JSON() {
			err = a.printer().Value(table.JSON()[0])
		} else {
			err = a.printer().Line(fmt.Sprintf("apply %d is %s", id, row.Text("state")))
		}
		switch {
		case err != nil:
			return err
		case row.True("timed_out"):
			return &cli.Failure{Code: cli.ExitTimeout, Text: fmt.Sprintf("apply %d did not end within %s", id, timeout), Hint: row.Text("next")}
		case row.Text("state") != "completed":
			text := fmt.Sprintf("apply %d is %s", id, row.Text("state"))
			if first := row.Text("error"); first != "" {
				text += ": " + first
			}
			return &cli.Failure{Code: cli.ExitDiffers, Text: text, Hint: row.Text("next")}
		}
		return nil
	})
	return cmd
}
