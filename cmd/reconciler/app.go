package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pgreconciler/reconciler/internal/cli"
	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/driver"
)

// app is one invocation: its surroundings, and what the flags that all commands share said.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	environ        []string
	dir            string // where reconciler.yaml is looked for; "" for the current directory
	registry       driver.Registry

	configFile string
	output     string
	overrides  map[string]string // values of the config that flags gave, by path
	problems   cli.Problems
}

// execute runs one command line and returns its exit code.
func (a *app) execute(ctx context.Context, args []string) int {
	root := a.root()
	root.SetArgs(args)
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return cli.ExitOK
	}
	if stopped, ok := errors.AsType[*signalError](context.Cause(ctx)); ok && errors.Is(err, context.Canceled) {
		return signalCode(stopped.signal)
	}
	return cli.Report(a.stderr, err)
}

func (a *app) printer() cli.Printer {
	return cli.Printer{W: a.stdout, Format: cli.Format(a.output)}
}

// note tells a person something beside the result.
func (a *app) note(format string, args ...any) {
	_, _ = fmt.Fprintf(a.stderr, "note: %s\n", cli.CleanLines(fmt.Sprintf(format, args...)))
}

func (a *app) loadOptions() config.LoadOptions {
	return config.LoadOptions{Path: a.configFile, Dir: a.dir, Environ: a.environ, Overrides: a.overrides, Registry: a.registry}
}

func (a *app) getenv(name string) string {
	value := ""
	for _, entry := range a.environ {
		if n, v, ok := strings.Cut(entry, "="); ok && n == name {
			value = v // the last one wins, as for a process
		}
	}
	return value
}

// databaseConfig loads the configuration for a command that needs the database and no target. The drivers are only
// known by name: a machine without the targets' secrets is good enough.
func (a *app) databaseConfig() (*config.Config, error) {
	opts := a.loadOptions()
	opts.Registry = namesOnly(a.registry)
	cfg, _, err := config.LoadAndOpen(opts, driver.Env{Getenv: a.getenv})
	return cfg, err
}

// namesOnly returns kinds of the same names that take any options.
func namesOnly(reg driver.Registry) driver.Registry {
	names := make(driver.Registry, len(reg))
	for i, kind := range reg {
		names[i] = driver.Kind{Name: kind.Name, Open: func(string, driver.Options, driver.Env) (driver.Driver, error) { return unopened{}, nil }}
	}
	return names
}

// unopened stands for a driver that is not needed.
type unopened struct{}

func (unopened) Apply(context.Context, driver.Object) driver.Outcome {
	return driver.Terminal(errors.New("the driver was not opened"))
}

func (unopened) Delete(context.Context, driver.Ref) driver.Outcome {
	return driver.Terminal(errors.New("the driver was not opened"))
}

func (unopened) Close(context.Context) error { return nil }

// onDatabase makes a cobra.Command's RunE of what a command does with the database, once everything is found right.
func (a *app) onDatabase(opts cli.SessionOptions, fn func(ctx context.Context, s *cli.Session, args []string) error) func(*cobra.Command, []string) error {
	return a.configured(func(ctx context.Context, cfg *config.Config, cmd *cobra.Command, args []string) error {
		opts.Command = cmd.Name()
		opts.Notices = a.stderr
		session, err := cli.Open(ctx, cfg, opts)
		if err != nil {
			return err
		}
		defer session.Close()
		return fn(ctx, session, args)
	})
}

// configured is onDatabase for commands that connect by themselves.
func (a *app) configured(fn func(context.Context, *config.Config, *cobra.Command, []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		cfg, err := a.databaseConfig()
		if err := a.problems.Err(err, helpHint(cmd)); err != nil {
			return err
		}
		return fn(cmd.Context(), cfg, cmd, args)
	}
}

// plain makes a RunE for commands that need neither configuration nor database.
func (a *app) plain(fn func(cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if err := a.problems.Err(nil, helpHint(cmd)); err != nil {
			return err
		}
		return fn(cmd, args)
	}
}

func helpHint(cmd *cobra.Command) string { return "see `" + cmd.CommandPath() + " --help`" }
