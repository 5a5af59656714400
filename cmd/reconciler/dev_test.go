package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// ownExample is a directory as a person may have one.
func ownExample(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "migrations"), 0o700))
	for name, text := range map[string]string{
		"reconciler.yaml": "database_url: postgres://nobody@127.0.0.1:1/none\ntargets: [{name: eu, driver: file, options: {dir: /nowhere}}]\n",
		"seed.sql":        "INSERT INTO apps VALUES (1, 'eu'), (2, 'eu');",
		"migrations/00001_apps.sql": `-- +goose Up
CREATE TABLE apps (id int PRIMARY KEY, region text NOT NULL);
SELECT reconciler.track('app', 'apps', '{id}', 'region', spec => 'to_jsonb(''app '' || id)');
-- +goose Down
SELECT reconciler.untrack('app');
DROP TABLE apps;
`,
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return dir
}

// devRun is a `reconciler dev` that runs in this process.
type devRun struct {
	out    output
	cancel context.CancelCauseFunc
	code   chan int
}

func startDev(t *testing.T, args ...string) *devRun {
	t.Helper()
	d := &devRun{code: make(chan int, 1)}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(t.Context()))
	d.cancel = cancel
	a := &app{stdout: &d.out, stderr: &d.out, environ: os.Environ(), dir: t.TempDir(), registry: registry()}
	go func() {
		d.code <- a.execute(ctx, append([]string{"dev"}, args...))
		close(d.code)
	}()
	t.Cleanup(func() {
		cancel(nil)
		<-d.code
	})
	return d
}

// find returns what a pattern's group matches in the output.
func (d *devRun) find(t *testing.T, pattern string) string {
	t.Helper()
	match := regexp.MustCompile(pattern).FindStringSubmatch(d.out.String())
	require.NotNil(t, match, d.out.String())
	return match[1]
}

func TestDevShowsEventsAndLeavesNothing(t *testing.T) {
	t.Parallel()
	d := startDev(t, "--example", ownExample(t))
	d.out.await(t, "Ctrl-C ends it.\n")
	require.Regexp(t, `(?s)^starting a throwaway PostgreSQL\.\.\.
PostgreSQL .+ listens on 127\.0\.0\.1:\d+
example .+ is loaded \(.+s\)
eu: 2 objects in the first sync
everything is applied, .+ after the start

Change rows, and look what happens here:
  PGPASSFILE=\S+/pgpass psql -h 127\.0\.0\.1 -p \d+ -U postgres dev
Ask how things are:
  reconciler status -c \S+/reconciler\.yaml
Files of the targets:  \S+
Probes and metrics:    http://127\.0\.0\.1:\d+/metrics
Ctrl-C ends it\.
`, d.out.String())

	psql := d.find(t, `(PGPASSFILE=\S+/pgpass psql -h 127\.0\.0\.1 -p \d+ -U postgres dev)`)
	said, err := exec.CommandContext(t.Context(), "sh", "-c", psql+" -qc \"INSERT INTO apps VALUES (3, 'eu'); DELETE FROM apps WHERE id = 1\"").CombinedOutput()
	require.NoError(t, err, string(said))
	d.out.await(t, "  eu  app/3  applied  ")
	d.out.await(t, "  eu  app/1  deleted  ")
	require.Regexp(t, `(?m)^\d\d:\d\d:\d\d\.\d\d\d  eu  app/3  applied  [\d.]+m?s$`, d.out.String())

	dir := d.find(t, `Files of the targets:  (\S+)`)
	text, err := os.ReadFile(filepath.Join(dir, "targets", "eu", "app", "3.json"))
	require.NoError(t, err)
	require.Equal(t, "app 3", string(text))
	file := d.find(t, `reconciler status -c (\S+)`)
	require.Zero(t, newPlace(t).run(t, "wait", "-c", file).code, "other commands find the database")

	d.cancel(&signalError{syscall.SIGINT})
	require.Zero(t, <-d.code, d.out.String())
	require.True(t, strings.HasSuffix(d.out.String(), "ended; nothing is left behind\n"), d.out.String())
	require.NoDirExists(t, dir)
	require.Empty(t, processesOf(t, dir))
}

