package server_test

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
	"github.com/pgreconciler/reconciler/internal/store"
)

// hang makes the calls for one object wait until release is called; begun receives a value for each of them.
func (p *place) hang(t *testing.T, id string) (begun <-chan struct{}, release func()) {
	t.Helper()
	start, hold, ctx := make(chan struct{}, 100), make(chan struct{}), t.Context()
	p.set(func(callCtx context.Context, c call) driver.Outcome {
		if c.id() != id {
			return driver.Done()
		}
		start <- struct{}{}
		select {
		case <-hold:
			return driver.Done()
		case <-callCtx.Done():
		case <-ctx.Done():
		}
		return driver.Backoff(context.Canceled)
	})
	return start, func() { close(hold) }
}

// poll asks a query until its answer is another one than given, and returns that.
func (w *world) poll(but, sql string, args ...any) string {
	w.t.Helper()
	have := but
	w.eventually("another answer than "+but+" to "+sql, func() bool {
		have = w.text(sql, args...)
		return have != but
	})
	return have
}

// I1: the cursor passes a change only when the ledger knows its object: settled, or in hand. What was handed out and
// nothing else would be forgotten in a crash.
func TestCursorPassesNothingThatTheLedgerDoesNotKnow(t *testing.T) {
	t.Parallel()
	w, want := fleet(t, 1)
	eu := newPlace()
	w.start(named("eu", eu))
	eu.eventually(t, want)
	w.wait()
	begun, release := eu.hang(t, "app/2")
	w.db.Exec(t, `INSERT INTO apps VALUES (2, 'eu', 'v1')`)
	<-begun
	// Others go on, and would take the cursor with them.
	w.db.Exec(t, `UPDATE apps SET image = 'v2' WHERE id = 1`)
	want["app/1"] = `"v2"`
	eu.eventually(t, want)
	require.Equal(t, "passed, pending", w.poll("not passed", `SELECT CASE WHEN NOT pg_visible_in_snapshot(o.xid, c.snapshot) THEN 'not passed'
		ELSE 'passed, ' || coalesce((SELECT state::text FROM reconciler.ledger WHERE key = '2'), 'unknown') END
		FROM reconciler.outbox o, reconciler.target_cursors c WHERE o.key = '2' AND c.target = 'eu'`))
	release()
	want["app/2"] = `"v1"`
	eu.eventually(t, want)
	w.wait()
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
			w := withApps(t)
			if name == "Prepared" { // a transaction that may have sent a notification cannot be prepared
				w.db.Exec(t, `SELECT reconciler.set_notify(false)`)
			}
			want := w.fleet(2)
			eu := newPlace()
			w.start(named("eu", eu))
			eu.eventually(t, want)
			w.wait()
			conn := w.db.Conn(t)
			for _, sql := range []string{`BEGIN`, `UPDATE apps SET image = 'late' WHERE id = 1`, end[0]} {
				_, err := conn.Exec(t.Context(), sql)
				require.NoError(t, err)
			}
			for i := range 3 {
				want["app/2"] = fmt.Sprintf(`"v%d"`, i+2)
				w.db.Exec(t, fmt.Sprintf(`UPDATE apps SET image = 'v%d' WHERE id = 2`, i+2))
				eu.eventually(t, want)
			}
			_, err := conn.Exec(t.Context(), end[1])
			require.NoError(t, err)
			want["app/1"] = `"late"`
			eu.eventually(t, want)
		})
	}
}

