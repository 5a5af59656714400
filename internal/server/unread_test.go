package server_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/config"
)

// unreadable tracks a table, before the resource app in a sync, and puts a table in the place of its view. mend puts the view back.
func (w *world) unreadable() (mend func()) {
	w.t.Helper()
	tx := w.begin() // one transaction: no process reads the view before it is gone
	w.in(tx, `CREATE TABLE bads (id int PRIMARY KEY); INSERT INTO bads VALUES (1)`)
	w.in(tx, `SELECT reconciler.track('aaa', 'bads', '{id}', '''eu''')`)
	var definition string
	require.NoError(w.t, tx.QueryRow(w.t.Context(), `SELECT pg_get_viewdef('reconciler.desired_aaa'::regclass)`).Scan(&definition))
	w.in(tx, `DROP VIEW reconciler.desired_aaa; CREATE TABLE reconciler.desired_aaa ()`)
	w.commit(tx)
	return func() {
		w.db.Exec(w.t, `DROP TABLE reconciler.desired_aaa; CREATE VIEW reconciler.desired_aaa AS `+definition)
	}
}

// F111: a full sync goes on if it cannot read one of the resources. That resource gets syncs of its own, and the target is neither
// clean nor done for wait() until one of them is complete.
func TestF111_UnreadableResourceKeepsNoOtherFromItsSync(t *testing.T) {
	t.Parallel()
	w, _ := fleet(t, 3)
	eu := newPlace()
	p := w.start(named("eu", eu, quick))
	w.converged()
	mend := w.unreadable()
	w.silently(`DELETE FROM apps WHERE id = 1; UPDATE apps SET image = 'v2' WHERE id = 2`)
	w.db.Exec(t, `SELECT reconciler.resync('eu')`)
	want := map[string]string{"app/2": `"v2"`, "app/3": `"v1"`}
	eu.eventually(t, want)
	w.settled("complete does not exist", `SELECT state || ' ' || substring(error FROM 'does not exist') FROM reconciler.sync_runs WHERE reason = 'resync' AND resource_id IS NULL`)
	require.Contains(t, strings.Join(w.logged("sync_failed"), "\n"), "reason=resync resource=aaa")
	w.eventually("wait() goes on", func() bool {
		return strings.Contains(w.text(`SELECT string_agg(reason, ' ') FROM reconciler.wait('1 ms', 'eu')`), "does not exist")
	})
	w.eventually("status has it", func() bool { return w.text(`SELECT count(*)::text FROM reconciler.failing_loops`) == "1" })
	p.stop(t)

	w.db.Exec(t, `UPDATE reconciler.targets SET clean = false`) // as after a crash
	w.silently(`INSERT INTO apps VALUES (4, 'eu', 'v1')`)
	w.start(named("eu", eu, quick))
	want["app/4"] = `"v1"`
	eu.eventually(t, want)
	w.settled("complete", `SELECT state FROM reconciler.sync_runs WHERE reason = 'takeover' AND resource_id IS NULL`)
	require.Equal(t, "false", w.text(`SELECT clean::text FROM reconciler.targets`), "a crash may have left objects of the resource that the ledger does not know")
	mend()
	want["aaa/1"] = `{"id": 1}`
	eu.eventually(t, want)
	w.settled("true", `SELECT clean::text FROM reconciler.targets`)
	w.converged()
	w.settled("0", `SELECT count(*)::text FROM reconciler.failing_loops`)
	require.Equal(t, 1, eu.deletes(), "of app/1")
}

