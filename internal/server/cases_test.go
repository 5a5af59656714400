package server_test

import (
	"context"
	"fmt"
	"maps"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/driver"
)

// C4, C5, C6, C7, C8: what becomes of the objects of rows that move, change their key, are deleted and inserted again in
// one transaction, stop, start, and never run: which calls there are, and no others.
func TestLiveChangesAndTheirCalls(t *testing.T) {
	t.Parallel()
	w, _ := fleet(t, 2)
	eu, us := newPlace(), newPlace()
	w.start(named("eu", eu), named("us", us))
	w.converged()
	for _, c := range []struct {
		name, sql string
		eu, us    []string
	}{
		{"C4Moves", `UPDATE apps SET region = 'us' WHERE id = 1`, []string{"delete app/1"}, []string{`apply app/1 "v1"`}},
		{"C4MovesBack", `UPDATE apps SET region = 'eu', image = 'v2' WHERE id = 1`, []string{`apply app/1 "v2"`}, []string{"delete app/1"}},
		{"C5KeyChanges", `UPDATE apps SET id = 11 WHERE id = 1`, []string{"delete app/1", `apply app/11 "v2"`}, nil},
		{"C5KeyChangesAndMoves", `UPDATE apps SET id = 1, region = 'us' WHERE id = 11`, []string{"delete app/11"}, []string{`apply app/1 "v2"`}},
		{"C6DeletedAndInserted", `BEGIN; DELETE FROM apps WHERE id = 2; INSERT INTO apps VALUES (2, 'eu', 'v3'); COMMIT`, []string{`apply app/2 "v3"`}, nil},
		{"C6DeletedAndInsertedAsItWas", `BEGIN; DELETE FROM apps WHERE id = 2; INSERT INTO apps VALUES (2, 'eu', 'v3'); COMMIT`, nil, nil},
		{"C6DeletedAndInsertedElsewhere", `BEGIN; DELETE FROM apps WHERE id = 2; INSERT INTO apps VALUES (2, 'us', 'v3'); COMMIT`, []string{"delete app/2"}, []string{`apply app/2 "v3"`}},
		{"C7Stops", `UPDATE apps SET running = false WHERE id = 2`, nil, []string{"delete app/2"}},
		{"C7ChangesWhileItRests", `UPDATE apps SET image = 'v4' WHERE id = 2`, nil, nil},
		{"C7StartsAgain", `UPDATE apps SET running = true WHERE id = 2`, nil, []string{`apply app/2 "v4"`}},
		{"C7StopsAndStarts", `BEGIN; UPDATE apps SET running = false WHERE id = 2; UPDATE apps SET running = true WHERE id = 2; COMMIT`, nil, nil},
		{"C8NeverRuns", `INSERT INTO apps VALUES (3, 'eu', 'v1', false); UPDATE apps SET image = 'v2', region = 'us' WHERE id = 3; DELETE FROM apps WHERE id = 3`, nil, nil},
	} {
		_, euBefore, _ := eu.snapshot()
		_, usBefore, _ := us.snapshot()
		w.db.Exec(t, c.sql)
		w.converged()
		_, euAfter, _ := eu.snapshot()
		_, usAfter, _ := us.snapshot()
		require.ElementsMatch(t, c.eu, texts(euAfter[len(euBefore):]), "%s: calls for eu", c.name)
		require.ElementsMatch(t, c.us, texts(usAfter[len(usBefore):]), "%s: calls for us", c.name)
	}
}

func texts(calls []call) (all []string) {
	for _, c := range calls {
		text := c.Action + " " + c.id()
		if c.Spec != "" {
			text += " " + c.Spec
		}
		all = append(all, text)
	}
	return all
}

// deletes counts the calls that delete.
func (p *place) deletes() (n int) {
	_, calls, _ := p.snapshot()
	for _, c := range calls {
		if c.Action == "delete" {
			n++
		}
	}
	return n
}

// C44, I5: the process dies in the middle of a sync that would delete; nothing is deleted by it or on its account, and the
// next one's sync begins anew and completes.
func TestSyncOfAProcessThatDies(t *testing.T) {
	t.Parallel()
	w, _ := fleet(t, 60)
	eu := newPlace()
	armed := make(chan struct{})
	v := w.startVictim(newMortal(eu, func(call) string {
		select {
		case <-armed:
			return before
		default:
			return passes
		}
	}))
	w.converged()
	// The sync finds rows that are gone and others that have changed; it dies at the calls for these.
	w.silently(`DELETE FROM apps WHERE id <= 5; UPDATE apps SET image = 'v2' WHERE id > 5`)
	close(armed)
	w.db.Exec(t, `SELECT reconciler.resync('eu')`)
	v.catches(1)
	w.settled("running", `SELECT state FROM reconciler.sync_runs ORDER BY id DESC LIMIT 1`)
	v.kill()
	require.Zero(t, eu.deletes())
	require.Equal(t, 60, eu.size())
	w.start(named("eu", eu, quick))
	w.eventually("the target is as the rows ask", func() bool { return maps.Equal(w.wanted("eu"), eu.have()) })
	w.settled("0", `SELECT count(*)::text FROM reconciler.sync_runs WHERE state IN ('requested', 'running')`)
	require.Equal(t, 5, eu.deletes())
	w.converged()
}

