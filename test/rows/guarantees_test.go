package rows_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/desired"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/lease"
	"github.com/pgreconciler/reconciler/internal/pgtest"
	"github.com/pgreconciler/reconciler/internal/server/servertest"
	"github.com/pgreconciler/reconciler/internal/store"
)

// poll asks a query until its answer is another one than given, and returns that.
func poll(w *servertest.World, but, sql string, args ...any) string {
	w.T.Helper()
	have := but
	w.Eventually("another answer than "+but+" to "+sql, func() bool {
		have = w.Text(sql, args...)
		return have != but
	})
	return have
}

// I1: the cursor passes a change only when the ledger knows its object: settled, or in hand. What was handed out and
// nothing else would be forgotten in a crash.
func TestCursorPassesNothingThatTheLedgerDoesNotKnow(t *testing.T) {
	t.Parallel()
	w, want := servertest.Fleet(t, 1)
	eu := servertest.NewPlace()
	w.Start(servertest.Named("eu", eu))
	eu.Eventually(t, want)
	w.Wait()
	begun, release := eu.Hang(t, "app/2")
	w.DB.Exec(t, `INSERT INTO apps VALUES (2, 'eu', 'v1')`)
	<-begun
	// Others go on, and would take the cursor with them.
	w.DB.Exec(t, `UPDATE apps SET image = 'v2' WHERE id = 1`)
	want["app/1"] = `"v2"`
	eu.Eventually(t, want)
	require.Equal(t, "passed, pending", poll(w, "not passed", `SELECT CASE WHEN NOT pg_visible_in_snapshot(o.xid, c.snapshot) THEN 'not passed'
		ELSE 'passed, ' || coalesce((SELECT state::text FROM reconciler.ledger WHERE key = '2'), 'unknown') END
		FROM reconciler.outbox o, reconciler.target_cursors c WHERE o.key = '2' AND c.target = 'eu'`))
	release()
	want["app/2"] = `"v1"`
	eu.Eventually(t, want)
	w.Wait()
}

// I2, I1: a transaction that stays open, or prepared, delays its own changes and no others; they arrive when it ends.
func TestOpenTransactionDelaysItsOwnChangesOnly(t *testing.T) {
	t.Parallel()
	ends := map[string][2]string{
		"Open":     {`SELECT`, `COMMIT`},
		"Prepared": {`PREPARE TRANSACTION 'invariant'`, `COMMIT PREPARED 'invariant'`},
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := servertest.WithApps(t)
			if name == "Prepared" { // a transaction that may have sent a notification cannot be prepared
				w.DB.Exec(t, `SELECT reconciler.set_notify(false)`)
			}
			want := w.Fleet(2)
			eu := servertest.NewPlace()
			w.Start(servertest.Named("eu", eu))
			eu.Eventually(t, want)
			w.Wait()
			conn := w.DB.Conn(t)
			for _, sql := range []string{`BEGIN`, `UPDATE apps SET image = 'late' WHERE id = 1`, end[0]} {
				_, err := conn.Exec(t.Context(), sql)
				require.NoError(t, err)
			}
			for i := range 3 {
				want["app/2"] = fmt.Sprintf(`"v%d"`, i+2)
				w.DB.Exec(t, fmt.Sprintf(`UPDATE apps SET image = 'v%d' WHERE id = 2`, i+2))
				eu.Eventually(t, want)
			}
			_, err := conn.Exec(t.Context(), end[1])
			require.NoError(t, err)
			want["app/1"] = `"late"`
			eu.Eventually(t, want)
		})
	}
}

