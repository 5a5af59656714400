package devdb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Where packages put server binaries, beside what pg_config and PATH say.
var binaryGlobs = []string{
	"/usr/lib/postgresql/*/bin",
	"/usr/pgsql-*/bin",
	"/opt/homebrew/opt/postgresql@*/bin",
	"/usr/local/opt/postgresql@*/bin",
}

// images are tried in this order; the last one is fetched when none is here.
var images = []string{"postgres:18", "postgres:17", "postgres:16", "postgres:15", "postgres:14", "postgres:17"}

const remedy = `Do one of these:
  apt-get install postgresql      (server binaries of the distribution)
  docker pull postgres:17         (with Docker and a registry)`

// choose finds a way to get a server on this machine.
func choose(ctx context.Context, dir, image string) (*state, error) {
	if image != "" {
		if err := dockerAnswers(ctx); err != nil {
			return nil, fmt.Errorf("run image %s: %w", image, err)
		}
		return &state{Container: newContainer(image)}, nil
	}
	bin, localErr := findBinaries(ctx)
	if localErr == nil {
		return &state{Local: newLocal(dir, bin.Dir, bin.Version)}, nil
	}
	dockerErr := dockerAnswers(ctx)
	if dockerErr == nil {
		return &state{Container: newContainer(presentImage(ctx))}, nil
	}
	return nil, fmt.Errorf("found no way to run PostgreSQL.\n%s\nWhat was tried:\nlocal binaries: %w\nDocker: %w", remedy, localErr, dockerErr)
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
	for _, glob := range binaryGlobs {
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

// findBinaries returns the newest server of this machine.
func findBinaries(ctx context.Context) (Binaries, error) {
	found := Installed(ctx)
	if len(found) == 0 {
		return Binaries{}, ErrNotInstalled
	}
	if newest := found[0]; newest.Major() < VersionMin {
		return Binaries{}, fmt.Errorf("PostgreSQL %s in %s is too old: %d is the oldest that will do", newest.Version, newest.Dir, VersionMin)
	}
	return found[0], nil
}

// ErrNotInstalled is that Installed finds no server.
var ErrNotInstalled = errors.New("no initdb and postgres in `pg_config --bindir`, on PATH or in /usr/lib/postgresql")

var postgresVersion = regexp.MustCompile(`\(PostgreSQL\) (\d+(?:\.\d+)?)`)

// versionIn returns the version of the server in dir, "" if there is not all of one.
func versionIn(ctx context.Context, dir string) string {
	if _, err := os.Stat(filepath.Join(dir, "initdb")); err != nil {
		return ""
	}
	out, err := exec.CommandContext(ctx, filepath.Join(dir, "postgres"), "--version").Output()
	if err != nil {
		return ""
	}
	if match := postgresVersion.FindSubmatch(out); match != nil {
		return string(match[1])
	}
	return ""
}