// C45, I5: a query of a sync fails after some of its pages: the sync has failed, says why, and nothing is deleted on its
// account, not what it has found nor what it would have found; it is asked for again, and completes.
func TestSyncWhoseQueryFailsInTheMiddle(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.db.Exec(t, `CREATE TABLE brake (id int); CREATE TABLE apps (id int PRIMARY KEY)`)
	w.db.Exec(t, `CREATE FUNCTION slow(i int) RETURNS int LANGUAGE plpgsql STABLE AS
		$$ BEGIN IF EXISTS (SELECT FROM public.brake b WHERE b.id = i) THEN PERFORM pg_sleep(600); END IF; RETURN i; END $$`)
	w.db.Exec(t, `INSERT INTO apps SELECT i FROM generate_series(1, 2100) AS i`)
	w.db.Exec(t, `SELECT reconciler.track('app', 'apps', '{id}', '''eu''', spec => 'to_jsonb(public.slow(id))')`)
	eu := newPlace()
	w.start(named("eu", eu))
	w.converged()
	w.silently(`DELETE FROM apps WHERE id <= 5`)
	w.db.Exec(t, `INSERT INTO brake VALUES (2050)`)
	w.db.Exec(t, `SELECT reconciler.resync('eu')`)
	w.eventually("a page is being read", func() bool {
		return w.text(`SELECT count(pg_cancel_backend(pid))::text FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'`) == "1"
	})
	w.eventually("the sync has failed", func() bool { return w.series("syncs_total", "eu", "failed") == 1 }) // counted last
	require.Len(t, w.logged("sync_failed"), 1)
	require.Contains(t, w.logged("sync_failed")[0], `effect="nothing was deleted on its account"`)
	require.Equal(t, "true canceling statement", w.text(`SELECT (rows >= 2000)::text || ' ' || substring(error FROM 'canceling statement') FROM reconciler.sync_runs WHERE state = 'failed'`))
	require.Equal(t, 2100, eu.size())
	w.db.Exec(t, `TRUNCATE brake`)
	w.settled("complete", `SELECT state FROM reconciler.sync_runs ORDER BY id DESC LIMIT 1`)
	w.converged()
	require.Equal(t, 5, eu.deletes())
}

// C48, I11: objects that change faster than the target takes them do not keep a sync from its end.
func TestSyncEndsInAFloodOfLiveChanges(t *testing.T) {
	t.Parallel()
	w, _ := fleet(t, 300)
	eu := newPlace()
	w.start(named("eu", eu))
	w.converged()
	var flood atomic.Int64
	eu.set(func(_ context.Context, c call) driver.Outcome {
		if c.Spec != `"silent"` {
			flood.Add(1)
		}
		<-time.After(5 * time.Millisecond) // four workers: 800 calls a second at most, and 4,000 changes
		return driver.Done()
	})
	ctx, stop := context.WithCancel(t.Context())
	conn, done := w.db.Conn(t), make(chan error, 1)
	go func() {
		ticker := time.NewTicker(50 * time.Millisecond)
		defer ticker.Stop()
		for n := 0; ; n++ {
			_, err := conn.Exec(context.WithoutCancel(ctx), `UPDATE apps SET image = $1 WHERE id <= 200`, fmt.Sprintf("v%d", n))
			if err != nil || ctx.Err() != nil {
				done <- err
				close(done)
				return
			}
			<-ticker.C
		}
	}()
	t.Cleanup(func() {
		stop()
		for range done {
			continue // until it has ended
		}
	})
	w.eventually("the flood has begun", func() bool { return flood.Load() > 200 })
	w.silently(`UPDATE apps SET image = 'silent' WHERE id > 200`)
	w.db.Exec(t, `SELECT reconciler.resync('eu')`)
	w.eventually("the sync is complete", func() bool {
		return w.text(`SELECT state FROM reconciler.sync_runs ORDER BY id DESC LIMIT 1`) == "complete"
	})
	require.Empty(t, done, "the flood has ended before the sync")
	applied := 0
	for _, spec := range eu.have() {
		if spec == `"silent"` {
			applied++
		}
	}
	require.Equal(t, 100, applied)
	stop()
	require.NoError(t, <-done, "I8: a writer failed")
	eu.set(nil)
	w.converged()
}

