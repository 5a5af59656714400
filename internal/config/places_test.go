package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// inDirectory is a driver with a directory for itself.
type inDirectory struct {
	fakeDriver

	dir string
}

func (d inDirectory) Place() driver.Place { return driver.Place{Option: "dir", Name: d.dir, Dir: true} }

func TestF4_NoTwoTargetsHaveOneDirectory(t *testing.T) {
	t.Parallel()
	root, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	for _, dir := range []string{"eu", "us", "eu/part"} {
		require.NoError(t, os.MkdirAll(filepath.Join(root, dir), 0o700))
	}
	require.NoError(t, os.Symlink("eu", filepath.Join(root, "link")))
	registry := driver.Registry{{Name: "dir", Open: func(_ string, opts driver.Options, _ driver.Env) (driver.Driver, error) {
		return inDirectory{fakeDriver{new(int)}, filepath.Join(root, fmt.Sprint(opts["dir"]))}, nil
	}}}
	const (
		own  = ": give each its own, beside the other"
		also = ` is the directory of target "a" too: they would delete each other's files; give each its own`
	)
	for name, c := range map[string]struct{ first, second, want string }{
		"Beside":        {"eu", "us", ""},
		"AlikeInName":   {"eu", "eu2", ""},
		"Equal":         {"eu", "eu", "ROOT/eu" + also},
		"ByALink":       {"eu", "link", "ROOT/eu" + also},
		"Inside":        {"eu", "eu/part", `ROOT/eu/part lies in ROOT/eu, the directory of target "a"` + own},
		"InsideByALink": {"link", "eu/part/deep", `ROOT/eu/part/deep lies in ROOT/eu, the directory of target "a"` + own},
		"Around":        {"eu/part", "link", `ROOT/eu has ROOT/eu/part in it, the directory of target "a"` + own},
		"NotMadeYet":    {"new", "new", "ROOT/new" + also},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opts, clean := setup(t, fmt.Sprintf("database_url: postgres://h/db\ntargets: [{name: a, driver: dir, options: {dir: %s}}, {name: b, driver: dir, options: {dir: %s}}]", c.first, c.second))
			opts.Registry = registry
			_, _, err := LoadAndOpen(opts, driverEnv(noEnv))
			if c.want == "" {
				require.NoError(t, err)
				return
			}
			lines := problemLines(t, err, clean)
			require.Len(t, lines, 1)
			_, said, _ := strings.Cut(lines[0], "targets[1].options.dir: ")
			require.Equal(t, c.want, strings.ReplaceAll(said, root, "ROOT"))
		})
	}
}