// I4: a row that cannot be read and an object that always fails harm no other, whether they come with a sync or alive,
// and the cursor does not wait for them.
func TestBadObjectsHurtThemselvesOnly(t *testing.T) {
	t.Parallel()
	w := servertest.New(t)
	w.DB.Exec(t, `CREATE TABLE apps (id int PRIMARY KEY, parts int NOT NULL)`)
	w.DB.Exec(t, `INSERT INTO apps SELECT i, i % 20 FROM generate_series(1, 60) AS i`) // 20, 40 and 60 cannot be read
	w.DB.Exec(t, `SELECT reconciler.track('app', 'apps', '{id}', '''eu''', spec => 'to_jsonb(100 / parts)')`)
	eu := servertest.NewPlace()
	eu.Set(func(_ context.Context, c servertest.Call) driver.Outcome {
		if c.Key == "5" || c.Key == "65" {
			return driver.Backoff(fmt.Errorf("never"))
		}
		return driver.Done()
	})
	w.Start(servertest.Named("eu", eu))
	want := map[string]string{}
	expect := func(failing string) {
		t.Helper()
		for i := 1; i <= 60; i++ {
			if i%20 != 0 && i != 5 {
				want[fmt.Sprintf("app/%d", i)] = w.Text(`SELECT (100 / parts)::text FROM apps WHERE id = $1`, i)
			}
		}
		eu.Eventually(t, want)
		w.Settled("20 blocked: its row cannot be read: division by zero, 40 blocked: its row cannot be read: division by zero, 5 failing: never, 60 blocked: its row cannot be read: division by zero"+failing,
			`SELECT string_agg(key || ' ' || state || ': ' || last_error, ', ' ORDER BY key) FROM reconciler.objects WHERE state <> 'applied'`)
		w.Settled("true", `SELECT (revision >= (SELECT max(revision) FROM reconciler.ticks))::text FROM reconciler.target_cursors WHERE target = 'eu'`)
	}
	expect("")
	w.DB.Exec(t, `UPDATE apps SET parts = parts * 3`)
	w.DB.Exec(t, `INSERT INTO apps VALUES (65, 1)`)
	expect(", 65 failing: never")
}

// I5: a row that cannot be read any more keeps its object, in a sync too.
func TestRowThatCannotBeReadKeepsItsObject(t *testing.T) {
	t.Parallel()
	w := servertest.New(t)
	w.DB.Exec(t, `CREATE TABLE apps (id int PRIMARY KEY, parts int NOT NULL)`)
	w.DB.Exec(t, `INSERT INTO apps SELECT i, 1 FROM generate_series(1, 5) AS i`)
	w.DB.Exec(t, `SELECT reconciler.track('app', 'apps', '{id}', '''eu''', spec => 'to_jsonb(100 / parts)')`)
	eu := servertest.NewPlace()
	w.Start(servertest.Named("eu", servertest.Listing{Place: eu}))
	want := map[string]string{}
	for i := 1; i <= 5; i++ {
		want[fmt.Sprintf("app/%d", i)] = "100"
	}
	eu.Eventually(t, want)
	w.Wait()
	w.DB.Exec(t, `UPDATE apps SET parts = 0 WHERE id = 1`)
	w.Silently(`UPDATE apps SET parts = 0 WHERE id = 2`)
	w.DB.Exec(t, `SELECT reconciler.resync('eu')`)
	w.Settled("complete", `SELECT state::text FROM reconciler.sync_runs ORDER BY id DESC LIMIT 1`)
	w.Settled("1 blocked, 2 blocked", `SELECT string_agg(key || ' ' || state, ', ' ORDER BY key) FROM reconciler.objects WHERE state <> 'applied'`)
	have, calls, _ := eu.Snapshot()
	require.Equal(t, want, have)
	require.False(t, slices.ContainsFunc(calls, func(c servertest.Call) bool { return c.Action == "delete" }), "%v", calls)
}

// I7: an object whose delete fails stays in the ledger until the target has confirmed that it is gone.
func TestLedgerKeepsWhatTheTargetHasNotConfirmed(t *testing.T) {
	t.Parallel()
	w, want := servertest.Fleet(t, 3)
	eu := servertest.NewPlace()
	w.Start(servertest.Named("eu", eu))
	eu.Eventually(t, want)
	w.Wait()
	eu.Set(func(_ context.Context, c servertest.Call) driver.Outcome {
		if c.Action == "delete" {
			return driver.Backoff(fmt.Errorf("not now"))
		}
		return driver.Done()
	})
	w.DB.Exec(t, `DELETE FROM apps WHERE id = 1`)
	w.Settled("failing not now", `SELECT state || ' ' || last_error FROM reconciler.objects WHERE key = '1'`)
	eu.Until(t, func(_ map[string]string, calls []servertest.Call) bool {
		return len(slices.DeleteFunc(calls, func(c servertest.Call) bool { return c.Action != "delete" })) >= 3
	}, func() string { return "the delete is not tried again" })
	require.Equal(t, "3", w.Text(`SELECT count(*)::text FROM reconciler.ledger`))
	eu.Set(nil)
	delete(want, "app/1")
	eu.Eventually(t, want)
	w.Settled("2", `SELECT count(*)::text FROM reconciler.ledger`)
}

