package e2e_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// Programs that TestMain builds.
var (
	binary  string // reconciler as users run it
	journal string // testdata/journal, for the driver exec
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "reconciler-e2e-")
	if err == nil {
		defer func() { _ = os.RemoveAll(dir) }()
		binary, journal = filepath.Join(dir, "reconciler"), filepath.Join(dir, "journal")
		err = build(binary, "../../cmd/reconciler")
	}
	if err == nil {
		err = build(journal, "./testdata/journal")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return pgtest.Main(m)
}

func build(output, pkg string) error {
	said, err := exec.CommandContext(context.Background(), "go", "build", "-o", output, pkg).CombinedOutput()
	if err != nil {
		return fmt.Errorf("build %s: %w\n%s", pkg, err, said)
	}
	return nil
}
