package faults_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// Flags of a run of worlds; `make test/faults` sets them.
var (
	flagWorlds = flag.Int("faults.worlds", 0, "how many worlds to run; 0: the seeds of the bounded run")
	flagSeed   = flag.Uint64("faults.seed", 1, "seed of the first of -faults.worlds")
	flagAgents = flag.Bool("faults.agents", false, "leave out seeds whose worlds have no agent")
	flagKube   = flag.Bool("faults.kubernetes", false, "leave out seeds whose worlds have no target of the driver kubernetes")
	flagLanes  = flag.Int("faults.lanes", 4, "how many worlds run side by side, each on a server of its own")
	flagReport = flag.String("faults.report", "", "file for a report in JSON")
	flagBinary = flag.String("faults.binary", "", "the reconciler to live with, instead of one built from this tree")
	flagKinds  = flag.String("faults.kinds", "default", "what may happen beside the faults of old: default, all, none, or kinds with commas between them")
	flagTrace  = flag.Bool("faults.trace", false, "print what a world did and what its processes logged also when it passes")
)

// binary is reconciler with crash points, without the race detector. TestMain builds it, with the intervals that users have:
// faster polls would find what a lost notification should have told of.
var binary string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if text := os.Getenv(clientVariable); text != "" {
		if err := runClient(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	}
	flag.Parse()
	dir, err := os.MkdirTemp("", "reconciler-faults-")
	if err == nil {
		defer func() { _ = os.RemoveAll(dir) }()
		shifted.path = filepath.Join(dir, "reconciler-shifted")
		if binary = *flagBinary; binary == "" {
			binary = filepath.Join(dir, "reconciler")
			err = build(binary, "../../cmd/reconciler")
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return pgtest.Main(m)
}

// build builds with the tag faults, which adds points where the environment can crash a process, and nothing else.
func build(output, pkg string, flags ...string) error {
	args := append([]string{"build", "-tags", "faults", "-o", output}, flags...)
	said, err := exec.CommandContext(context.Background(), "go", append(args, pkg)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("build %s: %w\n%s", pkg, err, said)
	}
	return nil
}