// I9: what a sync reads comes in pages of the size that is asked for, however much there is.
func TestSyncReadsNoMoreThanAPage(t *testing.T) {
	t.Parallel()
	w, _ := servertest.Fleet(t, 10)
	w.DB.Exec(t, `CREATE TABLE everywhere (id int PRIMARY KEY, region text)`)
	w.DB.Exec(t, `INSERT INTO everywhere SELECT i, CASE WHEN i % 2 = 0 THEN 'eu' END FROM generate_series(1, 10) AS i`)
	w.DB.Exec(t, `SELECT reconciler.track('any', 'everywhere', '{id}', 'region')`)
	w.DB.Exec(t, `INSERT INTO reconciler.ledger (target_id, resource_id, key, state, wanted, present, next_attempt_at)
		SELECT 1, 1, i, 'failing', true, true, clock_timestamp() FROM generate_series(1, 10) AS i`)
	catalog := &desired.Catalog{}
	_, err := catalog.Reload(t.Context(), w.DB.Pool)
	require.NoError(t, err)
	for _, name := range []string{"app", "any"} {
		r, ok := catalog.ByName(name)
		require.True(t, ok)
		var after []string
		var sizes []int64
		for {
			page, err := r.Page(t.Context(), w.DB.Pool, "eu", 7, after, 4, false)
			require.NoError(t, err)
			require.LessOrEqual(t, len(page.Differ), 4)
			if page.Last == nil {
				break
			}
			sizes, after = append(sizes, page.Rows), page.Last
		}
		require.Equal(t, []int64{4, 4, 2}, sizes, name)
	}
	ledger, err := store.New(w.DB.Pool).LedgerPage(t.Context(), store.LedgerPageParams{TargetID: 1, ResourceID: 1, PageRows: 4})
	require.NoError(t, err)
	require.Len(t, ledger, 4)
	due, err := store.New(w.DB.Pool).LedgerDue(t.Context(), store.LedgerDueParams{TargetID: 1, MaxRows: 4})
	require.NoError(t, err)
	require.Len(t, due, 4)
}

// crashed applies a fleet of three and stops the process, and leaves the target as if the process had been killed. It returns
// what the target has.
func crashed(w *servertest.World, eu *servertest.Place) (want map[string]string) {
	w.T.Helper()
	want = w.Fleet(3)
	first := w.Start(servertest.Named("eu", eu))
	eu.Eventually(w.T, want)
	w.Wait()
	first.Stop(w.T)
	w.DB.Exec(w.T, `UPDATE reconciler.targets SET clean = false`)
	return want
}

// diedCalling leaves the target with three objects and those of more rows, "v1" too, whose first calls a process has made that
// died before it recorded them.
func diedCalling(w *servertest.World, eu *servertest.Place, ids ...int) (want map[string]string) {
	w.T.Helper()
	want = w.Fleet(3)
	v := startVictim(w, newMortal(eu, func(c servertest.Call) string {
		if want[c.ID()] == "" {
			return after
		}
		return passes
	}))
	w.Converged()
	for _, id := range ids {
		w.DB.Exec(w.T, `INSERT INTO apps VALUES ($1, 'eu', 'v1')`, id)
		v.catches(1)
	}
	v.kill()
	return want
}

