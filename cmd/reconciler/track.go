package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pgreconciler/reconciler/internal/cli"
	"github.com/pgreconciler/reconciler/internal/config"
)

// userNames is the search_path in which a person's relations and expressions are understood. The role's own one cannot
// be had: sessions of this program pin theirs.
const userNames = `"$user", public`

func (a *app) trackCommand() *cobra.Command {
	var def cli.Definition
	var goose bool
	cmd := &cobra.Command{
		Use:   "track RESOURCE RELATION",
		Short: "Make a resource from a table or view",
		Long: "Makes a resource from a table or view, as SELECT reconciler.track(...) does. --target, --running and --spec are\n" +
			"SQL expressions over a row of the relation. Calling it again with the same arguments changes nothing; with\n" +
			"others it replaces the definition. Names without a schema are looked for in the schema of the role and in public.\n\n" +
			"With --goose it prints a goose migration that does (and undoes) the same, and executes nothing. Where a database\n" +
			"is at hand the definition is tried there first, in a transaction that is rolled back.",
		Example: `  reconciler track deployments public.deployments --key id --target region --running "desired_status = 'running'"
  reconciler track app apps_view --key region,name --target region --depends-on '{"workspaces": {"id": "workspace_id"}}'`,
		Args: a.args(2, 2),
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&def.Key, "key", nil, "columns of the key (comma-separated)")
	flags.StringVar(&def.Target, "target", "", "expression for the name of the target; NULL means every target")
	flags.StringVar(&def.Running, "running", "", "expression that says whether the row is wanted (default: true)")
	flags.StringVar(&def.Spec, "spec", "", "expression for the spec (default: the row without the ignored columns)")
	flags.StringSliceVar(&def.Ignore, "ignore", nil, "columns whose changes do not matter (comma-separated)")
	flags.StringVar(&def.DependsOn, "depends-on", "", "`JSON`: for each base table of a view, which of its columns are which columns of the view")
	flags.BoolVar(&def.Always, "always", false, "also capture what logical replication writes")
	flags.BoolVar(&goose, "goose", false, "print a goose migration instead")
	cmd.PreRun = func(*cobra.Command, []string) { a.checkDefinition(def) }
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 2 {
			def.Resource, def.Relation = args[0], args[1]
		}
		if goose {
			return a.plain(func(*cobra.Command, []string) error { return a.trackGoose(cmd.Context(), def) })(cmd, args)
		}
		return a.onDatabase(definerSession(), func(ctx context.Context, s *cli.Session, _ []string) error {
			sql, values := def.Call()
			did, err := s.Text(ctx, sql, values...)
			if err != nil {
				return err
			}
			return a.printer().Message(fmt.Sprintf("resource %s: %s", def.Resource, did))
		})(cmd, args)
	}
	return cmd
}

func definerSession() cli.SessionOptions {
	return cli.SessionOptions{Need: cli.Definer, Settings: map[string]string{"search_path": userNames}}
}

func (a *app) checkDefinition(def cli.Definition) {
	if len(def.Key) == 0 {
		a.problems.Add("--key is missing: name the column or columns of the key")
	}
	if def.Target == "" {
		a.problems.Add("--target is missing: give an expression for the name of the target, such as a column")
	}
	if def.DependsOn != "" && !json.Valid([]byte(def.DependsOn)) {
		a.problems.Add(`--depends-on: is no JSON; write such as {"workspaces": {"id": "workspace_id"}}`)
	}
}

// trackGoose prints a migration, after trying it out where that is possible.
func (a *app) trackGoose(ctx context.Context, def cli.Definition) error {
	cfg, err := a.databaseConfig()
	if err != nil && !a.withoutDatabase() {
		return err
	}
	if err == nil {
		err = a.tryDefinition(ctx, cfg, def)
	} else {
		err = errors.New("no database_url is given")
	}
	if failure, ok := errors.AsType[*cli.Failure](err); ok && failure.Code != cli.ExitDatabase {
		return failure
	}
	if err != nil {
		if ctx.Err() != nil {
			return err
		}
		a.note("the definition was not tried: %v", err)
	}
	return def.Goose(a.stdout)
}

// withoutDatabase reports whether the configuration is right but for a missing database_url.
func (a *app) withoutDatabase() bool {
	opts := a.loadOptions()
	cfg, err := config.Load(opts)
	return err == nil && cfg.DatabaseURL.IsZero()
}

func (a *app) tryDefinition(ctx context.Context, cfg *config.Config, def cli.Definition) error {
	opts := definerSession()
	opts.Command, opts.Notices = "track", a.stderr
	s, err := cli.Open(ctx, cfg, opts)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := s.Exec(ctx, "BEGIN"); err != nil {
		return err
	}
	sql, values := def.Call()
	if _, err = s.Text(ctx, sql, values...); err != nil {
		return err // the session ends, and with it the transaction
	}
	return s.Exec(ctx, "ROLLBACK")
}
