package pgtest

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReadWish(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		env  map[string]string
		want wish
		err  string
	}{
		"PrefersFifteen":    {want: wish{version: 15}},
		"TakesTheVersion":   {env: map[string]string{envVersion: "18"}, want: wish{version: 18, exact: true}},
		"TakesDockerOnly":   {env: map[string]string{envFrom: "docker"}, want: wish{version: 15, noLocal: true}},
		"TakesLocalOnly":    {env: map[string]string{envFrom: "local"}, want: wish{version: 15, noDocker: true}},
		"RefusesAWord":      {env: map[string]string{envVersion: "newest"}, err: `RECONCILER_TEST_PG="newest": want a major version of PostgreSQL from 14 on, such as 15`},
		"RefusesTooOld":     {env: map[string]string{envVersion: "13"}, err: `RECONCILER_TEST_PG="13": want a major version of PostgreSQL from 14 on, such as 15`},
		"RefusesOtherPlace": {env: map[string]string{envFrom: "moon"}, err: `RECONCILER_TEST_PG_FROM="moon": want docker or local`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := readWish(func(name string) string { return test.env[name] })
			if test.err != "" {
				require.EqualError(t, err, test.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, test.want, got)
		})
	}
}

func TestPick(t *testing.T) {
	t.Parallel()
	both := []binaries{{dir: "/pg17/bin", version: 17}, {dir: "/pg15/bin", version: 15}}
	newer := both[:1]

	t.Run("TakesTheWishedVersion", func(t *testing.T) {
		t.Parallel()
		got, err := pick(both, wish{version: 15})
		require.NoError(t, err)
		require.Equal(t, both[1], got)
	})
	t.Run("TakesTheNewestIfItMay", func(t *testing.T) {
		t.Parallel()
		got, err := pick(newer, wish{version: 15})
		require.NoError(t, err)
		require.Equal(t, newer[0], got)
	})
	t.Run("RefusesAnotherVersionThanAskedFor", func(t *testing.T) {
		t.Parallel()
		_, err := pick(both, wish{version: 18, exact: true})
		require.EqualError(t, err, "RECONCILER_TEST_PG asks for PostgreSQL 18, installed: 17 (/pg17/bin), 15 (/pg15/bin)")
	})
	t.Run("SaysWhereItLooked", func(t *testing.T) {
		t.Parallel()
		_, err := pick(nil, wish{version: 15})
		require.EqualError(t, err, "no initdb, pg_ctl and postgres in `pg_config --bindir`, on PATH or in /usr/lib/postgresql")
	})
}

func TestNoServerSaysWhatToDo(t *testing.T) {
	t.Parallel()
	cause := errors.New("no engine answers")
	err := noServer(18, []error{cause, errors.New("none installed")})
	require.ErrorIs(t, err, cause)
	require.EqualError(t, err, `the tests need PostgreSQL 18 and found no way to run it.
Do one of these:
  apt-get install postgresql-18      (server binaries of the distribution)
  docker pull postgres:18            (with Docker and a registry)
  make images PG_VERSIONS=18         (with Docker and Debian packages, as root)
What was tried:
no engine answers
none installed`)
}

func TestVersionInIsZeroForAnIncompleteInstallation(t *testing.T) {
	t.Parallel()
	require.Zero(t, versionIn(t.Context(), t.TempDir()))
}
