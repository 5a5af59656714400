package e2e_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// refused runs the daemon, which must end by itself, and returns what came of it.
func (w *world) refused() result {
	w.t.Helper()
	d := w.launch(w.config)
	return result{code: d.code(), stderr: d.log.text()}
}

// C65: a database that is down at the start is one sentence and exit code 3; at run time it is waited out, and probes
// tell the truth meanwhile.
func TestDatabaseThatIsDownIsReportedThenWaitedOut(t *testing.T) {
	t.Parallel()
	cluster := pgtest.Server(t)
	w := newWorldOn(t, cluster.New(t))
	w.exec(fleet)
	w.exec(`INSERT INTO apps (id, region) VALUES (1, 'eu'), (2, 'eu')`)
	w.configure([]object{w.fileTarget("eu")})

	url, err := pgx.ParseConfig(w.db.URL)
	require.NoError(t, err)
	down := fmt.Sprintf("reconciler: cannot connect to database %q at 127.0.0.1:%d as user \"postgres\": connection refused\n", w.db.Name, url.Port)
	cluster.StopImmediate(t)
	require.Equal(t, result{code: 3, stderr: down}, w.refused())
	require.Equal(t, result{code: 3, stderr: down}, w.cli("status"))
	require.Equal(t, result{code: 3, stderr: down}, w.cli("wait", "--timeout", "1s"))
	cluster.Start(t)

	d := w.start()
	w.has("eu", map[string]string{"app/1.json": "{\"id\": 1, \"version\": 1}\n", "app/2.json": "{\"id\": 2, \"version\": 1}\n"})
	d.answers("/healthz", 200, "ok\n", patience)
	d.answers("/readyz", 200, "ok\n", patience)

	cluster.StopImmediate(t)
	d.answers("/readyz", 503, "the database does not answer\n", patience)
	d.answers("/healthz", 200, "ok\n", 0)
	cluster.Start(t)
	w.insist(`UPDATE apps SET version = 2 WHERE id = 1`)
	w.insist(`DELETE FROM apps WHERE id = 2`)
	w.has("eu", map[string]string{"app/1.json": "{\"id\": 1, \"version\": 2}\n"})
	d.answers("/readyz", 200, "ok\n", patience)
	d.stop()
}

// insist runs SQL until it succeeds: the test's own connections died with the server.
func (w *world) insist(sql string) {
	w.t.Helper()
	eventually(w.t, patience, func() error {
		_, err := w.db.Pool.Exec(w.t.Context(), sql)
		return err
	}, sql)
}

// C54, C66: a schema that is not exactly the binary's is refused, with the command that mends it.
func TestSchemaThatDoesNotFitIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorldOn(t, pgtest.Empty(t))
	w.configure([]object{w.fileTarget("eu")})
	const missing = "reconciler: the database has no schema reconciler yet: run `reconciler migrate up`\n"
	require.Equal(t, result{code: 3, stderr: missing}, w.refused())
	for _, args := range [][]string{{"status"}, {"wait"}, {"pause", "eu"}, {"explain", "eu", "app", "1"}, {"sync"}, {"track", "app", "apps", "--key", "id", "--target", "region"}} {
		require.Equal(t, result{code: 3, stderr: missing}, w.cli(args...), args)
	}
	require.Equal(t, 1, w.cli("migrate", "status").code)

	w.ok("migrate", "up")
	newest := w.text(`SELECT max(version_id) FROM reconciler.goose_db_version`)
	require.Equal(t, 0, w.cli("migrate", "status").code)

	// Newer: another, upgraded binary was here.
	w.exec(`INSERT INTO reconciler.goose_db_version (version_id, is_applied) VALUES (999, true)`)
	require.Equal(t, result{code: 3, stderr: "reconciler: the database has schema version 999, this binary knows up to " + newest +
		": use a newer reconciler, or take the schema back with the newer one (`reconciler migrate down`)\n"}, w.refused())
	w.exec(`DELETE FROM reconciler.goose_db_version WHERE version_id = 999`)

	// Older: this binary is the upgraded one.
	w.ok("migrate", "down")
	older := w.text(`SELECT max(version_id) FROM reconciler.goose_db_version`)
	require.NotEqual(t, newest, older)
	require.Equal(t, result{code: 3, stderr: "reconciler: the database has schema version " + older + ", this binary needs " + newest +
		": run `reconciler migrate up`\n"}, w.refused())
	w.ok("migrate", "up")
	w.start().stop()

	w.ok("migrate", "down", "--to", "0")
	require.Equal(t, "0", w.text(`SELECT count(*) FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = 'reconciler'`))
	require.Equal(t, result{code: 3, stderr: missing}, w.refused())
}

// C54: replicas that are upgraded together migrate together.
func TestManyProcessesMayMigrateAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorldOn(t, pgtest.Empty(t))
	w.configure([]object{w.fileTarget("eu")})
	results := make(chan result, 4)
	for range cap(results) {
		go func() { results <- w.quietly("migrate", "up") }()
	}
	for range cap(results) {
		r := <-results
		require.Equal(t, 0, r.code, r.stderr)
	}
	require.Equal(t, 0, w.cli("migrate", "status").code)
}

// quietly is cli for other goroutines than the test's.
func (w *world) quietly(args ...string) result {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.t.Context()), 2*patience)
	defer cancel()
	cmd := w.command(ctx, append(args, "-c", w.config)...)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	_ = cmd.Run() // the code tells
	return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}
