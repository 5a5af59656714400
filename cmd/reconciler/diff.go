package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/pgreconciler/reconciler/internal/cli"
	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/sync"
)

const diffRowsDefault = 1000

func (a *app) diffCommand() *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use:   "diff [TARGET [RESOURCE [KEY]]]",
		Short: "Compare rows, ledger and what the targets really have",
		Long: "Compares the rows of every resource with the ledger, and the ledger with what each target really has, where its\n" +
			"driver can list that. It changes nothing, and needs the targets' configuration and secrets. The exit code is 1\n" +
			"when something differs. Kinds: missing (wanted, not there), different (there, with another content), stale (there,\n" +
			"no longer wanted), orphan (there, known to nobody), unreadable (its row cannot be evaluated), and the states\n" +
			"pending, failing, blocked and held of what is on its way or stuck. What changes during the look may be listed.\n\n" +
			"Where the driver can tell (kubernetes), each difference comes with what the next call would change in the target, field\n" +
			"by field, and why the target would refuse it. The exit code is 3 when a target does not answer, and 4 when it does not\n" +
			"answer within its timeout. The columns of a composite key are joined by \"/\". A key that begins with \"-\" comes after\n" +
			"\"--\".",
		Args: a.args(0, 3),
	}
	a.problems.Int(cmd.Flags(), &limit, "limit", diffRowsDefault, 1, listRowsMax, "list at most so many differences")
	cmd.RunE = a.configured(func(ctx context.Context, cfg *config.Config, cmd *cobra.Command, args []string) error {
		targets, err := chosenTargets(cfg, args[:min(len(args), 1)])
		if err != nil {
			return err
		}
		drivers, err := a.openTargets(ctx, targets)
		if err != nil {
			return err
		}
		defer a.closeTargets(ctx, drivers)
		s, err := cli.Open(ctx, cfg, cli.SessionOptions{Command: cmd.Name(), Need: cli.Runtime, Notices: a.stderr})
		if err != nil {
			return err
		}
		defer s.Close()
		d := &differences{limit: limit, drivers: drivers}
		if len(args) > 1 {
			d.resource = args[1]
		}
		if len(args) > 2 {
			d.key = &args[2]
		}
		return a.diff(ctx, s, d)
	})
	return cmd
}

// openTargets opens the drivers of all targets, or says of each what is wrong.
func (a *app) openTargets(ctx context.Context, targets []config.Target) (drivers []opened, err error) {
	for _, t := range targets {
		drv, err := a.openTarget(t)
		if err != nil {
			a.problems.Add("%v", err)
			continue
		}
		drivers = append(drivers, opened{t, drv})
	}
	if err := a.problems.Err(nil, "diff needs the options and secrets of the targets that it looks at"); err != nil {
		a.closeTargets(ctx, drivers)
		return nil, err
	}
	return drivers, nil
}

// opened is a target with its driver.
type opened struct {
	config.Target

	driver driver.Driver
}

func (a *app) closeTargets(ctx context.Context, all []opened) {
	for _, one := range all {
		a.closeDriver(ctx, one.Name, one.driver)
	}
}

// differences is what a diff has found so far.
type differences struct {
	limit    int
	resource string  // the only one; "": all
	key      *string // of the only object; nil: all
	drivers  []opened
	found    []cli.Difference
	more     int // found beyond the limit
	rows     int64
	failed   []error
}

func (d *differences) add(one cli.Difference) error {
	if len(d.found) < d.limit {
		d.found = append(d.found, one)
	} else {
		d.more++
	}
	return nil
}

func (a *app) diff(ctx context.Context, s *cli.Session, d *differences) error {
	for _, one := range d.drivers {
		if err := d.compare(ctx, a, s, one); err != nil {
			return s.Fail(ctx, err)
		}
	}
	slices.SortFunc(d.found, func(x, y cli.Difference) int {
		return cmp.Or(cmp.Compare(x.Target, y.Target), cmp.Compare(x.Resource, y.Resource), cmp.Compare(x.Key, y.Key))
	})
	if err := a.printDifferences(d); err != nil {
		return err
	}
	switch n := len(d.found) + d.more; {
	case len(d.failed) > 0:
		return d.failure()
	case n == 1:
		return &cli.Failure{Code: cli.ExitDiffers, Text: "1 object differs"}
	case n > 0:
		return &cli.Failure{Code: cli.ExitDiffers, Text: fmt.Sprintf("%d objects differ", n)}
	}
	return nil
}

// compare adds what differs in one target. A target that does not answer spoils no other.
func (d *differences) compare(ctx context.Context, a *app, s *cli.Session, one opened) error {
	differ := cli.Differ{DB: s.Conn(), Target: one.Name, Resource: d.resource, Key: d.key, Found: d.add}
	if asked, ok := one.driver.(driver.Differ); ok {
		differ.Asker = &cli.Asker{Driver: asked, Timeout: one.Timeout, Concurrency: one.Concurrency}
	}
	lister, ok := one.driver.(driver.Lister)
	if differ.Lister = lister; !ok {
		a.note("target %s cannot say what it has: what the ledger says of it is taken for true", one.Name)
	}
	first := len(d.found)
	rows, err := differ.Run(ctx)
	d.rows += rows
	if err == nil && differ.Asker != nil {
		err = differ.Ask(ctx, d.found[first:])
	}
	unlisted, isUnlisted := errors.AsType[*sync.ListError](err)
	unasked, isUnasked := errors.AsType[*cli.AskError](err)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case isUnlisted:
		d.failed = append(d.failed, unlisted)
	case isUnasked:
		d.failed = append(d.failed, unasked)
	default:
		return err
	}
	return nil
}

// failure returns the error for targets that did not answer.
func (d *differences) failure() error {
	err := errors.Join(d.failed...)
	code := cli.ExitTimeout
	for _, one := range d.failed {
		if asked, ok := errors.AsType[*cli.AskError](one); !ok || !asked.Timeout {
			code = cli.ExitUnreachable
		}
	}
	return &cli.Failure{Code: code, Text: err.Error(), Err: err}
}

func (a *app) printDifferences(d *differences) error {
	if d.more > 0 {
		a.note("%d more are not listed; --limit shows more", d.more)
	}
	if a.printer().JSON() {
		if d.found == nil {
			d.found = []cli.Difference{}
		}
		return a.printer().Value(d.found)
	}
	for _, one := range d.found {
		if err := a.printer().Line(fmt.Sprintf("%s %s/%s: %s: %s", one.Target, one.Resource, one.Key, one.Kind, one.Reason)); err != nil {
			return err
		}
		for _, change := range one.Changes {
			if err := a.printer().Line("    " + change.String()); err != nil {
				return err
			}
		}
	}
	if len(d.found) == 0 && len(d.failed) == 0 {
		return a.printer().Line(fmt.Sprintf("no differences: %s, %s compared", counted(len(d.drivers), "target"), counted(int(d.rows), "running row")))
	}
	return nil
}
