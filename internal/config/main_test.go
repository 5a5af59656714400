package config

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/pgreconciler/reconciler/internal/driver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeDriver does nothing but remember that it was closed.
type fakeDriver struct{ closed *int }

func (fakeDriver) Apply(context.Context, driver.Object) driver.Outcome { return driver.Done() }
func (fakeDriver) Delete(context.Context, driver.Ref) driver.Outcome   { return driver.Done() }
func (d fakeDriver) Close(context.Context) error                       { *d.closed++; return nil }

// fakeRegistry holds a driver "dir" that wants options.dir, and "hook" that wants a secret from the environment.
// The counter says how many drivers were closed.
func fakeRegistry() (driver.Registry, *int) {
	closed := new(int)
	open := func(check func(driver.Options, driver.Env) driver.Problems) func(string, driver.Options, driver.Env) (driver.Driver, error) {
		return func(_ string, opts driver.Options, env driver.Env) (driver.Driver, error) {
			if p := check(opts, env); len(p) > 0 {
				return nil, p
			}
			return fakeDriver{closed}, nil
		}
	}
	return driver.Registry{
		{Name: "hook", Open: open(func(opts driver.Options, env driver.Env) driver.Problems {
			if name, _ := opts["secret_env"].(string); env.Getenv(name) == "" {
				return driver.Problems{{Path: "options.secret_env", Text: "the variable " + name + " is not set"}}
			}
			return nil
		})},
		{Name: "dir", Open: open(func(opts driver.Options, _ driver.Env) driver.Problems {
			if opts["dir"] == nil {
				return driver.Problems{{Path: "options.dir", Text: "is missing"}}
			}
			return nil
		})},
	}, closed
}

func noEnv(string) string { return "" }

// setup writes reconciler.yaml, if there is a text for it, into a directory of its own and returns options that
// find it, and what makes error texts independent of the directory.
func setup(t *testing.T, content string) (LoadOptions, func(string) string) {
	t.Helper()
	dir := t.TempDir()
	if content != "" {
		require.NoError(t, os.WriteFile(filepath.Join(dir, DefaultFile), []byte(content), 0o600))
	}
	reg, _ := fakeRegistry()
	return LoadOptions{Dir: dir, Registry: reg}, func(s string) string { return strings.ReplaceAll(s, dir+"/", "") }
}

// loadText loads a config file with this text.
func loadText(t *testing.T, content string, environ ...string) (*Config, error) {
	t.Helper()
	opts, _ := setup(t, content)
	opts.Environ = environ
	return Load(opts)
}

// problemLines returns the problems of an error, one string each, with the directory taken out.
func problemLines(t *testing.T, err error, clean func(string) string) []string {
	t.Helper()
	var configErr *Error
	require.ErrorAs(t, err, &configErr)
	lines := make([]string, len(configErr.Problems))
	for i, p := range configErr.Problems {
		lines[i] = clean(p.String())
	}
	return lines
}
