package apply_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// settleAs records a verdict about a spec for every task of an apply in a target that its owner looks at.
func (d appliesDB) settleAs(t *testing.T, id int, target, verdict, spec string) {
	t.Helper()
	d.lines(t, fmt.Sprintf(`SELECT reconciler.settle_tasks(t.id, t.owner, t.term, array_agg(k.operation_id), array_agg(k.resource_id), array_agg(k.key), array_agg('%s'::text),
			array_agg('boom'::text), array_agg('%s'::bytea))
		FROM reconciler.targets t JOIN reconciler.operations o ON o.target_id = t.id JOIN reconciler.tasks k ON k.operation_id = o.id
		WHERE t.name = '%s' AND o.apply_id = %d AND k.governs AND o.is_open GROUP BY t.id`, verdict, spec, target, id))
}

func (d appliesDB) next(t *testing.T, id int) string {
	t.Helper()
	return d.line(t, fmt.Sprintf("SELECT next FROM reconciler.apply_status WHERE id = %d", id))
}

// failIn has an apply of all rows fail in asia, its first target.
func (d appliesDB) failIn(t *testing.T, id int) {
	t.Helper()
	require.True(t, d.claim(t, "asia"))
	d.settleAs(t, id, "asia", "failed", "spec")
	require.Equal(t, "failed halted halted", d.phases(t, id))
	require.Equal(t, "Mend it, then try what failed again: SELECT reconciler.apply_retry(1); When that succeeds it goes on with 6 objects in 2 targets. Or correct the rows, as a new apply. "+
		"6 objects in 2 targets keep what the targets have; to let them follow their rows: SELECT reconciler.apply_release(1);", d.next(t, id))
}

const nothingToTry = "nothing of apply 1 can be tried again: its rows were changed since, or no call can be made for it"

// F184: where the rows of the target that failed are put back, no hint that was printed before starts the release in the others.
func TestF184_RetryStartsNothingOfAReleaseThatWasPutBack(t *testing.T) {
	t.Parallel()
	putBack := map[string]func(t *testing.T, db appliesDB, id int){
		"ByANewerApply": func(t *testing.T, db appliesDB, _ int) {
			t.Helper()
			newer := db.begin(t, "'back'", "UPDATE public.deployments SET image = 'app:1' WHERE region = 'asia'")
			db.open(t, newer, 1000)
			db.finish(t, newer, "asia", "done")
		},
		"ByARow":    func(t *testing.T, db appliesDB, id int) { t.Helper(); db.settleAs(t, id, "asia", "done", "good") },
		"ByADelete": func(t *testing.T, db appliesDB, id int) { t.Helper(); db.settleAs(t, id, "asia", "done", "") },
		"AfterRetry": func(t *testing.T, db appliesDB, id int) {
			t.Helper()
			db.lines(t, fmt.Sprintf("SELECT reconciler.apply_retry(%d)", id))
			require.True(t, db.claim(t, "asia"))
			db.settleAs(t, id, "asia", "done", "good")
		},
	}
	for name, back := range putBack {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newAppliesDB(t)
			id := db.roll(t, "'release 42'")
			db.failIn(t, id)
			back(t, db, id)
			for range 2 {
				require.Equal(t, "failed", db.state(t, id))
				require.Equal(t, "superseded halted halted", db.phases(t, id))
				require.Equal(t, "asia failed: 1: boom", db.line(t, fmt.Sprintf("SELECT error FROM reconciler.apply_status WHERE id = %d", id)))
				require.Equal(t, "Nothing more comes of it. 6 objects in 2 targets keep what the targets have; to let them follow their rows: SELECT reconciler.apply_release(1);", db.next(t, id))
				require.False(t, db.claim(t, "eu"))
				require.False(t, db.claim(t, "us"))
				require.Equal(t, nothingToTry, db.line(t, fmt.Sprintf("SELECT reconciler.apply_retry(%d)", id)))
			}
			db.checkApplies(t)
			// The command of its own says how much it starts, and starts that.
			require.Equal(t, "6 objects in 2 targets of apply 1 follow their rows again", db.line(t, fmt.Sprintf("SELECT reconciler.apply_release(%d)", id)))
			require.True(t, db.claim(t, "eu"))
			require.True(t, db.claim(t, "us"))
		})
	}
}

