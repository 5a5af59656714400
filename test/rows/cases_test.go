package rows_test

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
	"github.com/pgreconciler/reconciler/internal/server/servertest"
)

// C4, C5, C6, C7, C8: what becomes of the objects of rows that move, change their key, are deleted and inserted again in
// one transaction, stop, start, and never run: which calls there are, and no others.
func TestLiveChangesAndTheirCalls(t *testing.T) {
	t.Parallel()
	w, _ := servertest.Fleet(t, 2)
	eu, us := servertest.NewPlace(), servertest.NewPlace()
	w.Start(servertest.Named("eu", eu), servertest.Named("us", us))
	w.Converged()
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
		_, euBefore, _ := eu.Snapshot()
		_, usBefore, _ := us.Snapshot()
		w.DB.Exec(t, c.sql)
		w.Converged()
		_, euAfter, _ := eu.Snapshot()
		_, usAfter, _ := us.Snapshot()
		require.ElementsMatch(t, c.eu, texts(euAfter[len(euBefore):]), "%s: calls for eu", c.name)
		require.ElementsMatch(t, c.us, texts(usAfter[len(usBefore):]), "%s: calls for us", c.name)
	}
}

func texts(calls []servertest.Call) (all []string) {
	for _, c := range calls {
		text := c.Action + " " + c.ID()
		if c.Spec != "" {
			text += " " + c.Spec
		}
		all = append(all, text)
	}
	return all
}

// C44, I5: the process dies in the middle of a sync that would delete; nothing is deleted by it or on its account, and the
// next one's sync begins anew and completes.
func TestSyncOfAProcessThatDies(t *testing.T) {
	t.Parallel()
	w, _ := servertest.Fleet(t, 60)
	eu := servertest.NewPlace()
	armed := make(chan struct{})
	v := startVictim(w, newMortal(eu, func(servertest.Call) string {
		select {
		case <-armed:
			return before
		default:
			return passes
		}
	}))
	w.Converged()
	// The sync finds rows that are gone and others that have changed; it dies at the calls for these.
	w.Silently(`DELETE FROM apps WHERE id <= 5; UPDATE apps SET image = 'v2' WHERE id > 5`)
	close(armed)
	w.DB.Exec(t, `SELECT reconciler.resync('eu')`)
	v.catches(1)
	w.Settled("running", `SELECT state FROM reconciler.sync_runs ORDER BY id DESC LIMIT 1`)
	v.kill()
	require.Zero(t, eu.Deletes())
	require.Equal(t, 60, eu.Size())
	w.Start(servertest.Named("eu", eu, servertest.Quick))
	w.Eventually("the target is as the rows ask", func() bool { return maps.Equal(w.Wanted("eu"), eu.Have()) })
	w.Settled("0", `SELECT count(*)::text FROM reconciler.sync_runs WHERE state IN ('requested', 'running')`)
	require.Equal(t, 5, eu.Deletes())
	w.Converged()
}

