package fleet_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/pgreconciler/reconciler/examples/internal/exampletest"
	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// reconcilerBinary is the command as users run it, built by TestMain.
var reconcilerBinary string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "reconciler-example-")
	if err == nil {
		defer func() { _ = os.RemoveAll(dir) }()
		reconcilerBinary, err = exampletest.Build(context.Background(), dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return pgtest.Main(m)
}
