package server_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/server/servertest"
)

// unreadable tracks a table, before the resource app in a sync, and puts a table in the place of its view. mend puts the view back.
func unreadable(w *servertest.World) (mend func()) {
	w.T.Helper()
	tx := w.Begin() // one transaction: no process reads the view before it is gone
	w.In(tx, `CREATE TABLE bads (id int PRIMARY KEY); INSERT INTO bads VALUES (1)`)
	w.In(tx, `SELECT reconciler.track('aaa', 'bads', '{id}', '''eu''')`)
	var definition string
	require.NoError(w.T, tx.QueryRow(w.T.Context(), `SELECT pg_get_viewdef('reconciler.desired_aaa'::regclass)`).Scan(&definition))
	w.In(tx, `DROP VIEW reconciler.desired_aaa; CREATE TABLE reconciler.desired_aaa ()`)
	w.Commit(tx)
	return func() {
		w.DB.Exec(w.T, `DROP TABLE reconciler.desired_aaa; CREATE VIEW reconciler.desired_aaa AS `+definition)
	}
}

// F111: a full sync goes on if it cannot read one of the resources. That resource gets syncs of its own, and the target is neither
// clean nor done for wait() until one of them is complete.
func TestF111_UnreadableResourceKeepsNoOtherFromItsSync(t *testing.T) {
	t.Parallel()
	w, _ := servertest.Fleet(t, 3)
	eu := servertest.NewPlace()
	p := w.Start(servertest.Named("eu", eu, servertest.Quick))
	w.Converged()
	mend := unreadable(w)
	w.Silently(`DELETE FROM apps WHERE id = 1; UPDATE apps SET image = 'v2' WHERE id = 2`)
	w.DB.Exec(t, `SELECT reconciler.resync('eu')`)
	want := map[string]string{"app/2": `"v2"`, "app/3": `"v1"`}
	eu.Eventually(t, want)
	w.Settled("complete does not exist", `SELECT state || ' ' || substring(error FROM 'does not exist') FROM reconciler.sync_runs WHERE reason = 'resync' AND resource_id IS NULL`)
	require.Contains(t, strings.Join(w.Logged("sync_failed"), "\n"), "reason=resync resource=aaa")
	w.Eventually("wait() goes on", func() bool {
		return strings.Contains(w.Text(`SELECT string_agg(reason, ' ') FROM reconciler.wait('1 ms', 'eu')`), "does not exist")
	})
	w.Eventually("status has it", func() bool { return w.Text(`SELECT count(*)::text FROM reconciler.failing_loops`) == "1" })
	p.Stop(t)

	w.DB.Exec(t, `UPDATE reconciler.targets SET clean = false`) // as after a crash
	w.Silently(`INSERT INTO apps VALUES (4, 'eu', 'v1')`)
	w.Start(servertest.Named("eu", eu, servertest.Quick))
	want["app/4"] = `"v1"`
	eu.Eventually(t, want)
	w.Settled("complete", `SELECT state FROM reconciler.sync_runs WHERE reason = 'takeover' AND resource_id IS NULL`)
	require.Equal(t, "false", w.Text(`SELECT clean::text FROM reconciler.targets`), "a crash may have left objects of the resource that the ledger does not know")
	mend()
	want["aaa/1"] = `{"id": 1}`
	eu.Eventually(t, want)
	w.Settled("true", `SELECT clean::text FROM reconciler.targets`)
	w.Converged()
	w.Settled("0", `SELECT count(*)::text FROM reconciler.failing_loops`)
	require.Equal(t, 1, eu.Deletes(), "of app/1")
}

// F105: syncs of another resource that succeed do not hide that a resource cannot be read. F112: that hides nothing more urgent, and
// the process stays ready.
func TestF105_UnreadableResourceStaysVisible(t *testing.T) {
	t.Parallel()
	w, want := servertest.Fleet(t, 3)
	eu := servertest.NewPlace()
	w.StartWith(func(c *config.Config) { c.Listen = "127.0.0.1:0" }, servertest.Named("eu", eu, func(c *config.Target) { c.Guard.MaxDeletes = new(1) }))
	eu.Eventually(t, want)
	w.Wait()
	mend := unreadable(w)
	const status = `SELECT concat_ws(' ', state, substring(last_error FROM '^rows of'), substring(last_error FROM 'of resource aaa')) FROM reconciler.status`
	w.Settled("error rows of of resource aaa", status)
	for n := range 3 {
		w.DB.Exec(t, `TRUNCATE apps; INSERT INTO apps SELECT i, 'eu', 'v1' FROM generate_series(1, 3) AS i`)
		w.Settled(strconv.Itoa(n+1), `SELECT count(*)::text FROM reconciler.sync_runs WHERE state = 'complete' AND reason = 'resource' AND rows = 3`)
		require.Equal(t, "rows", w.Text(`SELECT string_agg(loop, ' ') FROM reconciler.failing_loops`))
	}
	require.Equal(t, "200 ok", w.Ready())
	w.DB.Exec(t, `DELETE FROM apps`)
	w.Settled("held rows of of resource aaa", status)
	w.DB.Exec(t, `INSERT INTO apps SELECT i, 'eu', 'v1' FROM generate_series(1, 3) AS i`)
	mend()
	w.Wait()
	w.Settled("ok", status)
}

