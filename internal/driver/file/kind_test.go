package file_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/file"
)

// C64.
func TestOpenReportsEveryProblem(t *testing.T) {
	t.Parallel()

	base := t.TempDir()
	plain := filepath.Join(base, "plain")
	require.NoError(t, os.WriteFile(plain, nil, 0o600))
	reload := map[string]any{
		"command": []any{"no-such-program"}, "debounce": "2m", "timeout": 5, "dir": "/no/such/dir", "env_from": []any{"NOT_SET"},
		"env": map[string]any{"A B": "x"}, "often": true,
	}
	for name, c := range map[string]struct {
		opts driver.Options
		want driver.Problems
	}{
		"Nothing":  {driver.Options{}, driver.Problems{{Path: "options.dir", Text: "is required"}}},
		"NoParent": {driver.Options{"dir": base + "/a/b"}, driver.Problems{{Path: "options.dir", Text: "there is no directory " + base + "/a to create b in: create it first"}}},
		"NotToBeMade": {driver.Options{"dir": base + "/a", "create": false}, driver.Problems{{
			Path: "options.dir", Text: "there is no directory " + base + "/a: create it, or set options.create to true",
		}}},
		"NoDirectory": {driver.Options{"dir": plain}, driver.Problems{{Path: "options.dir", Text: plain + " is not a directory"}}},
		"BelowAFile": {driver.Options{"dir": plain + "/x"}, driver.Problems{{
			Path: "options.dir", Text: plain + "/x cannot be used: not a directory",
		}}},
		"Everything": {
			driver.Options{"dir": 1, "mode": 644, "fsync": "yes", "create": "no", "reload": reload, "path": "/x"},
			driver.Problems{
				{Path: "options.create", Text: "must be true or false, not this string"},
				{Path: "options.fsync", Text: "must be true or false, not this string"},
				{Path: "options.mode", Text: "must be a string, not a number"},
				{Path: "options.dir", Text: "must be a string, not a number"},
				{Path: "options.reload.debounce", Text: "must be between 0s and 1m"},
				{Path: "options.reload.timeout", Text: `must be a duration with its unit, such as "250ms", "10s" or "5m", not a number`},
				{Path: "options.reload.command", Text: "the program no-such-program cannot be run: executable file not found in $PATH"},
				{Path: "options.reload.dir", Text: "there is no directory /no/such/dir"},
				{Path: "options.reload.env", Text: `"A B" cannot be the name of an environment variable (letters, digits and _)`},
				{Path: "options.reload.env_from", Text: "the environment variable NOT_SET is not set"},
				{Path: "options.path", Text: "unknown option; known here: create, dir, fsync, mode, reload"},
				{Path: "options.reload.often", Text: "unknown option; known here: command, debounce, dir, env, env_from, timeout"},
			},
		},
		"ModeOfWords":   {driver.Options{"dir": base, "mode": "rw"}, driver.Problems{{Path: "options.mode", Text: `must be a string of three octal digits, such as "0640"`}}},
		"ModeToNobody":  {driver.Options{"dir": base, "mode": "0444"}, driver.Problems{{Path: "options.mode", Text: `must let the owner read and write, such as "0600"`}}},
		"NoCommand":     {driver.Options{"dir": base, "reload": map[string]any{}}, driver.Problems{{Path: "options.reload.command", Text: "is required"}}},
		"EmptyCommand":  {driver.Options{"dir": base, "reload": map[string]any{"command": []any{}}}, driver.Problems{{Path: "options.reload.command", Text: `must be a list that begins with a program, such as ["systemctl", "reload", "nginx"]`}}},
		"ReloadAsAText": {driver.Options{"dir": base, "reload": "nginx"}, driver.Problems{{Path: "options.reload", Text: "must be a mapping, not this string"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			e := env()
			e.Getenv = func(string) string { return "" }
			d, err := file.Kind().Open("test", c.opts, e)
			require.Nil(t, d)
			require.Equal(t, c.want, err)
		})
	}
}

func TestARelativeDirectoryIsBelowTheWorkingDirectory(t *testing.T) {
	t.Parallel()

	wd, err := os.Getwd()
	require.NoError(t, err)
	_, err = file.Kind().Open("test", driver.Options{"dir": "no/such"}, env())
	require.Equal(t, driver.Problems{{
		Path: "options.dir", Text: "there is no directory " + filepath.Join(wd, "no") + " to create such in: create it first",
	}}, err)
}

func TestOpenTouchesNothing(t *testing.T) {
	t.Parallel()

	dir := filepath.Join(t.TempDir(), "new")
	d := open(t, dir, nil)
	require.NoDirExists(t, dir)
	require.NoError(t, d.(driver.Checker).Check(t.Context()))
	require.NoDirExists(t, dir)
}