// C45, I5: a query of a sync fails after some of its pages: the sync has failed, says why, and nothing is deleted on its
// account, not what it has found nor what it would have found; it is asked for again, and completes.
func TestSyncWhoseQueryFailsInTheMiddle(t *testing.T) {
	t.Parallel()
	w := servertest.New(t)
	w.DB.Exec(t, `CREATE TABLE brake (id int); CREATE TABLE apps (id int PRIMARY KEY)`)
	w.DB.Exec(t, `CREATE FUNCTION slow(i int) RETURNS int LANGUAGE plpgsql STABLE AS
		$$ BEGIN IF EXISTS (SELECT FROM public.brake b WHERE b.id = i) THEN PERFORM pg_sleep(600); END IF; RETURN i; END $$`)
	w.DB.Exec(t, `INSERT INTO apps SELECT i FROM generate_series(1, 2100) AS i`)
	w.DB.Exec(t, `SELECT reconciler.track('app', 'apps', '{id}', '''eu''', spec => 'to_jsonb(public.slow(id))')`)
	eu := servertest.NewPlace()
	w.Start(servertest.Named("eu", eu))
	w.Converged()
	w.Silently(`DELETE FROM apps WHERE id <= 5`)
	w.DB.Exec(t, `INSERT INTO brake VALUES (2050)`)
	w.DB.Exec(t, `SELECT reconciler.resync('eu')`)
	w.Eventually("the sync has failed", func() bool { // once a page of one row was cancelled, too
		w.Text(`SELECT count(pg_cancel_backend(pid))::text FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'`)
		return w.Series("syncs_total", "eu", "failed") == 1 // counted last
	})
	require.Len(t, w.Logged("sync_failed"), 1)
	require.Contains(t, w.Logged("sync_failed")[0], `effect="nothing was deleted on its account"`)
	require.Equal(t, "true canceling statement", w.Text(`SELECT (rows >= 2000)::text || ' ' || substring(error FROM 'canceling statement') FROM reconciler.sync_runs WHERE state = 'failed'`))
	require.Equal(t, 2100, eu.Size())
	w.DB.Exec(t, `TRUNCATE brake`)
	w.Settled("complete", `SELECT state FROM reconciler.sync_runs ORDER BY id DESC LIMIT 1`)
	w.Converged()
	require.Equal(t, 5, eu.Deletes())
}

// C48, I11: objects that change faster than the target takes them do not keep a sync from its end.
func TestSyncEndsInAFloodOfLiveChanges(t *testing.T) {
	t.Parallel()
	w, _ := servertest.Fleet(t, 300)
	eu := servertest.NewPlace()
	w.Start(servertest.Named("eu", eu))
	w.Converged()
	var flood atomic.Int64
	eu.Set(func(_ context.Context, c servertest.Call) driver.Outcome {
		if c.Spec != `"silent"` {
			flood.Add(1)
		}
		<-time.After(5 * time.Millisecond) // four workers: 800 calls a second at most, and 4,000 changes
		return driver.Done()
	})
	ctx, stop := context.WithCancel(t.Context())
	conn, done := w.DB.Conn(t), make(chan error, 1)
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
	w.Eventually("the flood has begun", func() bool { return flood.Load() > 200 })
	w.Silently(`UPDATE apps SET image = 'silent' WHERE id > 200`)
	w.DB.Exec(t, `SELECT reconciler.resync('eu')`)
	w.Eventually("the sync is complete", func() bool {
		return w.Text(`SELECT state FROM reconciler.sync_runs ORDER BY id DESC LIMIT 1`) == "complete"
	})
	require.Empty(t, done, "the flood has ended before the sync")
	applied := 0
	for _, spec := range eu.Have() {
		if spec == `"silent"` {
			applied++
		}
	}
	require.Equal(t, 100, applied)
	stop()
	require.NoError(t, <-done, "I8: a writer failed")
	eu.Set(nil)
	w.Converged()
}

// C12, C47, I6: the rows that a resource is joined with vanish, and with them all of its objects: the guard holds their
// deletes, and status and the metric say so. They are let go when the rows are back.
func TestMissingParentsAreNoMassDelete(t *testing.T) {
	t.Parallel()
	w := servertest.New(t)
	w.DB.Exec(t, `CREATE TABLE owners (id int PRIMARY KEY, name text); CREATE TABLE apps (id int PRIMARY KEY, owner int);
		INSERT INTO owners SELECT i, 'v1' FROM generate_series(1, 4) AS i; INSERT INTO apps SELECT i, 1 + i % 4 FROM generate_series(1, 80) AS i;
		CREATE VIEW owned AS SELECT a.id, a.owner, o.name FROM apps a JOIN owners o ON o.id = a.owner;
		SELECT reconciler.track('app', 'owned', '{id}', '''eu''', spec => 'to_jsonb(name)', depends_on => '{"apps": {"id": "id"}, "owners": {"id": "owner"}}')`)
	eu := servertest.NewPlace()
	w.Start(servertest.Named("eu", eu))
	w.Converged()
	require.Equal(t, 80, eu.Size())
	w.DB.Exec(t, `CREATE TABLE saved AS TABLE owners; DELETE FROM owners`)
	w.Settled("80 deletes held", `SELECT regexp_replace(guard, '^(\d+) deletes? .*', '\1 deletes held') FROM reconciler.status`)
	w.Eventually("the metric says so", func() bool {
		w.DB.Exec(t, `SELECT pg_notify('reconciler_control', '')`)
		return w.Series("guard_held", "eu") == 80
	})
	w.Eventually("and the log", func() bool { return len(w.Logged("deletes_held")) == 1 })
	require.Equal(t, "held", w.Text(`SELECT state FROM reconciler.status`))
	w.DB.Exec(t, `INSERT INTO owners TABLE saved`)
	w.Converged()
	require.Zero(t, eu.Deletes())
	w.Eventually("the metric says so", func() bool {
		w.DB.Exec(t, `SELECT pg_notify('reconciler_control', '')`)
		return w.Series("guard_held", "eu") == 0
	})
}