// I4: a row that cannot be read and an object that always fails harm no other, whether they come with a sync or alive,
// and the cursor does not wait for them.
func TestBadObjectsHurtThemselvesOnly(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.db.Exec(t, `CREATE TABLE apps (id int PRIMARY KEY, parts int NOT NULL)`)
	w.db.Exec(t, `INSERT INTO apps SELECT i, i % 20 FROM generate_series(1, 60) AS i`) // 20, 40 and 60 cannot be read
	w.db.Exec(t, `SELECT reconciler.track('app', 'apps', '{id}', '''eu''', spec => 'to_jsonb(100 / parts)')`)
	eu := newPlace()
	eu.set(func(_ context.Context, c call) driver.Outcome {
		if c.Key == "5" || c.Key == "65" {
			return driver.Backoff(fmt.Errorf("never"))
		}
		return driver.Done()
	})
	w.start(named("eu", eu))
	want := map[string]string{}
	expect := func(failing string) {
		t.Helper()
		for i := 1; i <= 60; i++ {
			if i%20 != 0 && i != 5 {
				want[fmt.Sprintf("app/%d", i)] = w.text(`SELECT (100 / parts)::text FROM apps WHERE id = $1`, i)
			}
		}
		eu.eventually(t, want)
		w.settled("20 blocked: its row cannot be read: division by zero, 40 blocked: its row cannot be read: division by zero, 5 failing: never, 60 blocked: its row cannot be read: division by zero"+failing,
			`SELECT string_agg(key || ' ' || state || ': ' || last_error, ', ' ORDER BY key) FROM reconciler.objects WHERE state <> 'applied'`)
		w.settled("true", `SELECT (revision >= (SELECT max(revision) FROM reconciler.ticks))::text FROM reconciler.target_cursors WHERE target = 'eu'`)
	}
	expect("")
	w.db.Exec(t, `UPDATE apps SET parts = parts * 3`)
	w.db.Exec(t, `INSERT INTO apps VALUES (65, 1)`)
	expect(", 65 failing: never")
}

// I5: a row that cannot be read any more keeps its object, in a sync too.
func TestRowThatCannotBeReadKeepsItsObject(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.db.Exec(t, `CREATE TABLE apps (id int PRIMARY KEY, parts int NOT NULL)`)
	w.db.Exec(t, `INSERT INTO apps SELECT i, 1 FROM generate_series(1, 5) AS i`)
	w.db.Exec(t, `SELECT reconciler.track('app', 'apps', '{id}', '''eu''', spec => 'to_jsonb(100 / parts)')`)
	eu := newPlace()
	w.start(named("eu", listing{eu}))
	want := map[string]string{}
	for i := 1; i <= 5; i++ {
		want[fmt.Sprintf("app/%d", i)] = "100"
	}
	eu.eventually(t, want)
	w.wait()
	w.db.Exec(t, `UPDATE apps SET parts = 0 WHERE id = 1`)
	w.silently(`UPDATE apps SET parts = 0 WHERE id = 2`)
	w.db.Exec(t, `SELECT reconciler.resync('eu')`)
	w.settled("complete", `SELECT state::text FROM reconciler.sync_runs ORDER BY id DESC LIMIT 1`)
	w.settled("1 blocked, 2 blocked", `SELECT string_agg(key || ' ' || state, ', ' ORDER BY key) FROM reconciler.objects WHERE state <> 'applied'`)
	have, calls, _ := eu.snapshot()
	require.Equal(t, want, have)
	require.False(t, slices.ContainsFunc(calls, func(c call) bool { return c.Action == "delete" }), "%v", calls)
}

// I7: an object whose delete fails stays in the ledger until the target has confirmed that it is gone.
func TestLedgerKeepsWhatTheTargetHasNotConfirmed(t *testing.T) {
	t.Parallel()
	w, want := fleet(t, 3)
	eu := newPlace()
	w.start(named("eu", eu))
	eu.eventually(t, want)
	w.wait()
	eu.set(func(_ context.Context, c call) driver.Outcome {
		if c.Action == "delete" {
			return driver.Backoff(fmt.Errorf("not now"))
		}
		return driver.Done()
	})
	w.db.Exec(t, `DELETE FROM apps WHERE id = 1`)
	w.settled("failing not now", `SELECT state || ' ' || last_error FROM reconciler.objects WHERE key = '1'`)
	eu.until(t, func(_ map[string]string, calls []call) bool {
		return len(slices.DeleteFunc(calls, func(c call) bool { return c.Action != "delete" })) >= 3
	}, func() string { return "the delete is not tried again" })
	require.Equal(t, "3", w.text(`SELECT count(*)::text FROM reconciler.ledger`))
	eu.set(nil)
	delete(want, "app/1")
	eu.eventually(t, want)
	w.settled("2", `SELECT count(*)::text FROM reconciler.ledger`)
}

