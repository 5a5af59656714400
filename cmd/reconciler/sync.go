package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/pgreconciler/reconciler/internal/cli"
)

const syncTimeoutDefault = 5 * time.Minute

// What resync() asked for, or what waited already and counts for it.
const syncRequestedSQL = `SELECT s.id FROM reconciler.syncs s
WHERE s.state = 'requested' AND s.resource IS NOT DISTINCT FROM $2 AND ($1::text IS NULL OR s.target = $1)`

// There is no function for a report: it is what the loops do at intervals, asked for out of turn. A sync that waits
// already stays as it is: repairing includes finding.
const syncReportSQL = `WITH asked AS (
    INSERT INTO reconciler.sync_runs (target_id, resource_id, reason, mode, verify)
    SELECT t.id, reconciler.named_resource($2), 'resync', 'report', true FROM reconciler.targets t
    WHERE t.configured AND ($1::text IS NULL OR t.id = (reconciler.named_target($1)).id)
    ON CONFLICT (target_id, coalesce(resource_id, 0)) WHERE state = 'requested' DO UPDATE SET verify = true
    RETURNING target_id, mode
), told AS (SELECT pg_notify('reconciler_control', ''))
SELECT string_agg(t.name || CASE a.mode WHEN 'repair' THEN ' (one that repairs was requested already)' ELSE '' END, ', ' ORDER BY t.name)
FROM asked a JOIN reconciler.targets t ON t.id = a.target_id, told`

const syncOutcomeSQL = `SELECT s.* FROM reconciler.syncs s WHERE s.id = ANY ($1) ORDER BY s.target`

var syncColumns = []cli.Column{
	cli.Col("target"), cli.Col("state"), cli.Col("mode"), cli.Col("rows"), cli.Col("upserts"), cli.Col("tombstones"), cli.Col("drifted"), cli.Col("held"), cli.Col("error"),
}

// syncOrder is what a call of sync asks for.
type syncOrder struct {
	target, resource string // "" for all
	report, wait     bool
	timeout          time.Duration
}

func (a *app) syncCommand() *cobra.Command {
	var order syncOrder
	cmd := &cobra.Command{
		Use:   "sync [TARGET]",
		Short: "Compare everything with its rows now, and repair it",
		Long: "Has a target (or every one) compared in full: every running row is looked at, what no row wants is deleted, and\n" +
			"where the driver can list, what the target really has is compared too. The processes do it; --wait waits for them.\n" +
			"With --report they only find out what differs; `reconciler status --drift` shows it. --report needs the rights\n" +
			"of kind runtime.",
		Args: a.args(0, 1),
	}
	cmd.Flags().StringVar(&order.resource, "resource", "", "compare this resource only")
	cmd.Flags().BoolVar(&order.report, "report", false, "find differences and leave them")
	cmd.Flags().BoolVar(&order.wait, "wait", false, "wait until it is complete and everything is applied")
	a.problems.Duration(cmd.Flags(), &order.timeout, "timeout", syncTimeoutDefault, "with --wait: how long")
	cmd.PreRun = func(cmd *cobra.Command, _ []string) {
		if cmd.Flags().Changed("timeout") && !order.wait {
			a.problems.Add("--timeout needs --wait")
		}
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		need := cli.Operator
		if order.report {
			need = cli.Runtime
		}
		return a.onDatabase(waitSession(need), func(ctx context.Context, s *cli.Session, args []string) error {
			if len(args) > 0 {
				order.target = args[0]
			}
			return a.sync(ctx, s, order)
		})(cmd, args)
	}
	return cmd
}

func (a *app) sync(ctx context.Context, s *cli.Session, order syncOrder) error {
	text, ids, err := requestSync(ctx, s, order)
	if err != nil {
		return err
	}
	if !order.wait {
		return a.printer().Message(text)
	}
	waited := &app{stdout: a.stderr, stderr: a.stderr, output: "table"} // the result on stdout is that of the syncs
	waitErr := waited.wait(ctx, s, order.timeout, order.target, false)
	if ctx.Err() != nil {
		return waitErr
	}
	table, err := s.Table(ctx, syncOutcomeSQL, ids)
	if err != nil {
		return err
	}
	if err := a.printer().Table(table, syncColumns, "the sync ended long ago"); err != nil {
		return err
	}
	return syncVerdict(table, order, waitErr)
}

// requestSync asks for the syncs and returns their ids: in one transaction, so that none can begin in between. After an
// error the session ends, and the transaction with it.
func requestSync(ctx context.Context, s *cli.Session, order syncOrder) (text string, ids []int64, err error) {
	if err := s.Exec(ctx, "BEGIN"); err != nil {
		return "", nil, err
	}
	if text, err = askSync(ctx, s, order); err != nil {
		return "", nil, err
	}
	rows, err := s.Conn().Query(ctx, syncRequestedSQL, cli.Optional(order.target), cli.Optional(order.resource))
	if err != nil {
		return "", nil, s.Fail(ctx, err)
	}
	if ids, err = pgx.CollectRows(rows, pgx.RowTo[int64]); err != nil {
		return "", nil, s.Fail(ctx, err)
	}
	return text, ids, s.Exec(ctx, "COMMIT")
}

func askSync(ctx context.Context, s *cli.Session, order syncOrder) (string, error) {
	if !order.report {
		return s.Text(ctx, "SELECT reconciler.resync($1, $2)", cli.Optional(order.target), cli.Optional(order.resource))
	}
	var names *string
	if err := s.Conn().QueryRow(ctx, syncReportSQL, cli.Optional(order.target), cli.Optional(order.resource)).Scan(&names); err != nil {
		return "", s.Fail(ctx, err)
	}
	if names == nil {
		hint, err := s.Text(ctx, "SELECT reconciler.target_names()")
		if err != nil {
			return "", err
		}
		return "", cli.Usage("no running process has the target in its config, so nobody can sync it", hint)
	}
	return fmt.Sprintf("report on %s requested", *names), nil
}

// syncVerdict is how `sync --wait` ends.
func syncVerdict(table *cli.Table, order syncOrder, waitErr error) error {
	drifted := false
	for _, row := range table.Rows {
		if row.Text("state") == "failed" {
			return &cli.Failure{Code: cli.ExitDiffers, Text: fmt.Sprintf("the sync of %s failed: %s", row.Text("target"), row.Text("error"))}
		}
		for _, column := range []string{"upserts", "tombstones", "drifted"} {
			drifted = drifted || row.Text(column) != "0"
		}
	}
	if waitErr == nil && order.report && drifted {
		return &cli.Failure{Code: cli.ExitDiffers, Text: "something differs", Hint: "`reconciler status --drift` lists it"}
	}
	return waitErr
}