// C24, I1, I9: a target is away for longer than the outbox keeps its changes. Retention removes what it has not read; its
// owner logs that and syncs it in full, so that it ends with what the rows ask for. Other targets notice nothing.
func TestTargetThatWasAwayForTooLongIsSynced(t *testing.T) {
	t.Parallel()
	w, _ := servertest.Fleet(t, 10)
	w.DB.Exec(t, `INSERT INTO apps SELECT i, 'us', 'v1' FROM generate_series(101, 110) AS i`)
	eu, us := servertest.NewPlace(), servertest.NewPlace()
	keep := func(c *config.Config) { c.Retention.MaxRows = 1000 }
	both := w.StartWith(keep, servertest.Named("eu", eu), servertest.Named("us", us))
	w.Converged()
	both.Stop(t)
	listed := w.Begin() // retention would not keep anything for a target that no process lists for 10 s
	w.In(listed, `SELECT FROM reconciler.targets WHERE name = 'eu' FOR NO KEY UPDATE`)
	one := w.StartWith(keep, servertest.Named("us", us))
	w.DB.Exec(t, `UPDATE apps SET image = 'v2' WHERE id <= 5; DELETE FROM apps WHERE id = 6; INSERT INTO apps VALUES (11, 'eu', 'v2')`)
	for i := range 8 {
		w.DB.Exec(t, `UPDATE apps SET image = $1 WHERE id > 100`, fmt.Sprintf("turn %d", i))
	}
	delete(w.Places, "eu")
	w.DB.Exec(t, `INSERT INTO reconciler.outbox (resource_id, target, key) SELECT r.id, 'us', i::text FROM reconciler.resources r, generate_series(101, 1300) AS i`)
	w.DB.Exec(t, `UPDATE apps SET image = 'last' WHERE id > 100`)
	w.WaitFor("us")
	w.Eventually("what eu has not read is gone", func() bool {
		w.Seen("us") // it is not cut off too
		w.DB.Exec(t, `UPDATE reconciler.installation SET rotated_at = '2000-01-01'`)
		w.DB.Exec(t, `SELECT reconciler.retain('1 day', 1000, '0 s')`)
		return w.Text(`SELECT below_floor::text FROM reconciler.outbox_lag WHERE target = 'eu'`) == "true"
	})
	require.Equal(t, "eu was away longer than the outbox keeps changes", w.Text(`SELECT finding FROM reconciler.doctor_outbox() WHERE finding LIKE 'eu %'`))
	one.Stop(t)
	w.Commit(listed)
	w.StartWith(keep, servertest.Named("eu", eu), servertest.Named("us", us))
	w.Converged()
	require.Len(t, w.Logged("cursor_below_floor"), 1)
	require.Contains(t, w.Logged("cursor_below_floor")[0], "target=eu")
	require.Equal(t, "retention", w.Text(`SELECT reason FROM reconciler.sync_runs r JOIN reconciler.targets t ON t.id = r.target_id WHERE t.name = 'eu' AND reason = 'retention'`))
}