// F184: an object that failed with one spec and is applied with another proves nothing, also before its attempts are spent.
func TestF184_AnotherSpecDoesNotLetTheRolloutGoOn(t *testing.T) {
	t.Parallel()
	db := newAppliesDB(t)
	id := db.roll(t, "'release 42'")
	require.True(t, db.claim(t, "asia"))
	db.settleAs(t, id, "asia", "attempt", "spec")
	db.settleAs(t, id, "asia", "attempt", "worse")
	db.settleAs(t, id, "asia", "done", "good")
	require.Equal(t, "superseded halted halted", db.phases(t, id))
	require.Equal(t, "failed", db.state(t, id))
	require.Equal(t, []string{"running | failed"}, db.terminalEvents(t, id))
	require.False(t, db.claim(t, "eu"))
	db.checkApplies(t)

	again := db.roll(t, "'release 43'")
	require.True(t, db.claim(t, "asia"))
	db.settleAs(t, again, "asia", "attempt", "spec")
	db.settleAs(t, again, "asia", "done", "spec")
	require.Equal(t, "completed next waiting", db.phases(t, again), "the same spec has succeeded")
	db.checkApplies(t)
}

// F184: what stands beside the target that failed, in its wave or in parallel, waits until that has the same spec.
func TestF184_RetryStartsOthersAfterItsSuccess(t *testing.T) {
	t.Parallel()
	for _, strategy := range []string{`'rolling'`, `'parallel'`, `'waves', waves => '[["asia", "eu", "us"]]'`} {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			db := newAppliesDB(t)
			id := db.roll(t, "'release 42', strategy => "+strategy)
			db.failIn(t, id)
			require.Equal(t, "3 objects of apply 1 to be tried again, it is pending", db.line(t, fmt.Sprintf("SELECT reconciler.apply_retry(%d)", id)))
			require.Equal(t, "next waiting waiting", db.phases(t, id))
			require.False(t, db.claim(t, "eu"))
			require.True(t, db.claim(t, "asia"))
			require.False(t, db.claim(t, "eu"))
			db.settleAs(t, id, "asia", "failed", "spec")
			require.Equal(t, "failed halted halted", db.phases(t, id))
			db.lines(t, fmt.Sprintf("SELECT reconciler.apply_retry(%d)", id))
			require.True(t, db.claim(t, "asia"))
			db.settleAs(t, id, "asia", "done", "spec")
			require.True(t, db.claim(t, "eu"))
			db.checkApplies(t)
		})
	}
}

// F185: what was rolled back everywhere is superseded, and that is no second end.
func TestF185_ARolledBackApplyIsSuperseded(t *testing.T) {
	t.Parallel()
	db := newAppliesDB(t)
	id := db.roll(t, "'release 42'")
	db.failIn(t, id)
	back := db.begin(t, "'back'", "UPDATE public.deployments SET image = 'app:1'")
	db.open(t, back, 1000)
	ended := "SELECT completed_at FROM reconciler.applies WHERE id = 1"
	before := db.line(t, ended)
	for range 2 {
		require.Equal(t, "superseded", db.state(t, id))
		require.Equal(t, "superseded superseded superseded", db.phases(t, id))
		require.Equal(t, []string{"running | failed"}, db.terminalEvents(t, id), "it ended once")
		require.Equal(t, "failed", db.line(t, "SELECT string_agg(state, ' ') FROM reconciler.apply_events WHERE apply_id = 1"))
		require.Equal(t, before, db.line(t, ended))
		require.Equal(t, "Nothing: newer changes have taken 9 of its 9 objects.", db.next(t, id))
		require.Equal(t, "superseded | asia failed: 1: boom | Nothing: newer changes have taken 9 of its 9 objects. | f", db.line(t, "SELECT * FROM reconciler.apply_wait(1)"))
		require.Equal(t, "apply 1 is superseded, so it cannot be tried again\nNothing: newer changes have taken 9 of its 9 objects.", refusal(t, db.Pool, "SELECT reconciler.apply_retry(1)"))
		require.Equal(t, "apply 1 is superseded and holds nothing", db.line(t, "SELECT reconciler.apply_release(1)"))
		require.Equal(t, "f", db.line(t, "SELECT bool_or(NOT done) FROM reconciler.operations WHERE apply_id = 1"))
	}
	db.finish(t, back, "asia", "done")
	db.finish(t, back, "eu", "done")
	db.finish(t, back, "us", "done")
	require.Equal(t, "completed", db.state(t, back))
	db.checkApplies(t)
}

