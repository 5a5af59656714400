package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pgreconciler/reconciler/internal/cli"
	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/devdb"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/migrate"
	"github.com/pgreconciler/reconciler/internal/server"
)

// devDatabase is the name of the throwaway database.
const devDatabase = "dev"

const (
	// devWait is how long the first sync may take before the events are shown all the same.
	devWait  = 2 * time.Minute
	devPause = 50 * time.Millisecond
)

// devOptions are the flags of dev.
type devOptions struct {
	example string
	image   string
	keep    bool
}

func (a *app) devCommand() *cobra.Command {
	var opts devOptions
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Try it out: a throwaway PostgreSQL, targets, and one line per event",
		Long: "Starts a throwaway PostgreSQL (from local server binaries, else in Docker), runs, and prints one line for each\n" +
			"applied or deleted object. Change rows in psql, with the command that it prints, and look.\n" +
			"Ctrl-C ends everything and leaves nothing behind.\n\n" +
			"Without --example there are no tables, and the targets of the tour in README.md: eu and us, which are directories, and\n" +
			"the stream edge. --example takes the name of an example or a directory with reconciler.yaml, migrations/*.sql (for\n" +
			"goose) and, if wanted, seed.sql. Targets of the driver file are put below a directory for temporary files. Streams get\n" +
			"any free port if theirs is taken.",
		Args: a.args(0, 0),
	}
	cmd.Flags().StringVar(&opts.example, "example", "", "`NAME` of an example (fleet, prometheus, edge, kubernetes) or directory")
	cmd.Flags().StringVar(&opts.image, "image", "", "Docker `IMAGE` of PostgreSQL to use, even where local binaries are")
	cmd.Flags().BoolVar(&opts.keep, "keep", false, "leave the database's directory and the files when it ends")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if cmd.Flags().Changed("config") {
			a.problems.Add("--config: dev brings its own configuration; --example takes a directory with one")
		}
		example, err := findExample(opts.example)
		if err != nil {
			a.problems.Add("--example: %v", err)
		}
		if err := a.problems.Err(nil, helpHint(cmd)); err != nil {
			return err
		}
		ctx := cmd.Context()
		err = a.dev(ctx, example, opts)
		if ctx.Err() != nil && errors.Is(err, context.Canceled) {
			return nil // Ctrl-C is the way to leave
		}
		return err
	}
	return cmd
}

func (a *app) dev(ctx context.Context, example devExample, opts devOptions) (err error) {
	a.say("starting a throwaway PostgreSQL...")
	db, err := devdb.Start(ctx, devdb.Options{Image: opts.image, Keep: opts.keep})
	if err != nil {
		return &cli.Failure{Code: cli.ExitDatabase, Text: err.Error(), Err: err}
	}
	a.say("PostgreSQL %s listens on 127.0.0.1:%d", db.Version, db.Port)
	defer func() {
		if stopErr := db.Stop(ctx); stopErr != nil {
			err = errors.Join(stopErr, hideCancel(ctx, err))
			return
		}
		a.goodbye(db, opts.keep)
	}()
	if err := a.loadExample(ctx, db, example); err != nil {
		return err
	}
	return a.runDev(ctx, db, example)
}

// hideCancel drops an error that only says that a person left.
func hideCancel(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

func (a *app) goodbye(db *devdb.Server, kept bool) {
	if !kept {
		a.say("ended; nothing is left behind")
		return
	}
	a.say("ended; kept is %s\nstart its PostgreSQL again with: %s", db.Dir, db.Restart())
}

// say tells a person how far things are.
func (a *app) say(format string, args ...any) {
	_, _ = fmt.Fprintf(a.stdout, "%s\n", cli.CleanLines(fmt.Sprintf(format, args...)))
}

func (a *app) loadExample(ctx context.Context, db *devdb.Server, example devExample) error {
	began := time.Now()
	if err := db.CreateDatabase(ctx, devDatabase); err != nil {
		return err
	}
	if _, err := migrate.Up(ctx, db.URL(devDatabase)); err != nil {
		return err
	}
	if err := example.load(ctx, db.URL(devDatabase)); err != nil {
		return err
	}
	if example.name() != "" {
		a.say("example %s is loaded (%s)", example.name(), time.Since(began).Round(time.Millisecond))
	}
	return nil
}

// runDev runs the server until ctx ends, and prints what happens.
func (a *app) runDev(ctx context.Context, db *devdb.Server, example devExample) error {
	cfg, file, err := example.configure(db.URL(devDatabase), db.Dir)
	if err != nil {
		return err
	}
	drivers, err := cfg.OpenTargets(a.registry, driver.Env{Getenv: a.getenv, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	events := newEventPrinter(a.stdout)
	defer events.close()             // after the server has ended
	addresses := map[string]string{} // by key of the config
	process := server.New(server.Options{
		Config: cfg, Drivers: drivers, Version: version, Events: events.take,
		Logger: newLogger(a.stderr, config.Log{Level: config.LogWarn}), Listening: func(key, at string) {
			addresses[key] = at
		},
	})
	ended := make(chan error, 1)
	go func() { ended <- process.Run(ctx) }()
	go func() {
		select {
		case <-db.Ended():
			cancel(errors.New("the throwaway PostgreSQL ended by itself"))
		case <-ctx.Done():
		}
	}()
	if err := a.awaitFirstSync(ctx, cfg, ended); err == nil {
		events.summarize()
		a.invite(db, file, addresses["listen"], inviteToStreams(cfg, addresses["streams.listen"]))
	}
	events.live()
	err = <-ended
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) && !isSignal(cause) {
		return cause // what the server says then follows from it
	}
	return err
}

func isSignal(err error) bool {
	_, ok := errors.AsType[*signalError](err)
	return ok
}

// awaitFirstSync returns when everything is applied, nothing can be waited for any more, or the server has ended.
func (a *app) awaitFirstSync(ctx context.Context, cfg *config.Config, ended chan error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case err := <-ended:
			ended <- err // the caller's
			cancel()
		case <-ctx.Done():
		}
	}()
	opts := waitSession(cli.Viewer)
	opts.Command = "dev"
	s, err := cli.Open(ctx, cfg, opts)
	if err != nil {
		return err
	}
	defer s.Close()
	for {
		left, err := s.Table(ctx, waitSQL, devWait.Seconds(), nil)
		if err != nil {
			return err
		}
		// Before the server has written down its targets there is nothing to wait for.
		synced, err := s.Text(ctx, "SELECT coalesce(bool_and(last_sync IS NOT NULL), false) FROM reconciler.status WHERE state <> 'unknown'")
		if err != nil || synced == "true" || len(left.Rows) > 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(devPause):
		}
	}
}

// inviteToStreams returns how to follow each stream that is served.
func inviteToStreams(cfg *config.Config, address string) string {
	server := ""
	if address != streamsListen {
		server = " --server http://" + address
	}
	var text strings.Builder
	for _, t := range cfg.Targets {
		if t.Driver == "stream" && address != "" {
			fmt.Fprintf(&text, "Follow the stream %s:\n  curl -N 'http://%s/v1/targets/%s/objects?watch=true'\n  reconciler watch %s%s\n", t.Name, address, t.Name, t.Name, server)
		}
	}
	return text.String()
}

func (a *app) invite(db *devdb.Server, file, address, streams string) {
	a.say(`
Change rows, and look what happens here:
  %s
Ask how things are:
  reconciler status -c %s
%sFiles of the targets:  %s
Probes and metrics:    http://%s/metrics
Ctrl-C ends it.
`, db.Psql(devDatabase), file, streams, db.Dir, address)
}
