package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pgreconciler/reconciler/internal/cli"
)

const (
	listRowsDefault = 100
	listRowsMax     = 100_000

	noTargets = "No target is known yet: `reconciler run` writes down those of its config when it starts."
)

const statusSQL = `SELECT * FROM reconciler.status WHERE $1::text IS NULL OR target = $1 ORDER BY target`

// listing is one kind of rows that status can list.
type listing struct {
	flag, usage string
	sql         string // $1 target, $2 resource (NULL: all), $3 rows
	columns     []cli.Column
	empty       string
}

const listingWhere = ` WHERE ($1::text IS NULL OR target = $1) AND ($2::text IS NULL OR resource = $2) ORDER BY target, resource, key LIMIT $3`

var listings = []listing{
	{
		flag: "objects", usage: "list every object", sql: "SELECT * FROM reconciler.objects" + listingWhere, empty: "no objects",
		columns: []cli.Column{
			cli.Col("target"), cli.Col("resource"), cli.Col("key"), cli.Col("state"), {Title: "WANTED", Value: wanted},
			cli.Titled("REVISION", "applied_revision"), cli.Time("APPLIED AT", "applied_at"), cli.Col("attempts"), cli.Col("last_error"),
		},
	},
	{
		flag: "pending", usage: "list what is on its way, and why it is not applied", sql: "SELECT * FROM reconciler.pending" + listingWhere, empty: "nothing is pending",
		columns: []cli.Column{cli.Col("target"), cli.Col("resource"), cli.Col("key"), cli.Col("state"), cli.Col("reason")},
	},
	{
		flag: "failing", usage: "list failing and blocked objects", sql: "SELECT * FROM reconciler.failing" + listingWhere, empty: "nothing is failing",
		columns: []cli.Column{
			cli.Col("target"), cli.Col("resource"), cli.Col("key"), cli.Col("state"), cli.Col("attempts"),
			cli.Time("NEXT ATTEMPT", "next_attempt_at"), cli.Col("last_error"),
		},
	},
	{
		flag: "held", usage: "list held objects, and what they wait for", sql: "SELECT * FROM reconciler.held" + listingWhere, empty: "nothing is held",
		columns: []cli.Column{cli.Col("target"), cli.Col("resource"), cli.Col("key"), {Title: "WANTED", Value: wanted}, cli.Col("held_by"), cli.Col("reason")},
	},
	{
		flag: "drift", usage: "list what the last sync in report mode found", sql: "SELECT * FROM reconciler.drift" + listingWhere, empty: "no drift was reported",
		columns: []cli.Column{cli.Col("target"), cli.Col("resource"), cli.Col("key"), cli.Col("kind"), cli.Time("FOUND AT", "found_at")},
	},
}

func wanted(r cli.Row) string {
	if r.True("wanted") {
		return "yes"
	}
	return "no"
}

func (a *app) statusCommand() *cobra.Command {
	var resource string
	var limit int
	asked := make([]bool, len(listings))
	cmd := &cobra.Command{
		Use:   "status [TARGET]",
		Short: "Show whether everything is applied, and what is in the way",
		Long: "Shows one row for each target: its state, its objects by state, how far it lags behind, its last complete sync and\n" +
			"the process that works on it; below, what is in the way. With one of the flags it lists objects instead.\n" +
			"The exit code is 0 whatever the states are; `reconciler wait` tells whether all is applied.",
		Args: a.args(0, 1),
	}
	for i, l := range listings {
		cmd.Flags().BoolVar(&asked[i], l.flag, false, l.usage)
	}
	cmd.Flags().StringVar(&resource, "resource", "", "list objects of this resource only")
	a.problems.Int(cmd.Flags(), &limit, "limit", listRowsDefault, 1, listRowsMax, "list at most so many")
	cmd.PreRun = func(cmd *cobra.Command, _ []string) { a.checkListing(cmd, asked) }
	cmd.RunE = a.onDatabase(cli.SessionOptions{Need: cli.Viewer}, func(ctx context.Context, s *cli.Session, args []string) error {
		target := ""
		if len(args) > 0 {
			target = args[0]
			if err := knownTarget(ctx, s, target); err != nil {
				return err
			}
		}
		if err := knownResource(ctx, s, resource); err != nil {
			return err
		}
		if i := slices.Index(asked, true); i >= 0 {
			return a.list(ctx, s, listings[i], target, resource, limit)
		}
		return a.status(ctx, s, target)
	})
	return cmd
}

