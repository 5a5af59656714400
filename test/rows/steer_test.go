package rows_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/server/servertest"
)

// states counts the objects of eu by state.
const states = `SELECT coalesce(string_agg(n || ' ' || state, ', ' ORDER BY state), 'none') FROM (
	SELECT concat_ws(' by ', state, held_by) || CASE WHEN wanted THEN '' ELSE ', unwanted' END AS state, count(*) AS n FROM reconciler.objects WHERE target = 'eu' GROUP BY 1) AS s`

// C36: a pause stops calls, not the noticing; resume() has everything applied. Both are heard of, and need no poll.
func TestPausedTargetIsNotCalled(t *testing.T) {
	t.Parallel()
	w := servertest.WithApps(t)
	w.SteerEvery = time.Hour
	want := w.Fleet(30)
	eu := servertest.NewPlace()
	w.Start(servertest.Named("eu", servertest.Listing{Place: eu}))
	eu.Eventually(t, want)
	w.Wait()
	w.DB.Exec(t, `SELECT reconciler.pause('eu', 'maintenance')`)
	probe := 0
	w.Eventually("the pause is obeyed", func() bool {
		probe++
		w.DB.Exec(t, `UPDATE apps SET image = $1 WHERE id = 1`, fmt.Sprintf("probe %d", probe))
		w.Seen("eu")
		return w.Text(`SELECT held_by FROM reconciler.objects WHERE key = '1'`) == "pause"
	})
	_, before, _ := eu.Snapshot()
	w.DB.Exec(t, `UPDATE apps SET image = 'v2' WHERE id <= 10`)
	w.DB.Exec(t, `DELETE FROM apps WHERE id IN (11, 12)`)
	w.DB.Exec(t, `INSERT INTO apps VALUES (31, 'eu', 'new')`)
	w.DB.Exec(t, `SELECT reconciler.resync('eu')`)
	w.Settled("18 applied, 11 held by pause, 2 held by pause, unwanted", states)
	w.Eventually("the sync is complete", func() bool {
		return w.Text(`SELECT state FROM reconciler.sync_runs ORDER BY id DESC LIMIT 1`) == "complete"
	})
	_, after, _ := eu.Snapshot()
	require.Equal(t, before, after)
	require.Equal(t, "paused", w.Text(`SELECT state FROM reconciler.status`))

	w.DB.Exec(t, `SELECT reconciler.resume('eu')`)
	w.Converged()
	require.Len(t, eu.Have(), 29)
}

// C36, I6: what a pause has held back is counted when the pause ends, before the first delete of it.
func TestDeletesOfAPauseAreCountedAtItsEnd(t *testing.T) {
	t.Parallel()
	w, want := servertest.Fleet(t, 100)
	eu := servertest.NewPlace()
	w.Start(servertest.Named("eu", eu))
	eu.Eventually(t, want)
	w.DB.Exec(t, `SELECT reconciler.pause('eu')`)
	probe := 0
	w.Eventually("the pause is obeyed", func() bool {
		probe++
		w.DB.Exec(t, `UPDATE apps SET image = $1 WHERE id = 100`, fmt.Sprintf("probe %d", probe))
		w.Seen("eu")
		return w.Text(`SELECT held_by FROM reconciler.objects WHERE key = '100'`) == "pause"
	})
	w.DB.Exec(t, `DELETE FROM apps WHERE id <= 21`)
	w.Settled("21", `SELECT count(*)::text FROM reconciler.objects WHERE held_by = 'pause' AND NOT wanted`)
	w.DB.Exec(t, `SELECT reconciler.resume('eu')`)
	w.Settled("79 applied, 21 held by guard, unwanted", states)
	require.Zero(t, eu.Deletes())
}

