package devdb

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// fakeDocker puts a docker command before all others that writes down how it is called, and whose container is another
// server. It returns the file with the calls.
const fakeDocker = `#!/bin/sh
echo "$@" >>"$DOCKER_CALLS"
case "$1" in
version) echo 27.0 ;;
image) test "$3" = postgres:16 ;;
run) test -n "$POSTGRES_PASSWORD" && test ! -e "$DOCKER_FAILS" || { echo "Unable to find image" >&2; exit 125; } ;;
port) echo "127.0.0.1:$DOCKER_PORT" ;;
wait) while test ! -e "$DOCKER_CALLS.gone"; do sleep 0.02; done; echo 0 ;;
kill) touch "$DOCKER_CALLS.gone" ;;
logs) echo "FATAL:  it said" ;;
rm) test ! -e "$DOCKER_CALLS.removed" || { echo "Error response from daemon: No such container: x" >&2; exit 1; }; touch "$DOCKER_CALLS.removed" ;;
esac
`

func TestContainer(t *testing.T) { // not parallel: it changes PATH
	server := start(t, Options{Base: base(t)})
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "docker"), []byte(fakeDocker), 0o700))
	calls := filepath.Join(dir, "calls")
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	t.Setenv("DOCKER_CALLS", calls)
	t.Setenv("DOCKER_PORT", fmt.Sprint(server.Port))
	t.Setenv("DOCKER_FAILS", filepath.Join(dir, "fails"))
	called := func() []string {
		text, err := os.ReadFile(calls)
		require.NoError(t, err)
		require.NoError(t, os.Remove(calls))
		return strings.Split(strings.TrimSpace(string(text)), "\n")
	}

	c := newContainer("postgres:16")
	require.Regexp(t, `^reconciler-dev-[a-z2-7]{12}$`, c.Name)
	port, ended, err := c.start(t.Context(), "hunter2", settings(false))
	require.NoError(t, err)
	require.Equal(t, server.Port, port)
	require.NoError(t, c.stop(t.Context()))
	<-ended
	require.NoError(t, c.remove(t.Context()))
	require.NoError(t, c.remove(t.Context()), "what is gone is no error")
	lines := called()
	require.Equal(t, "run --detach --name "+c.Name+" --label reconciler.dev=true --publish 127.0.0.1::5432/tcp --env POSTGRES_PASSWORD postgres:16 postgres "+
		"-c max_connections=100 -c timezone=UTC -c log_timezone=UTC -c fsync=off -c full_page_writes=off -c synchronous_commit=off", lines[0])
	require.Equal(t, "port "+c.Name+" 5432/tcp", lines[1])
	require.Contains(t, lines, "kill --signal QUIT "+c.Name)
	require.Contains(t, lines, "rm --force --volumes "+c.Name)
	require.NotContains(t, strings.Join(lines, "\n"), "hunter2", "arguments can be read by every user")

	require.Equal(t, "postgres:16", presentImage(t.Context()))
	require.Equal(t, "in Docker image postgres:16", c.describe())
	require.Equal(t, "docker start "+c.Name, c.restart(1))
	require.Equal(t, "FATAL:  it said\n", c.log(t.Context()))

	require.NoError(t, os.WriteFile(filepath.Join(dir, "fails"), nil, 0o600))
	_, err = Start(t.Context(), Options{Base: base(t), Image: "none:1"})
	require.EqualError(t, err, "start PostgreSQL in Docker image none:1: docker run: exit status 125: Unable to find image")
}

func TestMachineWithoutPostgresIsToldWhatToDo(t *testing.T) { // not parallel: it changes PATH
	t.Setenv("PATH", t.TempDir())
	globs := binaryGlobs
	binaryGlobs = nil
	t.Cleanup(func() { binaryGlobs = globs })
	_, err := Start(t.Context(), Options{Base: base(t)})
	require.EqualError(t, err, `found no way to run PostgreSQL.
Do one of these:
  apt-get install postgresql      (server binaries of the distribution)
  docker pull postgres:17         (with Docker and a registry)
What was tried:
local binaries: no initdb and postgres in `+"`pg_config --bindir`"+`, on PATH or in /usr/lib/postgresql
Docker: there is no docker command`)
	_, err = Start(t.Context(), Options{Base: base(t), Image: "postgres:17"})
	require.EqualError(t, err, "run image postgres:17: there is no docker command")
}

func TestServersThatAreTooOldAreRefused(t *testing.T) { // not parallel: it changes PATH
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	globs := binaryGlobs
	binaryGlobs = []string{filepath.Join(dir, "*", "bin")}
	t.Cleanup(func() { binaryGlobs = globs })
	install := func(version string) string {
		bin := filepath.Join(dir, version, "bin")
		require.NoError(t, os.MkdirAll(bin, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(bin, "initdb"), nil, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(bin, "postgres"), []byte("#!/bin/sh\necho 'postgres (PostgreSQL) "+version+"'\n"), 0o700))
		return bin
	}
	bin := install("13.9")
	_, err := findBinaries(context.Background())
	require.EqualError(t, err, "PostgreSQL 13.9 in "+bin+" is too old: 14 is the oldest that will do")
	newer := install("16.2")
	install("9.6")
	install("15.11")
	found, err := findBinaries(context.Background())
	require.NoError(t, err)
	require.Equal(t, Binaries{newer, "16.2"}, found)
}
