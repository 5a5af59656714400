//go:build long

package faulttest_test

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// rareReload dumps one database and loads it into another one with the server's own programs, run by the server.
func rareReload(t *testing.T, from, to *pgtest.DB) {
	t.Helper()
	conn := to.Conn(t)
	var bin, port string
	require.NoError(t, conn.QueryRow(t.Context(), `SELECT setting, current_setting('port') FROM pg_config WHERE name = 'BINDIR'`).Scan(&bin, &port))
	where := fmt.Sprintf("-h 127.0.0.1 -p %s -U postgres", port)
	command := fmt.Sprintf("bash -o pipefail -c '%s %s %s | %s %s -X -q -v ON_ERROR_STOP=1 -o /dev/null %s || echo failed' 2>&1",
		path.Join(bin, "pg_dump"), where, from.Name, path.Join(bin, "psql"), where, to.Name)
	_, err := conn.Exec(t.Context(), `CREATE TEMP TABLE output (line text); COPY output FROM PROGRAM $command$`+command+`$command$`)
	require.NoError(t, err, command)
	var output string
	require.NoError(t, conn.QueryRow(t.Context(), `SELECT coalesce(string_agg(line, E'\n'), '') FROM output`).Scan(&output))
	require.Empty(t, output, command)
}

// What happens to the fleet after the copy that is put back was made: rows come, change, and go. All of it is lost.
const rareLost = `
INSERT INTO apps (id, region) SELECT i, (ARRAY['eu', 'us'])[1 + i % 2] FROM generate_series(1001, 1005) AS i;
UPDATE apps SET version = nextval('versions') WHERE id <= 20;
UPDATE apps SET region = CASE region WHEN 'eu' THEN 'us' ELSE 'eu' END WHERE id BETWEEN 21 AND 25;
UPDATE apps SET state = 'stopped' WHERE id BETWEEN 26 AND 30;
DELETE FROM apps WHERE id BETWEEN 31 AND 35`

// rareRestoreWorld is a world whose target eu can be listed, and whose target us cannot.
func rareRestoreWorld(t *testing.T, db *pgtest.DB) (w *rareWorld, us *rareEndpoint, start rareStart) {
	t.Helper()
	w = newRareWorld(t, db)
	w.fill(60, "us", "eu")
	us = newRareEndpoint(t, "127.0.0.1")
	start = rareStart{binary: rareBinary(t, "new"), config: w.configure("before", []rareObject{w.fileTarget("eu"), us.target("us")})}
	return w, us, start
}

// asRestored fails unless the targets are as the rows, but for what nobody need know: objects of rows that the restore
// lost, and of rows that it moved away, may stay in the target that cannot be listed.
func (w *rareWorld) asRestored(us *rareEndpoint) {
	w.t.Helper()
	w.equal(w.files, "eu")
	w.equal(func(string) map[string]string {
		have := us.have("us")
		for _, id := range []int{1001, 1003, 1005, 21, 23, 25} {
			delete(have, fmt.Sprintf("app/%d.json", id))
		}
		return have
	}, "us")
}

// C15, I12: a database is dumped, loaded into another one, and the processes are pointed to that. What happened to the
// old one since the dump is undone.
func TestRareReloadedDatabaseIsAppliedAnew(t *testing.T) {
	t.Parallel()
	w, us, start := rareRestoreWorld(t, pgtest.New(t))
	d := w.start(start)
	w.wait(start)
	reloaded := pgtest.Empty(t)
	rareReload(t, w.db, reloaded)
	w.exec(rareLost)
	w.wait(start)
	w.equal(w.files, "eu")
	w.equal(us.have, "us")
	d.stop()

	w.db = reloaded
	start.config = w.configure("after", []rareObject{w.fileTarget("eu"), us.target("us")})
	d = w.start(start)
	d.awaits("database_restored")
	rareEventually(t, rarePatience, func() error { // F106: the old one may still be at work
		return w.db.Pool.QueryRow(t.Context(), `SELECT FROM reconciler.status WHERE target = 'eu' AND last_error LIKE '%remove that file%'`).Scan()
	}, "the directory is the other database's")
	require.NoError(t, os.Remove(filepath.Join(w.path("eu"), ".reconciler-owner")))
	w.wait(start)
	w.asRestored(us)
	w.exec(rareLost)
	w.wait(start)
	w.equal(w.files, "eu")
	w.equal(us.have, "us")
	d.stop()
}

// I12: the files of the server are put back as they were some time ago, which looks like a crash to PostgreSQL. A
// process that has seen what was lost notices; where all are started after, a person has to say so.
func TestRareFilesThatArePutBackAreAppliedAnew(t *testing.T) {
	t.Parallel()
	for name, running := range map[string]bool{"UnderARunningProcess": true, "WhileNoneRuns": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := pgtest.Server(t)
			w, us, start := rareRestoreWorld(t, cluster.New(t))
			d := w.start(start)
			w.wait(start)
			cluster.Stop(t)
			cluster.KeepData(t)
			cluster.Start(t)
			w.insist(rareLost)
			w.wait(start)
			w.equal(w.files, "eu")
			w.equal(us.have, "us")

			if !running {
				d.stop()
			}
			cluster.Stop(t)
			cluster.PutBackData(t)
			cluster.Start(t)
			if running {
				d.awaits("database_restored")
			} else {
				d = w.start(start)
				w.insist(`SELECT reconciler.start_over('restored')`)
			}
			w.wait(start)
			w.asRestored(us)
			w.exec(rareLost)
			w.wait(start)
			w.equal(w.files, "eu")
			w.equal(us.have, "us")
			d.stop()
		})
	}
}

// insist runs SQL until it succeeds: the test's own connections died with the server.
func (w *rareWorld) insist(sql string) {
	w.t.Helper()
	rareEventually(w.t, rarePatience, func() error {
		_, err := w.db.Pool.Exec(w.t.Context(), sql)
		return err
	}, sql)
}
