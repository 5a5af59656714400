package faults_test

import (
	"fmt"
	"maps"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/crash"
	"github.com/pgreconciler/reconciler/internal/pgtest"
)

const (
	// refusedObject is what the endpoint refuses at first in a rollout, and refusedCalls how often.
	refusedObject = "app/1"
	refusedCalls  = 2
)

// I1, and what docs/applies.md says of crashes: wherever a process dies during a rollout, the next one goes on with it, in
// the same order, and what failed before is charged once. These points stand in the way of every change.
func TestCrashPointsInRollouts(t *testing.T) {
	t.Parallel()
	points := map[crash.Name]int{crash.ExpandWritten: 1, crash.AfterCall: 3}
	if pgtest.Long {
		maps.Copy(points, map[crash.Name]int{
			crash.AfterTick: 1, crash.ExpandCommitted: 1, crash.BeforeCall: 3, crash.BeforeSettle: 3, crash.AfterSettle: 3,
		})
	}
	for at, visit := range points {
		t.Run(string(at), func(t *testing.T) {
			t.Parallel()
			w := newCrashWorld(t, pgtest.New(t))
			w.track()
			w.dies(at, crashCase{visit: visit, before: func(w *crashWorld) {
				crashSettled(w)
				w.rollout() // while nothing runs
			}})
			w.rolledOut()
			w.recovers()
		})
	}
}

// crashSettled has rows that are in their targets already.
func crashSettled(w *crashWorld) {
	w.fill()
	p := w.start("", 0, "run").synced()
	w.wait()
	p.stop()
}

// crashRollout begins a rollout.
func crashRollout(w *crashWorld, _ *crashProcess) { w.rollout() }

// rollout changes rows of both resources as one apply: eu comes first. One object in us fails at first.
func (w *crashWorld) rollout() {
	w.t.Helper()
	w.endpoint.refuse(refusedObject, refusedCalls)
	w.exec(`SELECT reconciler.begin_apply('release'); UPDATE apps SET version = 2;
UPDATE members SET team = CASE team WHEN 'red' THEN 'blue' ELSE 'red' END`)
}

// crashLarge begins a rollout that the leader opens in two pieces, of 5,000 rows each.
func crashLarge(w *crashWorld, _ *crashProcess) {
	w.endpoint.refuse(refusedObject, refusedCalls)
	w.exec(`SELECT reconciler.begin_apply('release'); INSERT INTO apps (id, region) SELECT i, 'us' FROM generate_series(101, 5300) AS i;
UPDATE apps SET version = 2 WHERE id <= 100`)
}

// crashStopping stops a rollout while its calls in us are under way, and then lets these end.
func crashStopping(w *crashWorld, _ *crashProcess) {
	w.endpoint.hold()
	w.rollout()
	w.rolloutIs("us is running", `SELECT string_agg(state, ' ' ORDER BY ordinal) FROM reconciler.operations`, "completed running")
	require.Contains(w.t, w.text(`SELECT reconciler.apply_stop(1)`), "stopping")
	w.endpoint.release()
}

// crashStarted starts a stopped rollout again, when the next process has said what the dead one did not come to say.
func crashStarted(w *crashWorld) {
	p := w.start("", 0, "run")
	w.rolloutIs("it is stopped", `SELECT state FROM reconciler.applies`, "stopped")
	p.stop()
	w.exec(`SELECT reconciler.apply_start(1)`)
	w.rolledOut()
}

// rolledOut starts a process, and looks at how the rollout ends.
func (w *crashWorld) rolledOut() {
	w.t.Helper()
	p := w.start("", 0, "run")
	w.rolloutIs("the rollout ends", `SELECT state FROM reconciler.applies`, "completed")
	w.wait()
	w.same()
	const counts = `SELECT string_agg(format('%s %s %s', target, state, tasks - completed), ', ' ORDER BY ordinal) FROM reconciler.operations`
	require.Equal(w.t, "eu completed 0, us completed 0", w.text(counts))
	require.Equal(w.t, "true", w.text(`SELECT min(started_at) FILTER (WHERE target = 'us') >= min(completed_at) FILTER (WHERE target = 'eu') FROM reconciler.operations`))
	require.Equal(w.t, "1", w.text(`SELECT count(*) FROM reconciler.apply_log WHERE what = 'state' AND state = 'completed'`))
	require.Equal(w.t, "1", w.text(`SELECT count(*) FROM reconciler.outbox WHERE image ? 'apply'`))
	w.chargedOnce()
	p.stop()
}

// chargedOnce says that calls which failed, and no others, were counted. The process may have died before it wrote down
// that the last of them had failed.
func (w *crashWorld) chargedOnce() {
	w.t.Helper()
	charged := w.text(`SELECT string_agg(format('%s %s', key, attempts), ', ') FROM reconciler.tasks WHERE attempts > 0`)
	require.Contains(w.t, []string{fmt.Sprintf("1 %d", refusedCalls-1), fmt.Sprintf("1 %d", refusedCalls)}, charged)
}

// rolloutIs waits until a query about the rollout gives a value.
func (w *crashWorld) rolloutIs(what, sql, want string) {
	w.t.Helper()
	w.eventually(what, func() error {
		if is := w.text("coalesce((" + sql + "), '')"); is != want {
			return fmt.Errorf("it is %q, not %q", is, want)
		}
		return nil
	})
}
