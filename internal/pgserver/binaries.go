package pgserver

import (
	"cmp"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// VersionMin is the oldest supported major version of PostgreSQL.
const VersionMin = 14

// ErrNotInstalled reports that Installed finds no server.
var ErrNotInstalled = errors.New("no initdb and postgres in `pg_config --bindir`, on PATH or in /usr/lib/postgresql")

// BinaryGlobs are where packages put server binaries, beside what pg_config and PATH name.
var BinaryGlobs = []string{
	"/usr/lib/postgresql/*/bin",
	"/usr/pgsql-*/bin",
	"/opt/homebrew/opt/postgresql@*/bin",
	"/usr/local/opt/postgresql@*/bin",
}

// Binaries are the programs of one server version.
type Binaries struct {
	Dir     string
	Version string // such as 15.4
}

// Major returns the major version, such as 15.
func (b Binaries) Major() int {
	text, _, _ := strings.Cut(b.Version, ".")
	major, _ := strconv.Atoi(text) // The pattern has digits only.
	return major
}

// Installed returns the servers of this machine, newest first, each major version once.
func Installed(ctx context.Context) []Binaries {
	var dirs []string
	if out, err := exec.CommandContext(ctx, "pg_config", "--bindir").Output(); err == nil {
		dirs = append(dirs, strings.TrimSpace(string(out)))
	}
	if path, err := exec.LookPath("initdb"); err == nil {
		dirs = append(dirs, filepath.Dir(path))
	}
	for _, glob := range BinaryGlobs {
		matches, _ := filepath.Glob(glob) // Only a malformed pattern is an error.
		dirs = append(dirs, matches...)
	}
	var found []Binaries
	for _, dir := range dirs {
		b := Binaries{dir, versionIn(ctx, dir)}
		if b.Version != "" && !slices.ContainsFunc(found, func(other Binaries) bool { return other.Major() == b.Major() }) {
			found = append(found, b)
		}
	}
	slices.SortFunc(found, func(a, b Binaries) int { return cmp.Compare(b.Major(), a.Major()) })
	return found
}

var postgresVersion = regexp.MustCompile(`\(PostgreSQL\) (\d+(?:\.\d+)?)`)

// versionIn returns the version of the server in dir, "" if it is not complete.
func versionIn(ctx context.Context, dir string) string {
	if _, err := os.Stat(filepath.Join(dir, "initdb")); err != nil {
		return ""
	}
	out, err := exec.CommandContext(ctx, filepath.Join(dir, "postgres"), "--version").Output()
	if match := postgresVersion.FindSubmatch(out); err == nil && match != nil {
		return string(match[1])
	}
	return ""
}