// F185, F40: an apply is completed when every object of it was applied, and superseded where newer ones took some.
func TestF185_AnApplyThatLostObjectsIsNotCompleted(t *testing.T) {
	t.Parallel()
	db := newAppliesDB(t)
	id := db.roll(t, "'release 42'")
	db.finish(t, id, "asia", "done")
	newer := db.begin(t, "'hotfix'", "UPDATE public.deployments SET image = 'app:43' WHERE id = 2")
	db.open(t, newer, 1000)
	db.finish(t, id, "eu", "done")
	require.Equal(t, "completed superseded next", db.phases(t, id), "nothing has failed: it goes on")
	db.finish(t, id, "us", "done")
	require.Equal(t, "superseded", db.state(t, id))
	require.Equal(t, "8 | 1", db.line(t, "SELECT completed, superseded FROM reconciler.apply_status WHERE id = 1"))
	require.Equal(t, []string{"running | superseded"}, db.terminalEvents(t, id))
	require.Equal(t, "Nothing: newer changes have taken 1 of its 9 objects.", db.next(t, id))
	db.checkApplies(t)
}

// An object whose attempts are spent and that is applied all the same with that spec keeps its verdict, until it is tried again.
func TestApplyThatFailedKeepsItsVerdict(t *testing.T) {
	t.Parallel()
	db := newAppliesDB(t)
	id := db.roll(t, "'release 42'")
	db.failIn(t, id)
	db.settleAs(t, id, "asia", "done", "spec")
	require.Equal(t, "failed halted halted", db.phases(t, id))
	require.Equal(t, "t", db.line(t, "SELECT done FROM reconciler.operations WHERE target = 'asia'"))
	db.checkApplies(t)
	require.Equal(t, "3 objects of apply 1 to be tried again, it is pending", db.line(t, "SELECT reconciler.apply_retry(1)"))
	db.finish(t, id, "asia", "done")
	require.Equal(t, "completed next waiting", db.phases(t, id))
	db.checkApplies(t)
}

// With 'pause' it goes on past a target that failed by a command that says with how much, also when that target's rows were put back.
func TestF184_PausedApplySaysWhatItGoesOnWith(t *testing.T) {
	t.Parallel()
	db := newAppliesDB(t)
	id := db.roll(t, "'release 42', 'pause'")
	require.True(t, db.claim(t, "asia"))
	db.settleAs(t, id, "asia", "failed", "spec")
	const onward = "To go on with 6 objects in 2 targets in spite of that: SELECT reconciler.apply_release(1);"
	require.Equal(t, "Mend it, then try what failed again: SELECT reconciler.apply_retry(1); "+onward, db.next(t, id))
	db.settleAs(t, id, "asia", "done", "good")
	require.Equal(t, "paused", db.state(t, id))
	require.Equal(t, "superseded paused paused", db.phases(t, id))
	require.Equal(t, onward, db.next(t, id))
	require.Equal(t, nothingToTry, db.line(t, "SELECT reconciler.apply_retry(1)"))
	require.False(t, db.claim(t, "eu"))
	db.lines(t, "SELECT reconciler.apply_release(1)")
	require.True(t, db.claim(t, "eu"))
	db.checkApplies(t)
}

