package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/pgreconciler/reconciler/internal/cli"
	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/migrate"
)

func (a *app) migrateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Make, change or remove the schema reconciler",
		Long: "Brings the schema reconciler of the database to the version of this binary, or back. The migrations are goose's:\n" +
			"`reconciler migrate print` shows them, and the goose command can apply them as well. Any number of processes\n" +
			"may call it at the same time. direct_url is used; its role must own the schema, or may create it.",
		Args: a.subcommand,
		RunE: group,
	}
	cmd.AddCommand(a.migrateUpCommand(), a.migrateDownCommand(), a.migrateStatusCommand(), a.migratePrintCommand())
	return cmd
}

func (a *app) migrateUpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "up",
		Short: "Apply every migration that the database lacks",
		Args:  a.args(0, 0),
		RunE: a.migration(func(ctx context.Context, url string) error {
			applied, err := migrate.Up(ctx, url)
			return a.printMigrated(applied, "applied", "the schema is up to date", err)
		}),
	}
}

func (a *app) migrateDownCommand() *cobra.Command {
	const none = -1
	var to int
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Take the newest migration back",
		Long: "Takes the newest migration back, or with --to every one that is newer than a version. --to 0 removes\n" +
			"everything that reconciler keeps in the database; what the targets have stays there.",
		Args: a.args(0, 0),
	}
	a.problems.Int(cmd.Flags(), &to, "to", none, 0, 1_000_000, "take back everything newer than this version")
	cmd.Flags().Lookup("to").DefValue = ""
	cmd.RunE = a.migration(func(ctx context.Context, url string) error {
		if to == none {
			applied, err := migrate.Down(ctx, url)
			return a.printMigrated(applied, "took back", "there was nothing to take back", err)
		}
		applied, err := migrate.DownTo(ctx, url, int64(to))
		return a.printMigrated(applied, "took back", "there was nothing to take back", err)
	})
	return cmd
}

// migration makes a RunE of what works with goose. A session is opened first: it says more clearly than goose does
// why there is no database, and afterwards whose the schema is.
func (a *app) migration(fn func(ctx context.Context, url string) error) func(*cobra.Command, []string) error {
	return a.configured(func(ctx context.Context, cfg *config.Config, cmd *cobra.Command, _ []string) error {
		session, err := cli.Open(ctx, cfg, cli.SessionOptions{Command: "migrate " + cmd.Name(), Need: cli.Owner})
		if err != nil {
			return err
		}
		defer session.Close()
		if err := session.NeedsSession(ctx); err != nil {
			return err
		}
		return session.Fail(ctx, fn(ctx, cfg.DirectURL.Reveal()))
	})
}

// migrated is one migration that was run.
type migrated struct {
	Version    int64  `json:"version"`
	Name       string `json:"name"`
	DurationMS int64  `json:"duration_ms"`
}

// printMigrated prints what was done, also when it ended with an error.
func (a *app) printMigrated(applied []migrate.Applied, did, nothing string, err error) error {
	if a.printer().JSON() {
		all := make([]migrated, len(applied))
		for i, one := range applied {
			all[i] = migrated{one.Version, one.Name, one.Duration.Milliseconds()}
		}
		return errors.Join(err, a.printer().Value(all))
	}
	for _, one := range applied {
		err = errors.Join(err, a.printer().Line(fmt.Sprintf("%s %s (%s)", did, one.Name, one.Duration.Round(time.Millisecond))))
	}
	if len(applied) == 0 && err == nil {
		return a.printer().Line(nothing)
	}
	return err
}

func (a *app) migrateStatusCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "List the migrations and which of them the database has",
		Long:  "Lists the migrations and which of them the database has. The exit code is 1 when the database has not exactly these.",
		Args:  a.args(0, 0),
		RunE: a.migration(func(ctx context.Context, url string) error {
			states, err := migrate.Status(ctx, url)
			if err != nil && len(states) == 0 {
				return err
			}
			if err := a.printMigrations(states); err != nil {
				return err
			}
			if err != nil {
				return &cli.Failure{Code: cli.ExitDiffers, Text: err.Error(), Err: err}
			}
			for _, s := range states {
				if s.Pending() {
					return cli.Silent(cli.ExitDiffers)
				}
			}
			return nil
		}),
	}
}

// migrationState is one migration of `migrate status`.
type migrationState struct {
	Version   int64      `json:"version"`
	Name      string     `json:"name"`
	AppliedAt *time.Time `json:"applied_at"`
}

func (a *app) printMigrations(states []migrate.State) error {
	if a.printer().JSON() {
		all := make([]migrationState, len(states))
		for i, s := range states {
			all[i] = migrationState{Version: s.Version, Name: s.Name}
			if at := s.AppliedAt.UTC(); !s.Pending() {
				all[i].AppliedAt = &at
			}
		}
		return a.printer().Value(all)
	}
	for _, s := range states {
		at := "pending"
		if !s.Pending() {
			at = s.AppliedAt.UTC().Format("2006-01-02 15:04:05Z")
		}
		if err := a.printer().Line(fmt.Sprintf("%-20s  %s", at, s.Name)); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) migratePrintCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "print",
		Short: "Print the SQL of every migration",
		Long:  "Prints the SQL of every migration, in order, as goose reads it. It needs no database.",
		Args:  a.args(0, 0),
		RunE:  a.plain(func(*cobra.Command, []string) error { return migrate.Print(a.stdout) }),
	}
}
