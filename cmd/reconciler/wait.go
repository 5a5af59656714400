package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/pgreconciler/reconciler/internal/cli"
)

const (
	waitTimeoutDefault = 30 * time.Second
	// unappliedMax is how many rows reconciler.wait() returns at most.
	unappliedMax = 100
)

const (
	waitSQL        = `SELECT * FROM reconciler.wait(make_interval(secs => $1), $2)`
	askHealthSQL   = `SELECT reconciler.ask_health($2, greatest(least(make_interval(secs => $1), '1 day'), '5 seconds'))::text`
	waitHealthySQL = `SELECT *, true AS timed_out FROM reconciler.wait_healthy(make_interval(secs => $1), $2, $3::timestamptz)`
)

func (a *app) waitCommand() *cobra.Command {
	var timeout time.Duration
	var target string
	var healthy bool
	cmd := &cobra.Command{
		Use:   "wait",
		Short: "Wait until everything committed so far is applied, and healthy",
		Long: "Returns 0 as soon as everything that was committed before the call is applied, everywhere or in one target.\n" +
			"Otherwise it prints what is not applied and why, and returns 4 at the timeout, or 1 at once when waiting\n" +
			"cannot help (objects that are blocked, held for approval, or in a paused target).\n\n" +
			"With --healthy it then asks whether what was applied is healthy, and waits until it is. A target whose driver\n" +
			"does not report health is healthy when everything is applied.",
		Args: a.args(0, 0),
	}
	a.problems.Duration(cmd.Flags(), &timeout, "timeout", waitTimeoutDefault, "how long to wait; 0 only looks")
	cmd.Flags().StringVar(&target, "target", "", "wait for this target only")
	cmd.Flags().BoolVar(&healthy, "healthy", false, "wait until everything is healthy, too")
	cmd.RunE = a.onDatabase(waitSession(cli.Viewer), func(ctx context.Context, s *cli.Session, _ []string) error {
		return a.wait(ctx, s, timeout, target, healthy)
	})
	return cmd
}

// waitSession lifts the limit on a statement's duration.
func waitSession(need cli.Need) cli.SessionOptions {
	return cli.SessionOptions{Need: need, Settings: map[string]string{"statement_timeout": "0"}}
}

// unapplied is one thing that is not applied.
type unapplied struct {
	Target   string `json:"target,omitempty"`
	Resource string `json:"resource,omitempty"`
	Key      string `json:"key,omitempty"`
	State    string `json:"state"`
	Reason   string `json:"reason"`
}

func (u unapplied) String() string {
	where := u.Target
	if where == "" {
		where = "all targets"
	}
	if u.Resource != "" {
		where += " " + u.Resource
	}
	if u.Key != "" {
		where += "/" + u.Key
	}
	return fmt.Sprintf("%s: %s: %s", where, u.State, u.Reason)
}

// wait waits and prints what came of it. target "" means all of them.
func (a *app) wait(ctx context.Context, s *cli.Session, timeout time.Duration, target string, healthy bool) error {
	s.EndWithClient(ctx)
	began := time.Now()
	done, goal := "applied", "applied"
	left, timedOut, err := waitFor(ctx, s, waitSQL, timeout.Seconds(), cli.Optional(target))
	if err != nil {
		return err
	}
	if healthy && len(left) == 0 {
		done, goal = "applied and healthy", "healthy"
		remaining := max(0, timeout-time.Since(began)).Seconds()
		since, err := s.Text(ctx, askHealthSQL, remaining, cli.Optional(target))
		if err != nil {
			return err
		}
		if left, timedOut, err = waitFor(ctx, s, waitHealthySQL, remaining, cli.Optional(target), since); err != nil {
			return err
		}
	}
	if err := a.printWait(left, timedOut, done); err != nil {
		return err
	}
	switch {
	case len(left) == 0:
		return nil
	case timedOut:
		return &cli.Failure{Code: cli.ExitTimeout, Text: fmt.Sprintf("not everything was %s within %s", goal, timeout)}
	}
	return &cli.Failure{Code: cli.ExitDiffers, Text: "not everything is applied, and waiting cannot help"}
}

// waitFor returns what is left when a wait has ended.
func waitFor(ctx context.Context, s *cli.Session, sql string, args ...any) (left []unapplied, timedOut bool, err error) {
	table, err := s.Table(ctx, sql, args...)
	if err != nil {
		return nil, false, err
	}
	left = make([]unapplied, len(table.Rows))
	for i, row := range table.Rows {
		left[i] = unapplied{row.Text("target"), row.Text("resource"), row.Text("key"), row.Text("state"), row.Text("reason")}
		timedOut = timedOut || row.True("timed_out")
	}
	return left, timedOut, nil
}

// printWait prints what is left; done is what everything is when nothing is.
func (a *app) printWait(left []unapplied, timedOut bool, done string) error {
	if a.printer().JSON() {
		unhealthy := len(left) > 0 && done != "applied"
		return a.printer().Value(struct {
			Applied  bool        `json:"applied"`
			TimedOut bool        `json:"timed_out"`
			Waiting  []unapplied `json:"waiting"`
		}{len(left) == 0 || unhealthy, timedOut, left})
	}
	if len(left) == 0 {
		return a.printer().Line("everything is " + done)
	}
	for _, one := range left {
		if err := a.printer().Line(one.String()); err != nil {
			return err
		}
	}
	if len(left) == unappliedMax {
		a.note("there may be more than these %d", unappliedMax)
	}
	return nil
}
