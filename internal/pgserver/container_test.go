package pgserver

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// fakeDocker is a docker command that writes down how it is called. Its container is gone after the first rm.
const fakeDocker = `#!/bin/sh
cd "$(dirname "$0")"
echo "$@" >>calls
gone() { test ! -e gone || { echo "Error response from daemon: No such container: x" >&2; exit 1; }; }
case "$1" in
image) echo other:1; echo postgres:16 ;;
run) test "$2" = --rm -o "$POSTGRES_PASSWORD" = hunter2 || { echo "Unable to find image" >&2; exit 125; } ;;
inspect) gone; test -e stopped && echo "false 3" || echo "true 0" ;;
kill) gone; touch stopped ;;
logs) echo "FATAL:  it broke" >&2 ;;
rm) gone; test -e removing && touch gone || { touch removing; echo "removal of container x is already in progress" >&2; exit 1; } ;;
esac
`

func TestContainer(t *testing.T) { // not parallel: it changes PATH
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "docker"), []byte(fakeDocker), 0o700))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	ctx := t.Context()

	present, err := Images(ctx)
	require.NoError(t, err)
	require.Equal(t, []string{"other:1", "postgres:16"}, present)
	c := &Container{Name: "x", Image: "postgres:16"}
	require.NoError(t, c.Run(ctx, "a=b", 23456, "hunter2", "fsync=off", "timezone=UTC"))
	require.EqualError(t, c.Run(ctx, "a=b", 23456, "wrong"), "docker run: exit status 125: Unable to find image")
	require.NoError(t, c.Alive(ctx))
	text, err := c.Log(ctx)
	require.NoError(t, err)
	require.Equal(t, "FATAL:  it broke\n", text)
	require.NoError(t, c.Stop(ctx, Immediate))
	require.NoError(t, c.Stop(ctx, Fast))
	require.EqualError(t, c.Alive(ctx), "container x has ended with exit code 3")
	require.NoError(t, c.Start(ctx))
	require.NoError(t, c.Script(ctx, "ls"))
	require.NoError(t, c.Destroy(ctx), "it waits for another process that removes it")
	require.NoError(t, c.Destroy(ctx), "what is gone is no error")
	require.NoError(t, c.Stop(ctx, Immediate))
	require.Error(t, c.Alive(ctx))

	calls, err := os.ReadFile(filepath.Join(dir, "calls"))
	require.NoError(t, err)
	lines := strings.Split(string(calls), "\n")
	require.Equal(t, "run --detach --name x --label a=b --publish 127.0.0.1:23456:5432 --env POSTGRES_PASSWORD postgres:16 postgres "+
		"-c fsync=off -c timezone=UTC", lines[1])
	for _, line := range []string{
		"kill --signal QUIT x", "kill --signal INT x", "wait x", "start x", "rm --force --volumes x",
		`run --rm --volumes-from x --entrypoint /bin/sh postgres:16 -c cd "$PGDATA" && ls`,
	} {
		require.Contains(t, lines, line)
	}
	require.NotContains(t, string(calls), "hunter2", "every user can read arguments")

	ended, end := context.WithCancel(ctx)
	end()
	require.ErrorIs(t, c.Destroy(ended), context.Canceled)
	t.Setenv("PATH", t.TempDir())
	_, err = Images(ctx)
	require.EqualError(t, err, "there is no docker command")
}
