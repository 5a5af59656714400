package exec_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/drivertest"
	"github.com/pgreconciler/reconciler/internal/driver/exec"
	"github.com/pgreconciler/reconciler/internal/driver/fixtures"
)

// store is the program of testdata/store.
var store string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "exec-driver-*")
	if err == nil {
		store, err = fixtures.BuildStore(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(dir)
		os.Exit(code)
	}))
}

const token = "t0ken-value"

func open(t *testing.T, opts driver.Options) driver.Driver {
	t.Helper()
	return openWith(t, opts, map[string]string{
		"TOKEN": token, "RECONCILER_DATABASE_URL": "postgres://user:pa55word@host/db", "PGPASSWORD": "pa55word",
	})
}

func openWith(t *testing.T, opts driver.Options, vars map[string]string) driver.Driver {
	t.Helper()
	vars["PATH"] = os.Getenv("PATH")
	d, err := exec.Kind().Open("test", opts, driver.Env{Getenv: func(name string) string { return vars[name] }})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close(t.Context())) })
	return d
}

func TestConformance(t *testing.T) {
	t.Parallel()
	drivertest.Exercise(t, func(t *testing.T) drivertest.Fixture { return fixtures.Exec(t, store) })
}