// C74: a crash of the server may take what the ledger said of the last calls before it. Changes that are read again are
// worked on whatever the ledger says: if the row is gone by then, its object gets its delete, also where the target cannot
// list; and once a sync has made the target clean, no more.
func TestUncleanTargetGetsDeletesOfWhatTheLedgerDoesNotKnow(t *testing.T) {
	t.Parallel()
	w := servertest.WithApps(t)
	eu := servertest.NewPlace()
	want := crashed(w, eu)
	// As if the process had been killed right after a call for a row that was deleted since.
	eu.Put("app/9", `"v1"`)
	// And after one that left what the row said for a moment: by the ledger it is as it should be.
	eu.Put("app/1", `"v2"`)
	w.DB.Exec(t, `UPDATE apps SET image = 'v2' WHERE id = 1`)
	w.DB.Exec(t, `INSERT INTO apps VALUES (9, 'eu', 'v1')`)
	w.DB.Exec(t, `INSERT INTO reconciler.ticks (revision, snapshot) SELECT max(revision) + 1, pg_current_snapshot() FROM reconciler.ticks`)
	w.DB.Exec(t, `UPDATE apps SET image = 'v1' WHERE id = 1`)
	w.DB.Exec(t, `DELETE FROM apps WHERE id = 9`)
	w.Start(servertest.Named("eu", eu, func(c *config.Target) { c.Timeout = time.Second }))
	eu.Eventually(t, want)
	w.Settled("true", `SELECT clean::text FROM reconciler.targets WHERE name = 'eu'`)
	w.Wait() // and what a call was owed for before has had it
	_, before, _ := eu.Snapshot()
	w.DB.Exec(t, `INSERT INTO apps VALUES (9, 'eu', 'v1', false); UPDATE apps SET running = true WHERE id = 9; DELETE FROM apps WHERE id = 9`)
	w.Wait()
	_, after, _ := eu.Snapshot()
	require.Len(t, after, len(before), "a clean target is not called for what it never had")
}

// C24, C74: the outbox outgrew its limits before the next owner could read what the dead one had called for. The objects
// are known all the same, and looked at.
func TestObjectsOfChangesThatAreCutOffAreNotForgotten(t *testing.T) {
	t.Parallel()
	w := servertest.WithApps(t)
	eu := servertest.NewPlace()
	want := diedCalling(w, eu, 8, 9)
	w.DB.Exec(t, `UPDATE apps SET image = 'v2' WHERE id = 8`)
	w.DB.Exec(t, `DELETE FROM apps WHERE id = 9`)
	moveOn(w)
	cut(w, "8")
	require.Equal(t, "true", w.Text(`SELECT below_floor::text FROM reconciler.outbox_lag WHERE target = 'eu'`))
	require.Equal(t, []string{"8", "9"}, w.Column(`SELECT unnest(keys) FROM reconciler.first_calls ORDER BY 1`))
	w.Start(servertest.Named("eu", eu, servertest.Quick))
	want["app/8"] = `"v2"`
	eu.Eventually(t, want)
	w.Converged()
}

// cut has retention drop the changes of a key, read or not, after everything has a revision. Of the parts of the outbox the
// oldest goes first; a process that runs may have taken some of these steps itself.
func cut(w *servertest.World, key string) {
	w.T.Helper()
	w.DB.Exec(w.T, `INSERT INTO reconciler.ticks (revision, snapshot) SELECT max(revision) + 1, pg_current_snapshot() FROM reconciler.ticks`)
	w.Eventually("the changes of "+key+" are dropped", func() bool {
		w.DB.Exec(w.T, `SELECT reconciler.retain('1 day', 0, '1 day')`)
		return !keeps(w, key)
	})
}

// keeps says whether the outbox has a change of a key.
func keeps(w *servertest.World, key string) bool {
	return w.Text(`SELECT (count(*) > 0)::text FROM reconciler.outbox WHERE key = $1`, key) == "true"
}

// moveOn has what is written from now on go to the next part of the outbox.
func moveOn(w *servertest.World) {
	w.T.Helper()
	w.Eventually("the outbox moves on", func() bool {
		w.DB.Exec(w.T, `UPDATE reconciler.installation SET rotated_at = '2000-01-01'`)
		w.DB.Exec(w.T, `SELECT reconciler.retain('1 day', 1000000, '0 s')`)
		// A leader that keeps house may have moved on before.
		return w.Text(`SELECT (pg_relation_size('reconciler.outbox_' || (last_value >> 20 & 3)) = 0)::text FROM reconciler.outbox_seq`) == "true"
	})
}

