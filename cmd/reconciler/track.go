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
		Long: "Makes a resource from a table or view, as SELECT reconciler.track(...) does. --target, --running, --spec and\n" +
			"--protect are SQL expressions over a row of the relation. Calling it again with the same arguments changes\n" +
			"nothing; with others it replaces the whole definition: what is left out gets its default. Names without a schema\n" +
			"are looked for in the schema of the role and in public.\n\n" +
			"With --goose it prints a goose migration that does (and undoes) the same, and executes nothing. Where a database\n" +
			"is at hand the definition is tried there first, in a transaction that is rolled back.",
		Example: `  reconciler track deployments public.deployments --key id --target region --running "desired_status = 'running'"
  reconciler track app apps_view --key region,name --target region --depends-on '{"workspaces": {"id": "workspace_id"}}'`,
		Args: a.args(2, 2),
	}
	cli.TrackFlags(cmd.Flags())
	cmd.Flags().BoolVar(&goose, "goose", false, "print a goose migration instead")
	cmd.PreRun = func(_ *cobra.Command, args []string) {
		def = cli.ReadDefinition(args, cmd.Flags())
		a.checkDefinition(def)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if goose {
			return a.plain(func(*cobra.Command, []string) error { return a.trackGoose(cmd.Context(), def) })(cmd, args)
		}
		return a.onDatabase(definerSession(), func(ctx context.Context, s *cli.Session, _ []string) error {
			sql, values := def.Call()
			did, err := s.Text(ctx, sql, values...)
			if err != nil {
				return err
			}
			return a.printer().Message(fmt.Sprintf("resource %s: %s", def.Text("resource"), did))
		})(cmd, args)
	}
	return cmd
}

func definerSession() cli.SessionOptions {
	return cli.SessionOptions{Need: cli.Definer, Settings: map[string]string{"search_path": userNames}}
}

func (a *app) checkDefinition(def cli.Definition) {
	for _, argument := range cli.TrackArguments {
		if argument.Missing != "" && def[argument.Name] == nil {
			a.problems.Add("--%s is missing: %s", argument.Flag(), argument.Missing)
		}
	}
	if on := def.Text("depends_on"); on != "" && !json.Valid([]byte(on)) {
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