// F105: syncs of another resource that succeed do not hide that a resource cannot be read. F112: that hides nothing more urgent, and
// the process stays ready.
func TestF105_UnreadableResourceStaysVisible(t *testing.T) {
	t.Parallel()
	w, want := fleet(t, 3)
	eu := newPlace()
	w.startWith(func(c *config.Config) { c.Listen = "127.0.0.1:0" }, named("eu", eu, func(c *config.Target) { c.Guard.MaxDeletes = new(1) }))
	eu.eventually(t, want)
	w.wait()
	mend := w.unreadable()
	const status = `SELECT concat_ws(' ', state, substring(last_error FROM '^rows of'), substring(last_error FROM 'of resource aaa')) FROM reconciler.status`
	w.settled("error rows of of resource aaa", status)
	for n := range 3 {
		w.db.Exec(t, `TRUNCATE apps; INSERT INTO apps SELECT i, 'eu', 'v1' FROM generate_series(1, 3) AS i`)
		w.settled(strconv.Itoa(n+1), `SELECT count(*)::text FROM reconciler.sync_runs WHERE state = 'complete' AND reason = 'resource' AND rows = 3`)
		require.Equal(t, "rows", w.text(`SELECT string_agg(loop, ' ') FROM reconciler.failing_loops`))
	}
	require.Equal(t, "200 ok", w.ready())
	w.db.Exec(t, `DELETE FROM apps`)
	w.settled("held rows of of resource aaa", status)
	w.db.Exec(t, `INSERT INTO apps SELECT i, 'eu', 'v1' FROM generate_series(1, 3) AS i`)
	mend()
	w.wait()
	w.settled("ok", status)
}

// F111, S3: a stream is not complete without the objects of a resource that cannot be read.
func TestF111_StreamWaitsForAResourceThatCannotBeRead(t *testing.T) {
	t.Parallel()
	w, _ := fleet(t, 1)
	mend := w.unreadable()
	w.start(streaming(t))
	w.settled("complete", `SELECT state FROM reconciler.sync_runs WHERE resource_id IS NULL ORDER BY id DESC LIMIT 1`)
	w.settled("2", `SELECT count(*)::text FROM reconciler.sync_runs WHERE resource_id IS NOT NULL AND state = 'failed' HAVING count(*) = 2`)
	require.Equal(t, `false eu/app/1="v1"`, w.text(`SELECT complete::text FROM reconciler.streams`)+" "+w.published())
	w.eventually("doctor finds it", func() bool { // not while the resource's sync runs
		return strings.Contains(w.text(`SELECT string_agg(finding, ' ') FROM reconciler.doctor() WHERE NOT ok`),
			"stream eu is not complete, and its watchers wait: its last full sync could not read everything: read a page of resource aaa")
	})
	mend()
	w.settled("true", `SELECT complete::text FROM reconciler.streams`)
	require.Equal(t, `eu/aaa/1={"id": 1} eu/app/1="v1"`, w.published())
}

// F111, I5: a sync has found a delete before it fails to read the rows of the resource. The delete is not decided on until a sync of
// the resource is complete.
func TestF111_DeletesOfAResourceThatCannotBeReadAreNotDecidedOn(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.db.Exec(t, `CREATE TABLE brake (id int); CREATE TABLE apps (id int PRIMARY KEY); CREATE TABLE others (id int PRIMARY KEY)`)
	w.db.Exec(t, `CREATE FUNCTION slow(i int) RETURNS int LANGUAGE plpgsql STABLE AS
		$$ BEGIN IF EXISTS (SELECT FROM public.brake b WHERE b.id = i) THEN PERFORM pg_sleep(600); END IF; RETURN i; END $$`)
	w.db.Exec(t, `INSERT INTO apps SELECT i FROM generate_series(1, 3) AS i; INSERT INTO others VALUES (1)`)
	w.db.Exec(t, `SELECT reconciler.track('app', 'apps', '{id}', '''eu''', spec => 'to_jsonb(public.slow(id))'), reconciler.track('other', 'others', '{id}', '''eu''')`)
	eu := newPlace()
	w.start(named("eu", listing{eu}))
	w.converged()
	eu.put("app/9", `9`)
	w.db.Exec(t, `INSERT INTO brake VALUES (2)`)
	w.db.Exec(t, `SELECT reconciler.resync('eu')`)
	const cancel = `SELECT count(pg_cancel_backend(pid))::text FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'`
	w.eventually("its rows are being read", func() bool { return w.text(cancel) == "1" })
	w.settled("complete", `SELECT state FROM reconciler.sync_runs WHERE reason = 'resync' AND resource_id IS NULL`)
	require.Equal(t, "held sync", w.text(`SELECT state || ' ' || held_by FROM reconciler.ledger WHERE key = '9'`))
	require.Zero(t, eu.deletes())
	w.db.Exec(t, `DELETE FROM brake`)
	w.eventually("it is deleted", func() bool {
		w.text(cancel) // another attempt may have met the brake
		return eu.deletes() == 1
	})
	w.converged()
}