// C24, C74: as above, but retention dropped only the first of the changes: those after it are still there.
func TestChangesThatAreLeftAreReadBelowTheFloor(t *testing.T) {
	t.Parallel()
	for name, dropped := range map[string]bool{"StillThere": false, "DroppedLater": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := servertest.WithApps(t)
			eu := servertest.NewPlace()
			want := diedCalling(w, eu, 9)
			w.DB.Exec(t, `INSERT INTO apps VALUES (8, 'eu', 'v2')`)
			moveOn(w)
			w.DB.Exec(t, `DELETE FROM apps WHERE id = 9`)
			moveOn(w)
			cut(w, "8")
			require.True(t, keeps(w, "9"))
			if dropped {
				cut(w, "9")
			}
			require.Equal(t, "true", w.Text(`SELECT below_floor::text FROM reconciler.outbox_lag WHERE target = 'eu'`))
			w.Start(servertest.Named("eu", eu, servertest.Quick))
			want["app/8"] = `"v2"`
			eu.Eventually(t, want)
			w.Converged()
		})
	}
}

// C24: what an owner reads is dropped while it is at work on a page, and nothing changes any more after that. The page's
// end, which is below the floor, does not stay its cursor.
func TestCursorBelowTheFloorDoesNotComeBack(t *testing.T) {
	t.Parallel()
	w, want := servertest.Fleet(t, 3)
	eu := servertest.NewPlace()
	w.Start(servertest.Named("eu", eu))
	eu.Eventually(t, want)
	w.Wait()
	begun, release := eu.Hang(t, "app/3")
	w.DB.Exec(t, `UPDATE apps SET image = 'v2' WHERE id = 3`)
	<-begun
	moveOn(w)
	cut(w, "3")
	// It has read all that went; as if it had not.
	w.DB.Exec(t, `UPDATE reconciler.installation SET floor_revision = (SELECT max(revision) FROM reconciler.ticks)`)
	w.DB.Exec(t, `UPDATE apps SET image = 'v2' WHERE id = 1`)
	w.Eventually("the owner is told", func() bool { return len(w.Logged("msg=cursor_below_floor")) > 0 })
	release()
	want["app/1"], want["app/3"] = `"v2"`, `"v2"`
	eu.Eventually(t, want)
	w.Converged()
	require.Len(t, w.Logged("msg=cursor_below_floor"), 1)
}

const owned = `CREATE TABLE owners (id int PRIMARY KEY, name text); CREATE TABLE apps (id int PRIMARY KEY, owner int);
	INSERT INTO owners VALUES (1, 'ann'), (2, 'bob'); INSERT INTO apps VALUES (1, 1), (2, 2);
	CREATE VIEW owned AS SELECT a.id, a.owner, o.name FROM apps a JOIN owners o ON o.id = a.owner;
	SELECT reconciler.track('app', 'owned', '{id}', '''eu''', spec => 'to_jsonb(name)', depends_on => '{"apps": {"id": "id"}, "owners": {"id": "owner"}}')`

// C12, I1: a base table changes while the first call for an object is under way. Neither the view nor the ledger leads
// from the change to the object at that moment (the ledger does not say yet what the object's row had in the view); it is
// deleted all the same, without a sync.
func TestJoinedRowThatVanishesDuringItsFirstCall(t *testing.T) {
	t.Parallel()
	w := servertest.Holding(t)
	w.DB.Exec(t, owned)
	eu := servertest.NewPlace()
	w.Start(servertest.Named("eu", eu))
	eu.Eventually(t, map[string]string{"app/1": `"ann"`, "app/2": `"bob"`})
	w.Wait()
	const syncs = `SELECT count(*) || ', open ' || count(*) FILTER (WHERE state IN ('requested', 'running')) FROM reconciler.sync_runs`
	before := w.Text(syncs)
	require.Contains(t, before, "open 0")
	person := w.Begin()
	w.In(person, servertest.Unsettled)
	begun, release := eu.Hang(t, "app/3")
	w.DB.Exec(t, `INSERT INTO owners VALUES (3, 'eve'); INSERT INTO apps VALUES (3, 3)`)
	<-begun
	w.DB.Exec(t, `DELETE FROM owners WHERE id = 3`)
	w.Settled("true", `SELECT bool_and(pg_visible_in_snapshot(o.xid, c.snapshot))::text FROM reconciler.outbox o, reconciler.cursor_of(0) AS c WHERE o.image = '{"owner": 3}'`)
	require.Equal(t, "0", w.Text(`SELECT count(*)::text FROM reconciler.ledger WHERE key = '3' AND match IS NOT NULL`), "the ledger knows it already")
	require.NoError(t, person.Rollback(t.Context()))
	release()
	w.Settled("1,2", `SELECT string_agg(key, ',' ORDER BY key) FROM reconciler.ledger`)
	eu.Eventually(t, map[string]string{"app/1": `"ann"`, "app/2": `"bob"`})
	require.Equal(t, before, w.Text(syncs))
}