// processesOf lists the processes that name a directory in their arguments.
func processesOf(t *testing.T, dir string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "ps", "-eo", "pid,args").Output()
	require.NoError(t, err)
	var found []string
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, dir) {
			found = append(found, line)
		}
	}
	return strings.Join(found, "")
}

func TestDevServesStreamsElsewhereIfTheirPortIsTaken(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	dir := ownExample(t)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "reconciler.yaml"), fmt.Appendf(nil, `
database_url: postgres://nobody@127.0.0.1:1/none
streams: {listen: %q}
targets: [{name: eu, driver: stream}]
`, taken.Addr()), 0o600))
	d := startDev(t, "--example", dir)
	d.out.await(t, "Ctrl-C ends it.\n")
	server := d.find(t, `\n  reconciler watch eu --server (http://127\.0\.0\.1:\d+)\n`)
	require.NotContains(t, server, taken.Addr().String())
	require.Contains(t, d.out.String(), "Follow the stream eu:\n  curl -N '"+server+"/v1/targets/eu/objects?watch=true'\n")
	watched := newPlace(t).run(t, "watch", "eu", "--once", "--server", server)
	require.Zero(t, watched.code)
	require.Contains(t, watched.stdout, "app/1")
}

func TestDevEndsWhenItsDatabaseDoes(t *testing.T) {
	t.Parallel()
	d := startDev(t, "--example", ownExample(t))
	d.out.await(t, "Ctrl-C ends it.\n")
	dir := d.find(t, `Files of the targets:  (\S+)`)
	pid := regexp.MustCompile(`^\s*(\d+) \S*postgres -D`).FindStringSubmatch(processesOf(t, dir))
	if pid == nil {
		t.Fatalf("no server of %s among:\n%s", dir, processesOf(t, dir))
	}
	require.NoError(t, exec.CommandContext(t.Context(), "kill", "-KILL", pid[1]).Run())
	require.Equal(t, 1, <-d.code)
	require.Contains(t, d.out.String(), "reconciler: the throwaway PostgreSQL ended by itself\n")
	require.NoDirExists(t, dir)
}

func TestDevCleansUpAfterAFailure(t *testing.T) {
	t.Parallel()
	dir := ownExample(t)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "seed.sql"), []byte("INSERT INTO nothing VALUES (1);"), 0o600))
	d := startDev(t, "--example", dir)
	require.Equal(t, 2, <-d.code)
	require.Contains(t, d.out.String(), `relation "nothing" does not exist`)
	require.Contains(t, d.out.String(), "ended; nothing is left behind\n")
	require.Regexp(t, `listens on 127\.0\.0\.1:\d+`, d.out.String())
}

func TestDevCanBeLeftAtAnyTime(t *testing.T) {
	t.Parallel()
	for _, after := range []string{"starting a throwaway PostgreSQL...\n", "listens on", "is loaded"} {
		d := startDev(t, "--example", ownExample(t))
		d.out.await(t, after)
		d.cancel(&signalError{syscall.SIGTERM})
		require.Zero(t, <-d.code, "after %q:\n%s", after, d.out.String())
	}
}

func TestDevKeepsWhatItIsToldTo(t *testing.T) {
	t.Parallel()
	d := startDev(t, "--example", ownExample(t), "--keep")
	d.out.await(t, "Ctrl-C ends it.\n")
	d.cancel(&signalError{syscall.SIGINT})
	require.Zero(t, <-d.code, d.out.String())
	dir := d.find(t, `(?m)^ended; kept is (\S+)$`)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.FileExists(t, filepath.Join(dir, "targets", "eu", "app", "1.json"))
	require.Contains(t, d.find(t, `(?m)^start its PostgreSQL again with: (.+)$`), dir)
	require.Empty(t, processesOf(t, dir))
}
