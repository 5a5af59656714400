package fleet_test

import (
	"os"
	"testing"

	"github.com/pgreconciler/reconciler/examples/internal/exampletest"
	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// reconcilerBinary is the command as users run it, built by TestMain.
var reconcilerBinary string

func TestMain(m *testing.M) {
	os.Exit(exampletest.Main(&reconcilerBinary, func() int { return pgtest.Main(m) }))
}