// C36: however pauses, resumes and changes interleave, nothing stays held.
func TestResumeLeavesNothingHeld(t *testing.T) {
	t.Parallel()
	w, want := servertest.Fleet(t, 20)
	eu := servertest.NewPlace()
	w.Start(servertest.Named("eu", eu))
	eu.Eventually(t, want)
	for i := range 60 {
		switch i % 3 {
		case 0:
			w.DB.Exec(t, `SELECT reconciler.pause('eu')`)
		case 2:
			w.DB.Exec(t, `SELECT reconciler.resume('eu')`)
		}
		w.DB.Exec(t, `UPDATE apps SET image = $1`, fmt.Sprintf("v%d", i))
	}
	w.Converged()
}

// C36: retry() tries what failed or is blocked at once, however long its pause is.
func TestRetryDoesNotWait(t *testing.T) {
	t.Parallel()
	w, want := servertest.Fleet(t, 3)
	eu := servertest.NewPlace()
	eu.Set(func(_ context.Context, c servertest.Call) driver.Outcome {
		switch c.Key {
		case "1":
			return driver.RetryAfter(time.Hour, errors.New("quota"))
		case "2":
			return driver.Terminal(errors.New("refused"))
		}
		return driver.Done()
	})
	w.Start(servertest.Named("eu", eu))
	w.Settled("1 applied, 1 blocked, 1 failing", states)
	eu.Set(nil)
	w.DB.Exec(t, `SELECT reconciler.retry('eu', 'app', '2')`)
	w.Settled("2 applied, 1 failing", states)
	w.DB.Exec(t, `SELECT reconciler.retry('eu')`)
	eu.Eventually(t, want)
	w.Converged()
}

// Times that were written while the server's clock was ahead delay nothing after it was set back: not the next attempts, not the next
// sync, and not the repair of objects that were applied then.
func TestAClockThatWasAheadStopsNothing(t *testing.T) {
	t.Parallel()
	w, want := servertest.Fleet(t, 3)
	eu := servertest.NewPlace()
	p := w.Start(servertest.Named("eu", servertest.Listing{Place: eu}))
	eu.Eventually(t, want)
	w.Wait()
	p.Stop(t)
	w.DB.Exec(t, `UPDATE reconciler.ledger SET state = 'failing', next_attempt_at = now() + interval '2 days', attempts = 1, applied_hash = NULL`)
	w.DB.Exec(t, `INSERT INTO reconciler.sync_runs (target_id, resource_id, reason, not_before)
		SELECT t.id, r.id, 'resource', now() + interval '1 hour' FROM reconciler.targets t, reconciler.resources r`)
	w.Start(servertest.Named("eu", servertest.Listing{Place: eu}))
	w.Converged()
	w.DB.Exec(t, `UPDATE reconciler.ledger SET applied_at = now() + interval '1 hour'`)
	eu.Put("app/1", `"edited by hand"`)
	eu.Put("app/2", "")
	w.Resync("complete resync rows=3 upserts=0 tombstones=0 drifted=2 held=0")
	eu.Eventually(t, want)
}

// C37: wait() returns only when it is true, and says at its timeout what is not.
func TestWaitSaysWhatIsNotApplied(t *testing.T) {
	t.Parallel()
	w, want := servertest.HoldingFleet(t, 3)
	eu := servertest.NewPlace()
	w.Start(servertest.Named("eu", eu))
	eu.Eventually(t, want)
	w.Wait()
	person := w.Begin()
	w.In(person, servertest.Unsettled)
	g := eu.Shut(t, func(c servertest.Call) bool { return c.Key == "2" })
	w.DB.Exec(t, `UPDATE apps SET image = 'v2' WHERE id IN (1, 2)`)
	g.Next(t)
	began := time.Now()
	require.Equal(t, []string{"eu unread true"}, w.Column(`SELECT concat_ws(' ', target, resource, key, state, timed_out::text) FROM reconciler.wait('500ms')`))
	require.GreaterOrEqual(t, time.Since(began), 500*time.Millisecond)
	require.NoError(t, person.Rollback(t.Context()))
	w.Settled("1", `SELECT count(*)::text FROM reconciler.objects WHERE state = 'pending'`)
	w.Seen("eu")
	require.Equal(t, []string{"eu app 2 pending true"}, w.Column(`SELECT concat_ws(' ', target, resource, key, state, timed_out::text) FROM reconciler.wait('100ms')`))
	g.Lift()
	w.Wait()
	want["app/1"], want["app/2"] = `"v2"`, `"v2"`
	require.Equal(t, want, eu.Have())
	w.Converged()
}

