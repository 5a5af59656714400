package main

import (
	"log/slog"
	"slices"

	"github.com/spf13/cobra"

	"github.com/pgreconciler/reconciler/internal/agent"
	"github.com/pgreconciler/reconciler/internal/cli"
	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/driver"
)

func (a *app) agentCommand() *cobra.Command {
	var adopt bool
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Apply streams to targets that only this host can reach",
		Long: "Follows the streams of one or more targets from a process with streams.listen, and applies them with the drivers that\n" +
			"`reconciler run` has, until SIGTERM or SIGINT. It needs no database and accepts no connection from outside. While the\n" +
			"server is away, it goes on with what it has: retries, repairs, and restarts. Its config is ./agent.yaml unless --config\n" +
			"or $RECONCILER_CONFIG names another file; see https://github.com/pgreconciler/reconciler/blob/main/docs/agents.md.",
		Args: a.subcommand,
	}
	a.configFlags(cmd, true)
	cmd.Flags().BoolVar(&adopt, "adopt", false, "let the streams that the server has now take the place of those that state_dir came from")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return a.agent(cmd, adopt) }
	cmd.AddCommand(a.agentStatusCommand(), a.agentApproveCommand(), a.configCommand(true))
	return cmd
}

// agentOptions are those of an agent's config. An agent follows streams, and publishes none.
func (a *app) agentOptions() config.LoadOptions {
	opts := a.loadOptions()
	opts.Agent = true
	opts.Registry = slices.DeleteFunc(slices.Clone(a.registry), func(k driver.Kind) bool { return k.Name == "stream" })
	return opts
}

func (a *app) agent(cmd *cobra.Command, adopt bool) error {
	logger := slog.New(slog.DiscardHandler)
	if known, err := config.Load(a.agentOptions()); err == nil {
		logger = newLogger(a.stderr, known.Log)
	}
	cfg, drivers, err := config.LoadAndOpen(a.agentOptions(), driver.Env{Getenv: a.getenv, Logger: logger})
	if bad := a.problems.Err(err, helpHint(cmd)); bad != nil {
		a.closeAll(cmd.Context(), drivers)
		return bad
	}
	// The agent closes the drivers.
	err = agent.New(agent.Options{
		Config: cfg, Drivers: drivers, Version: version, Logger: logger, Registry: newRegistry(), Getenv: a.getenv, Adopt: adopt,
	}).Run(cmd.Context())
	if err != nil {
		return &cli.Failure{Code: cli.ExitDiffers, Text: err.Error(), Err: err}
	}
	return nil
}