func (a *app) checkListing(cmd *cobra.Command, asked []bool) {
	var flags []string
	for i, l := range listings {
		if asked[i] {
			flags = append(flags, "--"+l.flag)
		}
	}
	if len(flags) > 1 {
		a.problems.Add("%s: give one of them", strings.Join(flags, ", "))
	}
	for _, name := range []string{"resource", "limit"} {
		if len(flags) == 0 && cmd.Flags().Changed(name) {
			a.problems.Add("--%s needs one of --objects, --pending, --failing, --held, --drift", name)
		}
	}
}

func knownTarget(ctx context.Context, s *cli.Session, name string) error {
	hint, err := s.Text(ctx, "SELECT CASE WHEN NOT EXISTS (SELECT FROM reconciler.targets WHERE name = $1) THEN reconciler.target_names() END", name)
	if err != nil || hint == "" {
		return err
	}
	return cli.Usage("no target is named "+cli.QuoteLiteral(name), hint)
}

// knownResource takes "" for all of them.
func knownResource(ctx context.Context, s *cli.Session, name string) error {
	if name == "" {
		return nil
	}
	hint, err := s.Text(ctx, "SELECT CASE WHEN NOT EXISTS (SELECT FROM reconciler.resources WHERE name = $1) THEN reconciler.resource_names() END", name)
	if err != nil || hint == "" {
		return err
	}
	return cli.Usage("no resource is named "+cli.QuoteLiteral(name), hint)
}

func (a *app) list(ctx context.Context, s *cli.Session, l listing, target, resource string, limit int) error {
	table, err := s.Table(ctx, l.sql, cli.Optional(target), cli.Optional(resource), limit+1)
	if err != nil {
		return err
	}
	if len(table.Rows) > limit {
		table.Rows = table.Rows[:limit]
		a.note("there are more than %d; --limit shows more", limit)
	}
	return a.printer().Table(table, l.columns, l.empty)
}

var statusColumns = []cli.Column{
	cli.Col("target"), cli.Col("state"), cli.Col("objects"), cli.Col("applied"), cli.Col("pending"), cli.Col("failing"), cli.Col("blocked"), cli.Col("held"),
	{Title: "LAG", Value: lag}, cli.Time("LAST SYNC", "last_sync"), cli.Col("owner"),
}

func lag(r cli.Row) string {
	if seconds := r.Text("lag_seconds"); seconds != "" {
		return seconds + "s"
	}
	return "-"
}

// status prints one row for each target and, for people, what is in the way.
func (a *app) status(ctx context.Context, s *cli.Session, target string) error {
	table, err := s.Table(ctx, statusSQL, cli.Optional(target))
	if err != nil {
		return err
	}
	if err := a.printer().Table(table, statusColumns, noTargets); err != nil || a.printer().JSON() {
		return err
	}
	obstacles := obstacles(table)
	if len(obstacles) > 0 {
		obstacles = append([]string{""}, obstacles...)
	}
	for _, line := range obstacles {
		if err := a.printer().Line(line); err != nil {
			return err
		}
	}
	return nil
}

// obstacles are the sentences of the status: pauses, held deletes, open circuits, failing reloads, errors, and syncs on their way.
func obstacles(table *cli.Table) []string {
	var lines []string
	for _, row := range table.Rows {
		for _, column := range []string{"paused", "guard", "circuit", "trouble", "last_error", "sync"} {
			text := row.Text(column)
			if text == "" || column == "last_error" && row.Text("circuit") != "" {
				continue
			}
			if column == "last_error" {
				text = "last error: " + text
			}
			lines = append(lines, fmt.Sprintf("%s: %s", row.Text("target"), text))
		}
	}
	return lines
}