// I9: what a sync reads comes in pages of the size that is asked for, however much there is.
func TestSyncReadsNoMoreThanAPage(t *testing.T) {
	t.Parallel()
	w, _ := fleet(t, 10)
	w.db.Exec(t, `CREATE TABLE everywhere (id int PRIMARY KEY, region text)`)
	w.db.Exec(t, `INSERT INTO everywhere SELECT i, CASE WHEN i % 2 = 0 THEN 'eu' END FROM generate_series(1, 10) AS i`)
	w.db.Exec(t, `SELECT reconciler.track('any', 'everywhere', '{id}', 'region')`)
	w.db.Exec(t, `INSERT INTO reconciler.ledger (target_id, resource_id, key, state, wanted, present, next_attempt_at)
		SELECT 1, 1, i, 'failing', true, true, clock_timestamp() FROM generate_series(1, 10) AS i`)
	catalog := &desired.Catalog{}
	_, err := catalog.Reload(t.Context(), w.db.Pool)
	require.NoError(t, err)
	for _, name := range []string{"app", "any"} {
		r, ok := catalog.ByName(name)
		require.True(t, ok)
		var after []string
		var sizes []int64
		for {
			page, err := r.Page(t.Context(), w.db.Pool, "eu", 7, after, 4, false)
			require.NoError(t, err)
			require.LessOrEqual(t, len(page.Differ), 4)
			if page.Last == nil {
				break
			}
			sizes, after = append(sizes, page.Rows), page.Last
		}
		require.Equal(t, []int64{4, 4, 2}, sizes, name)
	}
	ledger, err := store.New(w.db.Pool).LedgerPage(t.Context(), store.LedgerPageParams{TargetID: 1, ResourceID: 1, PageRows: 4})
	require.NoError(t, err)
	require.Len(t, ledger, 4)
	due, err := store.New(w.db.Pool).LedgerDue(t.Context(), store.LedgerDueParams{TargetID: 1, MaxRows: 4})
	require.NoError(t, err)
	require.Len(t, due, 4)
}

// crashed applies a fleet of three and stops the process, and leaves the target as if the process had been killed. It returns
// what the target has.
func (w *world) crashed(eu *place) (want map[string]string) {
	w.t.Helper()
	want = w.fleet(3)
	first := w.start(named("eu", eu))
	eu.eventually(w.t, want)
	w.wait()
	first.stop(w.t)
	w.db.Exec(w.t, `UPDATE reconciler.targets SET clean = false`)
	return want
}

