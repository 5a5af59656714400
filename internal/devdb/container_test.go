package devdb

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgserver"
)

func TestImageThatDoesNotStart(t *testing.T) { // not parallel: it changes PATH
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "docker"), []byte(`#!/bin/sh
echo "$@" >>"`+dir+`/calls"
case "$1" in run) echo "Unable to find image" >&2; exit 125 ;; esac
`), 0o700))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	_, err := Start(t.Context(), Options{Base: base(t), Image: "none:1"})
	require.EqualError(t, err, "start PostgreSQL in Docker image none:1: docker run: exit status 125: Unable to find image")
	calls, err := os.ReadFile(filepath.Join(dir, "calls"))
	require.NoError(t, err)
	const name = `reconciler-dev-[a-z2-7]{12}`
	require.Regexp(t, "\nrun --detach --name "+name+` --label reconciler\.dev=true --publish 127\.0\.0\.1:\d+:5432 --env POSTGRES_PASSWORD none:1 postgres `+
		"-c max_connections=100 -c timezone=UTC -c log_timezone=UTC -c fsync=off -c full_page_writes=off -c synchronous_commit=off\n"+
		"rm --force --volumes "+name+"\n$", string(calls))
}

func TestImageToRun(t *testing.T) {
	t.Parallel()
	require.Equal(t, "postgres:16", pick([]string{"other:18", "postgres:14", "postgres:16"}))
	require.Equal(t, "postgres:17", pick(nil))
	s := &Server{server: new(pgserver.Server)}
	s.inContainer("postgres:16")
	require.Equal(t, "in Docker image postgres:16", s.Version)
	require.Equal(t, "docker start "+s.server.Container.Name, s.Restart())
}

func TestMachineWithoutPostgresIsToldWhatToDo(t *testing.T) { // not parallel: it changes PATH
	t.Setenv("PATH", t.TempDir())
	globs := pgserver.BinaryGlobs
	pgserver.BinaryGlobs = nil
	t.Cleanup(func() { pgserver.BinaryGlobs = globs })
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

func TestServersThatAreTooOldAreRefused(t *testing.T) {
	t.Parallel()
	_, err := newest([]pgserver.Binaries{{Dir: "/old/bin", Version: "13.9"}})
	require.EqualError(t, err, "PostgreSQL 13.9 in /old/bin is too old: 14 is the oldest supported version")
	found, err := newest([]pgserver.Binaries{{Dir: "/new/bin", Version: "16.2"}, {Dir: "/old/bin", Version: "13.9"}})
	require.NoError(t, err)
	require.Equal(t, "/new/bin", found.Dir)
}