// What has failed is tried on at its own pace: a stop or a cancel does not hold it for ever.
func TestApplyThatIsStoppedOrCancelledDoesNotHoldWhatHasFailed(t *testing.T) {
	t.Parallel()
	settleOne := `SELECT reconciler.settle_tasks(t.id, t.owner, t.term, ARRAY[k.operation_id], ARRAY[k.resource_id], ARRAY[k.key], '{failed}', '{boom}', '{spec}')
		FROM reconciler.targets t JOIN reconciler.tasks k ON k.target_id = t.id WHERE t.name = 'asia' AND k.key = '1'`
	confirm := "SELECT reconciler.confirm_stops(t.id, t.owner, t.term, ARRAY(SELECT o.id FROM reconciler.operations o WHERE o.state = 'stopping')) FROM reconciler.targets t WHERE t.name = 'asia'"
	const failing = "SELECT count(*), bool_or(held) FROM reconciler.apply_tasks WHERE target = 'asia' AND state = 'failed'"

	t.Run("Cancelled", func(t *testing.T) {
		t.Parallel()
		db := newAppliesDB(t)
		id := db.roll(t, "'release 42'")
		require.True(t, db.claim(t, "asia"))
		db.lines(t, settleOne)
		db.lines(t, "SELECT reconciler.apply_cancel(1)")
		db.lines(t, confirm)
		require.Equal(t, "cancelled cancelled cancelled", db.phases(t, id))
		require.Equal(t, "1 | f", db.line(t, failing))
		db.checkApplies(t)
	})

	t.Run("StoppedDuringItsLastCall", func(t *testing.T) {
		t.Parallel()
		db := newAppliesDB(t)
		id := db.roll(t, "'release 42'")
		require.True(t, db.claim(t, "asia"))
		db.lines(t, "SELECT reconciler.apply_stop(1)")
		db.lines(t, settleSQL(id, "asia", "failed"))
		require.Equal(t, "failed stopped stopped", db.phases(t, id))
		require.Equal(t, "3 | f", db.line(t, failing))
		db.checkApplies(t)
		db.lines(t, "SELECT reconciler.apply_start(1)")
		require.Equal(t, "failed halted halted", db.phases(t, id))
	})
}

// F44: an object whose key is too long is no object: no command tries it again, and none is proposed.
func TestF184_RetryOfAKeyThatIsTooLongIsNotProposed(t *testing.T) {
	t.Parallel()
	db := newAppliesDB(t)
	id := db.begin(t, "'release 42'", `UPDATE public.deployments SET image = 'app:2' WHERE id IN (2, 3);
		INSERT INTO reconciler.outbox (resource_id, target, key) SELECT id, 'asia', 'long... (sha256 ' || repeat('0', 64) || ')' FROM reconciler.resources WHERE name = 'deployments'`)
	db.open(t, id, 1000)
	require.Equal(t, "failed halted halted", db.phases(t, id))
	require.Equal(t, "Nothing more comes of it. 2 objects in 2 targets keep what the targets have; to let them follow their rows: SELECT reconciler.apply_release(1);", db.next(t, id))
	require.Equal(t, nothingToTry, db.line(t, "SELECT reconciler.apply_retry(1)"))
	require.Equal(t, "failed halted halted", db.phases(t, id))
	db.checkApplies(t)
}

// F42: a target that is tried again does not wait for another that has failed too.
func TestF184_RetryOfOneTargetOfTwoThatFailed(t *testing.T) {
	t.Parallel()
	db := newAppliesDB(t)
	id := db.roll(t, "'release 42', strategy => 'waves', waves => '[[\"asia\", \"eu\"]]'")
	require.True(t, db.claim(t, "asia"))
	require.True(t, db.claim(t, "eu"))
	db.settleAs(t, id, "asia", "failed", "spec")
	db.settleAs(t, id, "eu", "failed", "spec")
	require.Equal(t, "failed failed halted", db.phases(t, id))
	db.lines(t, "SELECT reconciler.apply_retry(1, 'eu')")
	require.Equal(t, "failed next halted", db.phases(t, id))
	db.finish(t, id, "eu", "done")
	require.Equal(t, "failed completed halted", db.phases(t, id))
	db.lines(t, "SELECT reconciler.apply_retry(1)")
	db.finish(t, id, "asia", "done")
	require.Equal(t, "completed completed next", db.phases(t, id))
	db.checkApplies(t)
}
