package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pgreconciler/reconciler/internal/bench"
	"github.com/pgreconciler/reconciler/internal/cli"
	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/measure"
)

func (a *app) benchCommand() *cobra.Command {
	opts := bench.Options{Version: version, Note: a.note}
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure on this server what tracking costs, and how soon a change arrives",
		Long: "Measures, on the server of direct_url, what tracking costs those who write, how long it takes from a commit to the\n" +
			"driver's call, and whether NOTIFY should be on there, and says so in sentences. Everything happens in a scratch\n" +
			"database that is dropped at the end, also after Ctrl-C; what a killed run left is dropped by the next one. The role\n" +
			"needs CREATEDB. Tables, targets and processes of yours are not touched, but they share the disk and the processor\n" +
			"with it for the two to three minutes that it takes: it writes as fast as the server can. Run it on the machine where\n" +
			"`reconciler run` is to run: the network is part of what is measured.",
		Args: a.args(0, 0),
	}
	a.problems.Int(cmd.Flags(), &opts.Writers, "writers", bench.WritersDefault, 1, bench.WritersMax, "how many write at once; one writer is always measured too")
	a.problems.Int(cmd.Flags(), &opts.Rounds, "rounds", bench.RoundsDefault, 1, bench.RoundsMax, "how often everything is measured, interleaved; medians are shown")
	a.problems.Duration(cmd.Flags(), &opts.Length, "length", bench.LengthDefault, "of one measurement of commits; a round takes about 24 times as long")
	cmd.PreRun = func(*cobra.Command, []string) {
		if opts.Length < bench.LengthMin || opts.Length > bench.LengthMax {
			a.problems.Add("--length: must be from %s to 1m, not %s", bench.LengthMin, opts.Length)
		}
	}
	cmd.RunE = a.configured(func(ctx context.Context, cfg *config.Config, _ *cobra.Command, _ []string) error {
		opts.URL, opts.Poll = cfg.DirectURL.Reveal(), cfg.PollInterval
		opts.Logger = newLogger(a.stderr, config.Log{Level: config.LogWarn})
		return a.bench(ctx, cfg, opts)
	})
	return cmd
}

func (a *app) bench(ctx context.Context, cfg *config.Config, opts bench.Options) error {
	s, err := cli.Open(ctx, cfg, cli.SessionOptions{Command: "bench", Need: cli.Owner, Settings: bench.SessionSettings(), Notices: a.stderr})
	if err != nil {
		if bench.OnStandby(ctx, opts.URL) {
			err = refused(bench.StandbyRefusal())
		}
		return err
	}
	defer s.Close()
	if err := s.NeedsSession(ctx); err != nil {
		return err
	}
	result, err := bench.Run(ctx, s.Conn(), opts)
	if refusal, ok := errors.AsType[*bench.Refusal](err); ok {
		return refused(refusal)
	}
	if result != nil { // also when only the cleaning up failed
		if printErr := a.printBench(result); printErr != nil {
			return printErr
		}
	}
	return benchEnded(ctx, err)
}

func refused(r *bench.Refusal) error {
	return &cli.Failure{Code: cli.ExitDatabase, Text: r.Text, Hint: r.Hint, Err: r}
}

// benchEnded names what came in between. What a signal cut short is no error of the database's, but what was left is told.
func benchEnded(ctx context.Context, err error) error {
	if left, ok := errors.AsType[*bench.LeftError](err); ok {
		return &cli.Failure{Code: cli.ExitDiffers, Text: left.Error(), Err: err}
	}
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

func (a *app) printBench(r *bench.Result) error {
	if a.printer().JSON() {
		return a.printer().Value(r)
	}
	rows := make([][]string, len(r.Figures))
	for i, f := range r.Figures {
		rows[i] = []string{f.What, f.Ratio.String(), fmt.Sprintf("%s %s", f.Value, f.Unit), fmt.Sprintf("%s, %s", measure.Short(f.Other.Median), f.Against)}
	}
	if err := a.printer().Grid([]string{"MEASURED", "RATIO", "VALUE", "AGAINST"}, rows); err != nil {
		return err
	}
	lines := append([]string{"", benchSurroundings(r)}, r.Verdict.Sentences...)
	for _, line := range lines {
		if err := a.printer().Line(line); err != nil {
			return err
		}
	}
	return nil
}

func benchSurroundings(r *bench.Result) string {
	word := func(on bool) string {
		if on {
			return "on"
		}
		return "off"
	}
	standbys := ""
	if r.Server.SyncStandbys {
		standbys = ", synchronous standbys"
	}
	return fmt.Sprintf("Medians of %s of %s (minimum to maximum); PostgreSQL %s, fsync %s, synchronous_commit %s%s; %d MiB of WAL written, %d MiB of scratch database.",
		counted(r.Rounds, "round"), r.Length, r.Server.PostgreSQL, word(r.Server.Fsync), r.Server.SynchronousCommit, standbys, r.Server.WALMiB, r.Server.DatabaseMiB)
}
