package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"

	"github.com/pgreconciler/reconciler/internal/cli"
	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/migrate"
	"github.com/pgreconciler/reconciler/internal/server"
	"github.com/pgreconciler/reconciler/internal/web"
)

// Rights that the role lacks to be what `run` needs. Views of what other roles track are no reason not to start.
const missingRightsSQL = `SELECT count(*) FILTER (WHERE NOT desired) AS essential, count(*) FILTER (WHERE desired) AS views,
    min(format('%s on %s %s', privilege, lower(class), object)) FILTER (WHERE NOT desired) AS example
FROM (SELECT m.*, m.object ~ '^reconciler\."?desired_' AS desired FROM reconciler.missing_rights(current_user, 'runtime') AS m) AS m`

func (a *app) runCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run the daemon",
		Long: "Runs the loops that make the targets equal to the rows, until SIGTERM or SIGINT. Then it takes no new work and\n" +
			"finishes what it has begun, for at most shutdown_timeout; a second signal ends it at once.\n" +
			"Any number of processes may run against one database: they share the targets out.\nA target must have the same options in each of them.",
		Args: a.args(0, 0),
	}
	a.configFlags(cmd, false)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return a.run(cmd) }
	return cmd
}

// ballast is heap that nobody touches, so it takes no memory, but counts when Go decides to collect garbage: after so much was
// allocated, and not after the few MB that live here. Without it a third of the processor time under load is spent on that.
const ballast = 16 << 20

func (a *app) run(cmd *cobra.Command) error {
	heap := make([]byte, ballast)
	defer runtime.KeepAlive(heap)
	ctx := cmd.Context()
	logger := slog.New(slog.DiscardHandler)
	if known, err := config.Load(a.loadOptions()); err == nil {
		logger = newLogger(a.stderr, known.Log)
		if len(known.Targets) == 0 {
			a.problems.Add("targets: is empty: configure at least one target")
		}
	}
	opts := a.loadOptions()
	opts.ReadStreams = true
	cfg, drivers, err := config.LoadAndOpen(opts, driver.Env{Getenv: a.getenv, Logger: logger})
	if bad := a.problems.Err(err, helpHint(cmd)); bad != nil {
		a.closeAll(ctx, drivers)
		return bad
	}
	if err := preflight(ctx, cfg, logger); err != nil {
		a.closeAll(ctx, drivers)
		return err
	}
	// The server closes the drivers.
	err = server.New(server.Options{Config: cfg, Drivers: drivers, Version: version, Logger: logger, Registry: newRegistry(), Getenv: a.getenv}).Run(ctx)
	if taken, ok := errors.AsType[*web.ListenError](err); ok { // about the network, but not about the database
		return &cli.Failure{Code: cli.ExitDiffers, Text: taken.Error(), Err: err}
	}
	return err
}

func (a *app) closeAll(ctx context.Context, drivers map[string]driver.Driver) {
	for name, drv := range drivers {
		a.closeDriver(ctx, name, drv)
	}
}

// preflight says in sentences why the daemon cannot work with this database.
func preflight(ctx context.Context, cfg *config.Config, logger *slog.Logger) error {
	s, err := cli.Open(ctx, cfg, cli.SessionOptions{Command: "run", Need: cli.Runtime})
	if err != nil {
		return err
	}
	defer s.Close()
	if err := migrate.Check(ctx, s.Conn()); err != nil {
		return s.Fail(ctx, err)
	}
	table, err := s.Table(ctx, missingRightsSQL)
	if err != nil {
		return err
	}
	role := s.Conn().Config().User
	missing := table.Rows[0]
	if missing.Text("essential") != "0" {
		return &cli.Failure{
			Code: cli.ExitDatabase, Hint: s.GrantHint(),
			Text: fmt.Sprintf("role %q lacks %s rights that the daemon needs, such as %s", role, missing.Text("essential"), missing.Text("example")),
		}
	}
	if missing.Text("views") != "0" {
		logger.Warn("rights_missing", "role", role, "desired_views", missing.Text("views"), "remedy", s.GrantHint())
	}
	return nil
}

func newLogger(w io.Writer, log config.Log) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(log.Level)); err != nil {
		level = slog.LevelInfo // The config takes valid ones only.
	}
	options := &slog.HandlerOptions{Level: level}
	if log.Format == config.LogJSON {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

func newRegistry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return reg
}
