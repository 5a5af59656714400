package database_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

func TestMain(m *testing.M) {
	code := pgtest.Main(m)
	if err := goleak.Find(); code == 0 && err != nil {
		_, _ = os.Stderr.WriteString(err.Error() + "\n")
		code = 1
	}
	os.Exit(code)
}
