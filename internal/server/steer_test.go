package server_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// states counts the objects of eu by state.
const states = `SELECT coalesce(string_agg(n || ' ' || state, ', ' ORDER BY state), 'none') FROM (
	SELECT concat_ws(' by ', state, held_by) || CASE WHEN wanted THEN '' ELSE ', unwanted' END AS state, count(*) AS n FROM reconciler.objects WHERE target = 'eu' GROUP BY 1) AS s`

// C36: a pause stops calls, not the noticing; resume() has everything applied. Both are heard of, and need no poll.
func TestPausedTargetIsNotCalled(t *testing.T) {
	t.Parallel()
	w := withApps(t)
	w.steerEvery = time.Hour
	want := w.fleet(30)
	eu := newPlace()
	w.start(named("eu", listing{eu}))
	eu.eventually(t, want)
	w.wait()
	w.db.Exec(t, `SELECT reconciler.pause('eu', 'maintenance')`)
	probe := 0
	w.eventually("the pause is obeyed", func() bool {
		probe++
		w.db.Exec(t, `UPDATE apps SET image = $1 WHERE id = 1`, fmt.Sprintf("probe %d", probe))
		w.seen("eu")
		return w.text(`SELECT held_by FROM reconciler.objects WHERE key = '1'`) == "pause"
	})
	_, before, _ := eu.snapshot()
	w.db.Exec(t, `UPDATE apps SET image = 'v2' WHERE id <= 10`)
	w.db.Exec(t, `DELETE FROM apps WHERE id IN (11, 12)`)
	w.db.Exec(t, `INSERT INTO apps VALUES (31, 'eu', 'new')`)
	w.db.Exec(t, `SELECT reconciler.resync('eu')`)
	w.settled("18 applied, 11 held by pause, 2 held by pause, unwanted", states)
	w.eventually("the sync is complete", func() bool {
		return w.text(`SELECT state FROM reconciler.sync_runs ORDER BY id DESC LIMIT 1`) == "complete"
	})
	_, after, _ := eu.snapshot()
	require.Equal(t, before, after)
	require.Equal(t, "paused", w.text(`SELECT state FROM reconciler.status`))

	w.db.Exec(t, `SELECT reconciler.resume('eu')`)
	w.converged()
	require.Len(t, eu.have(), 29)
}

// C36: however pauses, resumes and changes interleave, nothing stays held.
func TestResumeLeavesNothingHeld(t *testing.T) {
	t.Parallel()
	w, want := fleet(t, 20)
	eu := newPlace()
	w.start(named("eu", eu))
	eu.eventually(t, want)
	for i := range 60 {
		switch i % 3 {
		case 0:
			w.db.Exec(t, `SELECT reconciler.pause('eu')`)
		case 2:
			w.db.Exec(t, `SELECT reconciler.resume('eu')`)
		}
		w.db.Exec(t, `UPDATE apps SET image = $1`, fmt.Sprintf("v%d", i))
	}
	w.converged()
}

// C36: retry() tries what failed or is blocked at once, however long its pause is.
func TestRetryDoesNotWait(t *testing.T) {
	t.Parallel()
	w, want := fleet(t, 3)
	eu := newPlace()
	eu.set(func(_ context.Context, c call) driver.Outcome {
		switch c.Key {
		case "1":
			return driver.RetryAfter(24*time.Hour, errors.New("quota"))
		case "2":
			return driver.Terminal(errors.New("refused"))
		}
		return driver.Done()
	})
	w.start(named("eu", eu))
	w.settled("1 applied, 1 blocked, 1 failing", states)
	eu.set(nil)
	w.db.Exec(t, `SELECT reconciler.retry('eu', 'app', '2')`)
	w.settled("2 applied, 1 failing", states)
	w.db.Exec(t, `SELECT reconciler.retry('eu')`)
	eu.eventually(t, want)
	w.converged()
}