// C12: what the leader marks for a changed base table needs no notification and no poll to be found.
func TestChangeOfABaseTableDoesNotWaitForThePoll(t *testing.T) {
	t.Parallel()
	// A server of its own: transactions of other tests would keep the leader dozing, and looking.
	w := servertest.NewOn(t, pgtest.Server(t).New(t))
	w.DB.Exec(t, owned)
	eu := servertest.NewPlace()
	w.Start(servertest.Named("eu", eu))
	eu.Eventually(t, map[string]string{"app/1": `"ann"`, "app/2": `"bob"`})
	w.Wait()
	for round := range 10 {
		w.Settled("1", `SELECT count(*)::text FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND classid::bigint << 32 | objid::bigint = reconciler.sleep_lock()`)
		name := fmt.Sprintf("eve %d", round)
		polls := w.Series("wakeups_total", "poll")
		w.DB.Exec(t, `UPDATE owners SET name = $1 WHERE id = 1`, name)
		eu.Eventually(t, map[string]string{"app/1": fmt.Sprintf("%q", name), "app/2": `"bob"`})
		if w.Series("wakeups_total", "poll") == polls {
			return
		}
	}
	require.Fail(t, "the leader looked by itself each time before the change arrived")
}

// I10: nothing that an owner writes is accepted once its term is over.
func TestDeposedOwnerWritesNothing(t *testing.T) {
	t.Parallel()
	w, _ := servertest.Fleet(t, 1)
	const owner = "00000000-0000-0000-0000-000000000001"
	w.DB.Exec(t, `INSERT INTO reconciler.targets (name, owner, term, lease_ttl) VALUES ('eu', $1, 2, '1 hour')`, owner)
	w.DB.Exec(t, `INSERT INTO reconciler.ledger (target_id, resource_id, key, state, wanted, present, held_by) VALUES (1, 1, 'parked', 'held', false, true, 'sync')`)
	queries, ctx := store.New(w.DB.Pool), t.Context()
	writes := map[string]func(term int64) error{
		"Settle": func(term int64) error {
			_, err := queries.Settle(ctx, store.SettleParams{TargetID: 1, Owner: owner, Term: term, GoneResourceIds: []int32{1}, GoneKeys: []string{"nobody"}})
			return err
		},
		"InHand": func(term int64) error {
			return queries.LedgerInHand(ctx, store.LedgerInHandParams{TargetID: 1, Owner: owner, Term: term, ResourceIds: []int32{1}, Keys: []string{"1"}, Called: []bool{false}, Patience: time.Hour})
		},
		"Parked": func(term int64) error {
			_, err := queries.ParkedDecide(ctx, store.ParkedDecideParams{TargetID: 1, Owner: owner, Term: term, ParkedBy: "sync", Allow: true})
			return err
		},
		"Cursor": func(term int64) error {
			return queries.TargetCursorStart(ctx, store.TargetCursorStartParams{TargetID: 1, Owner: owner, Term: term, Revision: 1, Snapshot: "1:1:"})
		},
		"Raise": func(term int64) error {
			_, err := queries.TargetCursorRaise(ctx, store.TargetCursorRaiseParams{TargetID: 1, Owner: owner, Term: term})
			return err
		},
	}
	const all = `SELECT (SELECT array_agg(l)::text FROM reconciler.ledger l) || (SELECT array_agg(t)::text FROM reconciler.targets t)`
	before := w.Text(all)
	for name, write := range writes {
		require.True(t, lease.IsFenced(write(1)), name)
	}
	require.Equal(t, before, w.Text(all))
	for name, write := range writes {
		require.NoError(t, write(2), name)
	}
}
