package main

import (
	"context"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// streamed is a process that serves the stream of target eu, with one object, and where it listens.
func streamed(t *testing.T, streams string) (db *pgtest.DB, p *place, server string) {
	t.Helper()
	db, p = pgtest.New(t), newPlace(t)
	db.Exec(t, `CREATE TABLE apps (id text PRIMARY KEY, region text NOT NULL); INSERT INTO apps VALUES ('a', 'eu')`)
	db.Exec(t, `SELECT reconciler.track('app', 'apps', '{id}', 'region')`)
	p.write(t, "token", "secret-of-target-eu\n")
	p.write(t, "reconciler.yaml", "database_url: "+db.URL+"\nlisten: off\nstreams: {listen: '127.0.0.1:0'"+strings.ReplaceAll(streams, "DIR", p.dir)+"}\ntargets: [{name: eu, driver: stream}]\n")
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(t.Context()))
	var stderr output
	a := &app{stdout: &stderr, stderr: &stderr, dir: p.dir, registry: registry()}
	code := make(chan int, 1)
	go func() { code <- a.execute(ctx, []string{"run"}) }()
	t.Cleanup(func() {
		cancel(&signalError{syscall.SIGTERM})
		require.Zero(t, <-code, stderr.String())
	})
	stderr.await(t, "key=streams.listen address=")
	return db, p, "http://" + regexp.MustCompile(`key=streams.listen address=(\S+)`).FindStringSubmatch(stderr.String())[1]
}

func TestWatchFollowsAStream(t *testing.T) {
	t.Parallel()
	db, p, server := streamed(t, "")
	require.Equal(t, result{stdout: "upsert app/a {\"id\": \"a\", \"region\": \"eu\"}\nend_of_snapshot\n"}, quiet(p.run(t, "watch", "eu", "--server", server, "--once")))

	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	var stdout, stderr output
	a := &app{stdout: &stdout, stderr: &stderr, dir: p.dir, registry: registry()}
	code := make(chan int, 1)
	go func() { code <- a.execute(ctx, []string{"watch", "eu", "--server", server, "-o", "json"}) }()
	stdout.await(t, `"type":"end_of_snapshot"`)
	db.Exec(t, `INSERT INTO apps VALUES ('b', 'eu')`)
	stdout.await(t, `{"type":"upsert","resource":"app","key":"b"`)
	db.Exec(t, `DELETE FROM apps WHERE id = 'a'`)
	stdout.await(t, `{"type":"delete","resource":"app","key":"a"`)
	cancel(&signalError{syscall.SIGINT})
	require.Zero(t, <-code, stderr.String())

	all := regexp.MustCompile(`"bookmark":"([^"]+)"`).FindAllStringSubmatch(stdout.String(), -1)
	db.Exec(t, `INSERT INTO apps VALUES ('c', 'eu'), ('d', 'eu')`)
	db.Exec(t, `SELECT reconciler.wait('90s')`)
	r := p.run(t, "watch", "eu", "--server", server, "--once", "--since", all[len(all)-1][1], "--resource", "app", "--prefix", "c")
	require.Equal(t, "note: reset: scope\n", r.stderr, "the bookmark is one of all objects")
	require.Equal(t, "upsert app/c {\"id\": \"c\", \"region\": \"eu\"}\nend_of_snapshot\n", r.stdout)
	r = p.run(t, "watch", "eu", "--server", server, "--once", "--since", all[len(all)-1][1])
	require.NotContains(t, r.stdout, "app/b", "that was before the bookmark")
	require.Contains(t, r.stdout, "upsert app/c ")
	require.Contains(t, r.stdout, "upsert app/d ")
}

// Another process owns the stream: diff reads what is published.
func TestDiffOfAStream(t *testing.T) {
	t.Parallel()
	db, p, _ := streamed(t, "")
	db.Exec(t, `SELECT reconciler.wait('90s')`)
	require.Equal(t, result{stdout: "no differences: 1 target, 1 running row compared\n"}, p.run(t, "diff"))
	db.Exec(t, `DELETE FROM reconciler.published`)
	require.Equal(t, result{code: 1, stdout: "eu app/a: missing: was applied, and is gone from the target\n", stderr: "reconciler: 1 object differs\n"}, p.run(t, "diff"))
}

// quiet leaves out notes about a stream that is not complete yet.
func quiet(r result) result {
	r.stderr = regexp.MustCompile(`(?m)^note: waiting: .*\n`).ReplaceAllString(r.stderr, "")
	return r
}

func TestWatchSendsAToken(t *testing.T) {
	t.Parallel()
	_, p, server := streamed(t, ", tokens: [{name: eu, token_file: DIR/token, targets: [eu]}]")
	token := p.write(t, "mine", "secret-of-target-eu")
	r := quiet(p.run(t, "watch", "eu", "--server", server, "--once", "--token-file", token))
	require.Zero(t, r.code, r.stderr)
	require.Contains(t, r.stdout, "upsert app/a ")
	for _, c := range []struct{ args, want string }{
		{"eu", "reconciler: a valid token is needed: Authorization: Bearer TOKEN (status 401)\nhint: give --token-file with the file of a token in streams.tokens\n"},
		{"us --token-file " + token, "reconciler: token \"eu\" may not read target \"us\" (status 403)\n"},
	} {
		r := p.run(t, append([]string{"watch", "--server", server}, strings.Fields(c.args)...)...)
		require.Equal(t, result{code: 1, stderr: c.want}, r, c.args)
	}
}

func TestWatchRefusesBadInput(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	for _, c := range []struct{ args, want string }{
		{"", "reconciler: reconciler watch takes TARGET, and got 0 arguments\n"},
		{"eu --prefix a", "reconciler: --prefix needs exactly one --resource\n"},
		{"eu --server localhost:8081", "reconciler: server must be a URL with http or https, such as http://127.0.0.1:8081\n"},
		{"eu --token-file nowhere", "reconciler: read the token: open nowhere: no such file or directory\n"},
	} {
		r := p.run(t, append([]string{"watch"}, strings.Fields(c.args)...)...)
		require.Equal(t, result{code: 2, stderr: c.want + "hint: see `reconciler watch --help`\n"}, r, c.args)
	}
}
