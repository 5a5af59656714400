// Command bench measures what tracking costs writers, how fast a commit reaches a driver, how fast backlogs and syncs are,
// each against a limit or an alternative that is measured in the same run, in interleaved rounds. It needs a PostgreSQL of
// its own, with fsync on, and the command reconciler:
//
//	go run ./bench -url postgres://postgres@localhost:5432/postgres -binary bin/reconciler -out bench
//
// Figures are medians with minimum and maximum. Absolute ones belong to one machine and one hour; ratios travel.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"runtime"
	"time"

	"github.com/pgreconciler/reconciler/internal/measure"
)

// bench is one measurement.
type bench struct {
	name string
	run  func(context.Context, *lab) []Figure
}

// benches are all measurements, in the order of the results.
var benches = []bench{
	{"writers", benchWriters}, {"latency", benchLatency}, {"creates", benchCreates}, {"streams", benchStreams}, {"agent", benchAgent}, {"bulk", benchBulk},
	{"drain", benchDrain}, {"sync", benchSync}, {"rest", benchRest}, {"targets", benchTargets}, {"cost", benchCost}, {"applies", benchApplies}, {"sustained", benchSustained}, {"churn", benchChurn},
}

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	l := &lab{}
	flag.StringVar(&l.admin, "url", os.Getenv("RECONCILER_BENCH_URL"), "PostgreSQL to measure on; a database is created there and dropped")
	flag.StringVar(&l.binary, "binary", "bin/reconciler", "the command reconciler")
	flag.IntVar(&l.rounds, "rounds", 5, "rounds of each measurement, interleaved")
	flag.DurationVar(&l.length, "length", 3*time.Second, "length of one round of commits")
	flag.Float64Var(&l.scale, "scale", 1, "what numbers of rows are multiplied with")
	only := flag.String("only", ".", "regular expression of the measurements to make: writers, latency, creates, streams, agent, bulk, drain, sync, rest, targets, cost, applies, sustained, churn")
	out := flag.String("out", "", "directory for RESULTS.md and results.json, where they take the place of older ones of the same name; none: they are only printed")
	again := flag.Bool("render", false, "only write RESULTS.md anew from what -out holds")
	quick := flag.Bool("quick", false, "see in a minute that everything works; the figures mean nothing")
	flag.Parse()
	chosen, err := regexp.Compile(*only)
	if *again {
		err = render(*out)
		if err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			return 1
		}
		return 0
	}
	if l.admin == "" || l.rounds < 1 || l.scale <= 0 || err != nil {
		fmt.Fprintln(os.Stderr, "bench: -url is missing, -rounds or -scale is not positive, or -only is no regular expression")
		return 2
	}
	if *quick {
		l.hurry()
	}
	if err := perform(ctx, l, chosen, *out); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		return 1
	}
	return 0
}

// hurry chooses sizes that only show that everything works.
func (l *lab) hurry() { l.rounds, l.length, l.scale = 1, 100*time.Millisecond, .001 }

func perform(ctx context.Context, l *lab, chosen *regexp.Regexp, out string) (err error) {
	if l.dir, err = os.MkdirTemp("", "reconciler-bench-"); err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(l.dir) }()
	if _, err := exec.LookPath(l.binary); err != nil {
		return fmt.Errorf("-binary: %w", err)
	}
	defer l.drop()
	defer l.end()
	if err := attempt(func() { l.fresh(ctx) }); err != nil {
		return err
	}
	where := section{Commit: measure.Commit(ctx), Go: runtime.Version(), CPUs: runtime.NumCPU(), CPU: measure.CPUModel(), Rounds: l.rounds, Scale: l.scale}
	if err := l.pool.QueryRow(ctx, "SHOW server_version").Scan(&where.PostgreSQL); err != nil {
		return err
	}
	for _, bench := range benches {
		if !chosen.MatchString(bench.name) {
			continue
		}
		began := time.Now()
		s := where
		s.Name, s.At = bench.name, began.UTC()
		if err := attempt(func() { s.Figures = bench.run(ctx, l) }); err != nil {
			return fmt.Errorf("%s: %w", bench.name, err)
		}
		for _, f := range s.Figures {
			_, _ = fmt.Fprintln(os.Stdout, f.line())
		}
		fmt.Fprintf(os.Stderr, "%s took %s\n", bench.name, time.Since(began).Round(time.Second))
		if out != "" {
			if err := keep(out, s); err != nil {
				return err
			}
		}
	}
	return nil
}
