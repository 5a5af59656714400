package pgtest

import (
	"cmp"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// binaries is one installed server version.
type binaries struct {
	dir     string
	version int
}

// Where packages put server binaries, beside what pg_config and PATH say.
var binaryGlobs = []string{
	"/usr/lib/postgresql/*/bin",
	"/usr/pgsql-*/bin",
	"/opt/homebrew/opt/postgresql@*/bin",
	"/usr/local/opt/postgresql@*/bin",
}

var postgresVersion = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

// installed lists the server versions of this machine, newest first, each once.
func installed(ctx context.Context) []binaries {
	var dirs []string
	if out, err := exec.CommandContext(ctx, "pg_config", "--bindir").Output(); err == nil {
		dirs = append(dirs, strings.TrimSpace(string(out)))
	}
	if path, err := exec.LookPath("initdb"); err == nil {
		dirs = append(dirs, filepath.Dir(path))
	}
	for _, glob := range binaryGlobs {
		matches, _ := filepath.Glob(glob) // Only a malformed pattern is an error.
		dirs = append(dirs, matches...)
	}
	var found []binaries
	for _, dir := range dirs {
		version := versionIn(ctx, dir)
		if version != 0 && !slices.ContainsFunc(found, func(b binaries) bool { return b.version == version }) {
			found = append(found, binaries{dir: dir, version: version})
		}
	}
	slices.SortFunc(found, func(a, b binaries) int { return cmp.Compare(b.version, a.version) })
	return found
}

// versionIn returns the major version of the server in dir, 0 if there is not all of one.
func versionIn(ctx context.Context, dir string) int {
	for _, program := range []string{"initdb", "pg_ctl"} {
		if _, err := os.Stat(filepath.Join(dir, program)); err != nil {
			return 0
		}
	}
	out, err := exec.CommandContext(ctx, filepath.Join(dir, "postgres"), "--version").Output()
	if err != nil {
		return 0
	}
	match := postgresVersion.FindSubmatch(out)
	if match == nil {
		return 0
	}
	version, _ := strconv.Atoi(string(match[1])) // The pattern has digits only.
	return version
}