// C38, C39: rows that name an unknown target do no harm and are shown; when a process has it in its config it gets its
// objects. When no process has it any more its objects stay where they are, and are shown.
func TestTargetsComeAndGo(t *testing.T) {
	t.Parallel()
	w, want := servertest.Fleet(t, 2)
	w.DB.Exec(t, `INSERT INTO apps VALUES (7, 'mars', 'far')`)
	eu, mars := servertest.NewPlace(), servertest.NewPlace()
	first := w.Start(servertest.Named("eu", eu))
	eu.Eventually(t, want)
	w.Eventually("mars is shown", func() bool { return w.Text(`SELECT state FROM reconciler.status WHERE target = 'mars'`) == "unknown" })
	w.DB.Exec(t, `INSERT INTO apps VALUES (8, 'venus', 'far')`)
	w.Eventually("venus is shown", func() bool { return w.Text(`SELECT state FROM reconciler.status WHERE target = 'venus'`) == "unknown" })
	require.Equal(t, []string{"mars unknown", "venus unknown"}, w.Column(`SELECT concat_ws(' ', target, state) FROM reconciler.wait('90s')`))
	first.Stop(t)

	second := w.Start(servertest.Named("eu", eu), servertest.Named("mars", mars))
	mars.Eventually(t, map[string]string{"app/7": `"far"`})
	second.Stop(t)

	w.Start(servertest.Named("eu", eu))
	w.DB.Exec(t, `DELETE FROM apps WHERE id = 7`)
	w.Eventually("mars is unknown again", func() bool { return w.Text(`SELECT state FROM reconciler.status WHERE target = 'mars'`) == "unknown" })
	require.Equal(t, "mars app 7 applied", w.Text(`SELECT concat_ws(' ', target, resource, key, state) FROM reconciler.objects WHERE target = 'mars'`))
	require.Equal(t, map[string]string{"app/7": `"far"`}, mars.Have())
	delete(w.Places, "mars") // nobody keeps it up to date
	w.DB.Exec(t, `SELECT reconciler.release('mars')`)
	require.Equal(t, "0", w.Text(`SELECT count(*)::text FROM reconciler.objects WHERE target = 'mars'`))
	require.Equal(t, map[string]string{"app/7": `"far"`}, mars.Have(), "it keeps what it has")
}

// A target that is given up is emptied, past the guard, and gets nothing any more; one delete that fails is tried again.
func TestTargetThatIsGivenUpIsEmptied(t *testing.T) {
	t.Parallel()
	w, want := servertest.Fleet(t, 100)
	eu := servertest.NewPlace()
	w.Start(servertest.Named("eu", eu))
	eu.Eventually(t, want)
	w.Wait()
	eu.Set(func(_ context.Context, c servertest.Call) driver.Outcome {
		if c.Key == "50" {
			return driver.Backoff(errors.New("locked"))
		}
		return driver.Done()
	})
	w.DB.Exec(t, `SELECT reconciler.release('eu', 'delete')`)
	w.DB.Exec(t, `SELECT reconciler.resync('eu')`)
	eu.Eventually(t, map[string]string{"app/50": `"v1"`})
	w.DB.Exec(t, `UPDATE apps SET image = 'v2'`)
	w.DB.Exec(t, `INSERT INTO apps VALUES (101, 'eu', 'new')`)
	w.Seen("eu")
	require.Equal(t, "1 failing, unwanted", w.Text(states))
	eu.Set(nil)
	eu.Eventually(t, map[string]string{})
	w.Settled("none", states)
}