// diedCalling leaves the target with three objects and those of more rows, "v1" too, whose first calls a process has made that
// died before it recorded them.
func (w *world) diedCalling(eu *place, ids ...int) (want map[string]string) {
	w.t.Helper()
	want = w.fleet(3)
	v := w.startVictim(newMortal(eu, func(c call) string {
		if want[c.id()] == "" {
			return after
		}
		return passes
	}))
	w.converged()
	for _, id := range ids {
		w.db.Exec(w.t, `INSERT INTO apps VALUES ($1, 'eu', 'v1')`, id)
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
	w := withApps(t)
	eu := newPlace()
	want := w.crashed(eu)
	// As if the process had been killed right after a call for a row that was deleted since.
	eu.put("app/9", `"v1"`)
	// And after one that left what the row said for a moment: by the ledger it is as it should be.
	eu.put("app/1", `"v2"`)
	w.db.Exec(t, `UPDATE apps SET image = 'v2' WHERE id = 1`)
	w.db.Exec(t, `INSERT INTO apps VALUES (9, 'eu', 'v1')`)
	w.db.Exec(t, `INSERT INTO reconciler.ticks (revision, snapshot) SELECT max(revision) + 1, pg_current_snapshot() FROM reconciler.ticks`)
	w.db.Exec(t, `UPDATE apps SET image = 'v1' WHERE id = 1`)
	w.db.Exec(t, `DELETE FROM apps WHERE id = 9`)
	w.start(named("eu", eu, func(c *config.Target) { c.Timeout = time.Second }))
	eu.eventually(t, want)
	w.settled("true", `SELECT clean::text FROM reconciler.targets WHERE name = 'eu'`)
	w.wait() // and what a call was owed for before has had it
	_, before, _ := eu.snapshot()
	w.db.Exec(t, `INSERT INTO apps VALUES (9, 'eu', 'v1', false); UPDATE apps SET running = true WHERE id = 9; DELETE FROM apps WHERE id = 9`)
	w.wait()
	_, after, _ := eu.snapshot()
	require.Len(t, after, len(before), "a clean target is not called for what it never had")
}

// C24, C74: the outbox outgrew its limits before the next owner could read what the dead one had called for. The objects
// are known all the same, and looked at.
func TestObjectsOfChangesThatAreCutOffAreNotForgotten(t *testing.T) {
	t.Parallel()
	w := withApps(t)
	eu := newPlace()
	want := w.diedCalling(eu, 8, 9)
	w.db.Exec(t, `UPDATE apps SET image = 'v2' WHERE id = 8`)
	w.db.Exec(t, `DELETE FROM apps WHERE id = 9`)
	w.moveOn()
	w.cut("8")
	require.Equal(t, "true", w.text(`SELECT below_floor::text FROM reconciler.outbox_lag WHERE target = 'eu'`))
	require.Equal(t, []string{"8", "9"}, w.column(`SELECT unnest(keys) FROM reconciler.first_calls ORDER BY 1`))
	w.start(named("eu", eu, quick))
	want["app/8"] = `"v2"`
	eu.eventually(t, want)
	w.converged()
}

// cut has retention drop the changes of a key, read or not, after everything has a revision. Of the parts of the outbox the
// oldest goes first; a process that runs may have taken some of these steps itself.
func (w *world) cut(key string) {
	w.t.Helper()
	w.db.Exec(w.t, `INSERT INTO reconciler.ticks (revision, snapshot) SELECT max(revision) + 1, pg_current_snapshot() FROM reconciler.ticks`)
	w.eventually("the changes of "+key+" are dropped", func() bool {
		w.db.Exec(w.t, `SELECT reconciler.retain('1 day', 0, '1 day')`)
		return !w.keeps(key)
	})
}

// keeps says whether the outbox has a change of a key.
func (w *world) keeps(key string) bool {
	return w.text(`SELECT (count(*) > 0)::text FROM reconciler.outbox WHERE key = $1`, key) == "true"
}

// moveOn has what is written from now on go to the next part of the outbox.
func (w *world) moveOn() {
	w.t.Helper()
	w.eventually("the outbox moves on", func() bool {
		w.db.Exec(w.t, `UPDATE reconciler.installation SET rotated_at = '2000-01-01'`)
		w.db.Exec(w.t, `SELECT reconciler.retain('1 day', 1000000, '0 s')`)
		// A leader that keeps house may have moved on before.
		return w.text(`SELECT (pg_relation_size('reconciler.outbox_' || (last_value >> 20 & 3)) = 0)::text FROM reconciler.outbox_seq`) == "true"
	})
}

// C24, C74: as above, but retention dropped only the first of the changes: those after it are still there.
func TestChangesThatAreLeftAreReadBelowTheFloor(t *testing.T) {
	t.Parallel()
	for name, dropped := range map[string]bool{"StillThere": false, "DroppedLater": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := withApps(t)
			eu := newPlace()
			want := w.diedCalling(eu, 9)
			w.db.Exec(t, `INSERT INTO apps VALUES (8, 'eu', 'v2')`)
			w.moveOn()
			w.db.Exec(t, `DELETE FROM apps WHERE id = 9`)
			w.moveOn()
			w.cut("8")
			require.True(t, w.keeps("9"))
			if dropped {
				w.cut("9")
			}
			require.Equal(t, "true", w.text(`SELECT below_floor::text FROM reconciler.outbox_lag WHERE target = 'eu'`))
			w.start(named("eu", eu, quick))
			want["app/8"] = `"v2"`
			eu.eventually(t, want)
			w.converged()
		})
	}
}