// C37: wait() returns only when it is true, and says at its timeout what is not.
func TestWaitSaysWhatIsNotApplied(t *testing.T) {
	t.Parallel()
	w, want := holdingFleet(t, 3)
	eu := newPlace()
	w.start(named("eu", eu))
	eu.eventually(t, want)
	w.wait()
	person := w.begin()
	w.in(person, unsettled)
	g := eu.shut(t, func(c call) bool { return c.Key == "2" })
	w.db.Exec(t, `UPDATE apps SET image = 'v2' WHERE id IN (1, 2)`)
	g.next(t)
	began := time.Now()
	require.Equal(t, []string{"eu unread true"}, w.column(`SELECT concat_ws(' ', target, resource, key, state, timed_out::text) FROM reconciler.wait('500ms')`))
	require.GreaterOrEqual(t, time.Since(began), 500*time.Millisecond)
	require.NoError(t, person.Rollback(t.Context()))
	w.settled("1", `SELECT count(*)::text FROM reconciler.objects WHERE state = 'pending'`)
	w.seen("eu")
	require.Equal(t, []string{"eu app 2 pending true"}, w.column(`SELECT concat_ws(' ', target, resource, key, state, timed_out::text) FROM reconciler.wait('100ms')`))
	g.lift()
	w.wait()
	want["app/1"], want["app/2"] = `"v2"`, `"v2"`
	require.Equal(t, want, eu.have())
	w.converged()
}

// C38, C39: rows that name an unknown target do no harm and are shown; when a process has it in its config it gets its
// objects. When no process has it any more its objects stay where they are, and are shown.
func TestTargetsComeAndGo(t *testing.T) {
	t.Parallel()
	w, want := fleet(t, 2)
	w.db.Exec(t, `INSERT INTO apps VALUES (7, 'mars', 'far')`)
	eu, mars := newPlace(), newPlace()
	first := w.start(named("eu", eu))
	eu.eventually(t, want)
	w.eventually("mars is shown", func() bool { return w.text(`SELECT state FROM reconciler.status WHERE target = 'mars'`) == "unknown" })
	w.db.Exec(t, `INSERT INTO apps VALUES (8, 'venus', 'far')`)
	w.eventually("venus is shown", func() bool { return w.text(`SELECT state FROM reconciler.status WHERE target = 'venus'`) == "unknown" })
	require.Equal(t, []string{"mars unknown", "venus unknown"}, w.column(`SELECT concat_ws(' ', target, state) FROM reconciler.wait('90s')`))
	first.stop(t)

	second := w.start(named("eu", eu), named("mars", mars))
	mars.eventually(t, map[string]string{"app/7": `"far"`})
	second.stop(t)

	w.start(named("eu", eu))
	w.db.Exec(t, `DELETE FROM apps WHERE id = 7`)
	w.eventually("mars is unknown again", func() bool { return w.text(`SELECT state FROM reconciler.status WHERE target = 'mars'`) == "unknown" })
	require.Equal(t, "mars app 7 applied", w.text(`SELECT concat_ws(' ', target, resource, key, state) FROM reconciler.objects WHERE target = 'mars'`))
	require.Equal(t, map[string]string{"app/7": `"far"`}, mars.have())
	delete(w.places, "mars") // nobody keeps it up to date
	w.db.Exec(t, `SELECT reconciler.release('mars')`)
	require.Equal(t, "0", w.text(`SELECT count(*)::text FROM reconciler.objects WHERE target = 'mars'`))
	require.Equal(t, map[string]string{"app/7": `"far"`}, mars.have(), "it keeps what it has")
}

// A target that is given up is emptied, past the guard, and gets nothing any more; one delete that fails is tried again.
func TestTargetThatIsGivenUpIsEmptied(t *testing.T) {
	t.Parallel()
	w, want := fleet(t, 100)
	eu := newPlace()
	w.start(named("eu", eu))
	eu.eventually(t, want)
	w.wait()
	eu.set(func(_ context.Context, c call) driver.Outcome {
		if c.Key == "50" {
			return driver.Backoff(errors.New("locked"))
		}
		return driver.Done()
	})
	w.db.Exec(t, `SELECT reconciler.release('eu', 'delete')`)
	w.db.Exec(t, `SELECT reconciler.resync('eu')`)
	eu.eventually(t, map[string]string{"app/50": `"v1"`})
	w.db.Exec(t, `UPDATE apps SET image = 'v2'`)
	w.db.Exec(t, `INSERT INTO apps VALUES (101, 'eu', 'new')`)
	w.seen("eu")
	require.Equal(t, "1 failing, unwanted", w.text(states))
	eu.set(nil)
	eu.eventually(t, map[string]string{})
	w.settled("none", states)
}