// F111, S3: a stream is not complete without the objects of a resource that cannot be read.
func TestF111_StreamWaitsForAResourceThatCannotBeRead(t *testing.T) {
	t.Parallel()
	w, _ := servertest.Fleet(t, 1)
	mend := unreadable(w)
	w.Start(streaming(t))
	w.Settled("complete", `SELECT state FROM reconciler.sync_runs WHERE resource_id IS NULL ORDER BY id DESC LIMIT 1`)
	w.Settled("2", `SELECT count(*)::text FROM reconciler.sync_runs WHERE resource_id IS NOT NULL AND state = 'failed' HAVING count(*) = 2`)
	require.Equal(t, `false eu/app/1="v1"`, w.Text(`SELECT complete::text FROM reconciler.streams`)+" "+published(w))
	w.Eventually("doctor finds it", func() bool { // not while the resource's sync runs
		return strings.Contains(w.Text(`SELECT string_agg(finding, ' ') FROM reconciler.doctor() WHERE NOT ok`),
			"stream eu is not complete, and its watchers wait: its last full sync could not read everything: read a page of resource aaa")
	})
	mend()
	w.Settled("true", `SELECT complete::text FROM reconciler.streams`)
	require.Equal(t, `eu/aaa/1={"id": 1} eu/app/1="v1"`, published(w))
}

// F111, I5: a sync has found a delete before it fails to read the rows of the resource. The delete is not decided on until a sync of
// the resource is complete.
func TestF111_DeletesOfAResourceThatCannotBeReadAreNotDecidedOn(t *testing.T) {
	t.Parallel()
	w := servertest.New(t)
	w.DB.Exec(t, `CREATE TABLE brake (id int); CREATE TABLE apps (id int PRIMARY KEY); CREATE TABLE others (id int PRIMARY KEY)`)
	w.DB.Exec(t, `CREATE FUNCTION slow(i int) RETURNS int LANGUAGE plpgsql STABLE AS
		$$ BEGIN IF EXISTS (SELECT FROM public.brake b WHERE b.id = i) THEN PERFORM pg_sleep(600); END IF; RETURN i; END $$`)
	w.DB.Exec(t, `INSERT INTO apps SELECT i FROM generate_series(1, 3) AS i; INSERT INTO others VALUES (1)`)
	w.DB.Exec(t, `SELECT reconciler.track('app', 'apps', '{id}', '''eu''', spec => 'to_jsonb(public.slow(id))'), reconciler.track('other', 'others', '{id}', '''eu''')`)
	eu := servertest.NewPlace()
	w.Start(servertest.Named("eu", servertest.Listing{Place: eu}))
	w.Converged()
	eu.Put("app/9", `9`)
	w.DB.Exec(t, `INSERT INTO brake VALUES (2)`)
	w.DB.Exec(t, `SELECT reconciler.resync('eu')`)
	const cancel = `SELECT count(pg_cancel_backend(pid))::text FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'`
	w.Eventually("the sync is complete without its rows", func() bool {
		w.Text(cancel) // of smaller pages, too
		return w.Text(`SELECT string_agg(state, ' ') FROM reconciler.sync_runs WHERE reason = 'resync' AND resource_id IS NULL`) == "complete"
	})
	require.Equal(t, "held sync", w.Text(`SELECT state || ' ' || held_by FROM reconciler.ledger WHERE key = '9'`))
	require.Zero(t, eu.Deletes())
	w.DB.Exec(t, `DELETE FROM brake`)
	w.Eventually("it is deleted", func() bool {
		w.Text(cancel) // another attempt may have met the brake
		return eu.Deletes() == 1
	})
	w.Converged()
}