// C24: what an owner reads is dropped while it is at work on a page, and nothing changes any more after that. The page's
// end, which is below the floor, does not stay its cursor.
func TestCursorBelowTheFloorDoesNotComeBack(t *testing.T) {
	t.Parallel()
	w, want := fleet(t, 3)
	eu := newPlace()
	w.start(named("eu", eu))
	eu.eventually(t, want)
	w.wait()
	begun, release := eu.hang(t, "app/3")
	w.db.Exec(t, `UPDATE apps SET image = 'v2' WHERE id = 3`)
	<-begun
	w.moveOn()
	w.cut("3")
	// It has read all that went; as if it had not.
	w.db.Exec(t, `UPDATE reconciler.installation SET floor_revision = (SELECT max(revision) FROM reconciler.ticks)`)
	w.db.Exec(t, `UPDATE apps SET image = 'v2' WHERE id = 1`)
	w.eventually("the owner is told", func() bool { return len(w.logged("msg=cursor_below_floor")) > 0 })
	release()
	want["app/1"], want["app/3"] = `"v2"`, `"v2"`
	eu.eventually(t, want)
	w.converged()
	require.Len(t, w.logged("msg=cursor_below_floor"), 1)
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
	w := holding(t)
	w.db.Exec(t, owned)
	eu := newPlace()
	w.start(named("eu", eu))
	eu.eventually(t, map[string]string{"app/1": `"ann"`, "app/2": `"bob"`})
	w.wait()
	const syncs = `SELECT count(*) || ', open ' || count(*) FILTER (WHERE state IN ('requested', 'running')) FROM reconciler.sync_runs`
	before := w.text(syncs)
	require.Contains(t, before, "open 0")
	person := w.begin()
	w.in(person, unsettled)
	begun, release := eu.hang(t, "app/3")
	w.db.Exec(t, `INSERT INTO owners VALUES (3, 'eve'); INSERT INTO apps VALUES (3, 3)`)
	<-begun
	w.db.Exec(t, `DELETE FROM owners WHERE id = 3`)
	w.settled("true", `SELECT bool_and(pg_visible_in_snapshot(o.xid, c.snapshot))::text FROM reconciler.outbox o, reconciler.cursor_of(0) AS c WHERE o.image = '{"owner": 3}'`)
	require.Equal(t, "0", w.text(`SELECT count(*)::text FROM reconciler.ledger WHERE key = '3' AND match IS NOT NULL`), "the ledger knows it already")
	require.NoError(t, person.Rollback(t.Context()))
	release()
	w.settled("1,2", `SELECT string_agg(key, ',' ORDER BY key) FROM reconciler.ledger`)
	eu.eventually(t, map[string]string{"app/1": `"ann"`, "app/2": `"bob"`})
	require.Equal(t, before, w.text(syncs))
}

// C12: what the leader marks for a changed base table needs no notification and no poll to be found.
func TestChangeOfABaseTableDoesNotWaitForThePoll(t *testing.T) {
	t.Parallel()
	// A server of its own: transactions of other tests would keep the leader dozing, and looking.
	w := setupOn(t, pgtest.Server(t).New(t))
	w.db.Exec(t, owned)
	eu := newPlace()
	w.start(named("eu", eu))
	eu.eventually(t, map[string]string{"app/1": `"ann"`, "app/2": `"bob"`})
	w.wait()
	for round := range 10 {
		w.settled("1", `SELECT count(*)::text FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND classid::bigint << 32 | objid::bigint = reconciler.sleep_lock()`)
		name := fmt.Sprintf("eve %d", round)
		polls := w.series("wakeups_total", "poll")
		w.db.Exec(t, `UPDATE owners SET name = $1 WHERE id = 1`, name)
		eu.eventually(t, map[string]string{"app/1": fmt.Sprintf("%q", name), "app/2": `"bob"`})
		if w.series("wakeups_total", "poll") == polls {
			return
		}
	}
	require.Fail(t, "the leader looked by itself each time before the change arrived")
}

// I10: nothing that an owner writes is accepted once its term is over.
func TestDeposedOwnerWritesNothing(t *testing.T) {
	t.Parallel()
	w, _ := fleet(t, 1)
	const owner = "00000000-0000-0000-0000-000000000001"
	w.db.Exec(t, `INSERT INTO reconciler.targets (name, owner, term, lease_ttl) VALUES ('eu', $1, 2, '1 hour')`, owner)
	w.db.Exec(t, `INSERT INTO reconciler.ledger (target_id, resource_id, key, state, wanted, present, held_by) VALUES (1, 1, 'parked', 'held', false, true, 'sync')`)
	queries, ctx := store.New(w.db.Pool), t.Context()
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
	before := w.text(all)
	for name, write := range writes {
		require.True(t, lease.IsFenced(write(1)), name)
	}
	require.Equal(t, before, w.text(all))
	for name, write := range writes {
		require.NoError(t, write(2), name)
	}
}