// C12, C47, I6: the rows that a resource is joined with vanish, and with them all of its objects: the guard holds their
// deletes, and status and the metric say so. They are let go when the rows are back.
func TestMissingParentsAreNoMassDelete(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.db.Exec(t, `CREATE TABLE owners (id int PRIMARY KEY, name text); CREATE TABLE apps (id int PRIMARY KEY, owner int);
		INSERT INTO owners SELECT i, 'v1' FROM generate_series(1, 4) AS i; INSERT INTO apps SELECT i, 1 + i % 4 FROM generate_series(1, 80) AS i;
		CREATE VIEW owned AS SELECT a.id, a.owner, o.name FROM apps a JOIN owners o ON o.id = a.owner;
		SELECT reconciler.track('app', 'owned', '{id}', '''eu''', spec => 'to_jsonb(name)', depends_on => '{"apps": {"id": "id"}, "owners": {"id": "owner"}}')`)
	eu := newPlace()
	w.start(named("eu", eu))
	w.converged()
	require.Equal(t, 80, eu.size())
	w.db.Exec(t, `CREATE TABLE saved AS TABLE owners; DELETE FROM owners`)
	w.settled("80 deletes held", `SELECT regexp_replace(guard, '^(\d+) deletes? .*', '\1 deletes held') FROM reconciler.status`)
	w.eventually("the metric says so", func() bool {
		w.db.Exec(t, `SELECT pg_notify('reconciler_control', '')`)
		return w.series("guard_held", "eu") == 80
	})
	w.eventually("and the log", func() bool { return len(w.logged("deletes_held")) == 1 })
	require.Equal(t, "held", w.text(`SELECT state FROM reconciler.status`))
	w.db.Exec(t, `INSERT INTO owners TABLE saved`)
	w.converged()
	require.Zero(t, eu.deletes())
	w.eventually("the metric says so", func() bool {
		w.db.Exec(t, `SELECT pg_notify('reconciler_control', '')`)
		return w.series("guard_held", "eu") == 0
	})
}

// C24, I1, I9: a target is paused for longer than the outbox keeps its changes. What it had not read goes, it is told so,
// and is synced in full: it ends with what the rows say. Other targets notice nothing.
func TestTargetThatWasAwayForTooLongIsSynced(t *testing.T) {
	t.Parallel()
	w, _ := fleet(t, 10)
	w.db.Exec(t, `INSERT INTO apps SELECT i, 'us', 'v1' FROM generate_series(101, 110) AS i`)
	eu, us := newPlace(), newPlace()
	keep := func(c *config.Config) { c.Retention.MaxRows = 1000 }
	both := w.startWith(keep, named("eu", eu), named("us", us))
	w.converged()
	both.stop(t)
	one := w.startWith(keep, named("us", us))
	w.db.Exec(t, `UPDATE apps SET image = 'v2' WHERE id <= 5; DELETE FROM apps WHERE id = 6; INSERT INTO apps VALUES (11, 'eu', 'v2')`)
	for i := range 8 {
		w.db.Exec(t, `UPDATE apps SET image = $1 WHERE id > 100`, fmt.Sprintf("turn %d", i))
	}
	delete(w.places, "eu")
	w.db.Exec(t, `INSERT INTO reconciler.outbox (resource_id, target, key) SELECT r.id, 'us', i::text FROM reconciler.resources r, generate_series(101, 1300) AS i`)
	w.db.Exec(t, `UPDATE apps SET image = 'last' WHERE id > 100`)
	w.waitFor("us")
	w.eventually("what eu has not read is gone", func() bool {
		w.seen("us") // it is not cut off too
		w.db.Exec(t, `UPDATE reconciler.installation SET rotated_at = '2000-01-01'`)
		w.db.Exec(t, `SELECT reconciler.retain('1 day', 1000, '0 s')`)
		return w.text(`SELECT below_floor::text FROM reconciler.outbox_lag WHERE target = 'eu'`) == "true"
	})
	require.Equal(t, "eu was away longer than the outbox keeps changes", w.text(`SELECT finding FROM reconciler.doctor_outbox() WHERE finding LIKE 'eu %'`))
	one.stop(t)
	w.startWith(keep, named("eu", eu), named("us", us))
	w.converged()
	require.Len(t, w.logged("cursor_below_floor"), 1)
	require.Contains(t, w.logged("cursor_below_floor")[0], "target=eu")
	require.Equal(t, "retention", w.text(`SELECT reason FROM reconciler.sync_runs r JOIN reconciler.targets t ON t.id = r.target_id WHERE t.name = 'eu' AND reason = 'retention'`))
}

// waitFor waits until one target has everything.
func (w *world) waitFor(target string) {
	w.t.Helper()
	require.Empty(w.t, w.column(`SELECT concat_ws(' ', target, reason) FROM reconciler.wait('90 s', $1)`, target))
}
