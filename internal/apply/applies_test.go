package apply_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// appliesDB is a psqlDB with a third target, asia, and functions to do what leader and owners do with applies.
type appliesDB struct{ psqlDB }

const process = "'00000000-0000-0000-0000-000000000001'"

func newAppliesDB(t *testing.T) appliesDB {
	t.Helper()
	db := appliesDB{newPsqlDB(t)}
	db.Exec(t, `INSERT INTO reconciler.targets (name, configured, driver, owner, term, lease_ttl) VALUES ('asia', true, 'file', `+process+`, 1, '1 hour')`)
	db.tick(t, 11)
	db.record(t, "asia", 11)
	// What owners give up soon, tests wait for.
	db.Exec(t, "ALTER FUNCTION reconciler.settle_tasks SET lock_timeout = 0; ALTER FUNCTION reconciler.confirm_stops SET lock_timeout = 0")
	db.Exec(t, "INSERT INTO public.deployments (id, region) SELECT n, (ARRAY['asia', 'eu', 'us'])[1 + (n - 1) % 3] FROM generate_series(1, 9) AS n")
	return db
}

// begin changes rows as an apply, and returns its number.
func (d appliesDB) begin(t *testing.T, arguments, change string) int {
	t.Helper()
	var id int
	tx, err := d.Pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(t.Context()) }()
	require.NoError(t, tx.QueryRow(t.Context(), "SELECT reconciler.begin_apply("+arguments+")").Scan(&id))
	_, err = tx.Exec(t.Context(), change)
	require.NoError(t, err)
	require.NoError(t, tx.Commit(t.Context()))
	return id
}

// open does the leader's part, in pieces of so many rows.
func (d appliesDB) open(t *testing.T, id, piece int) {
	t.Helper()
	for range 100 {
		if d.line(t, fmt.Sprintf("SELECT reconciler.open_apply(%s, 1, %d, 12, %d)", process, id, piece)) == "t" {
			return
		}
	}
	require.FailNow(t, "it does not open")
}

// roll begins and opens an apply that changes every row.
func (d appliesDB) roll(t *testing.T, arguments string) int {
	t.Helper()
	id := d.begin(t, arguments, "UPDATE public.deployments SET image = image || '+'")
	d.open(t, id, 1000)
	return id
}

// claim does the part of a target's owner, and returns whether it has something to do.
func (d appliesDB) claim(t *testing.T, target string) bool {
	t.Helper()
	return d.line(t, claimSQL(target)) != "{}"
}

func claimSQL(target string) string {
	return fmt.Sprintf("SELECT c.operation_ids FROM reconciler.targets t, reconciler.claim_operations(t.id, t.owner, t.term, '30 s') AS c WHERE t.name = '%s'", target)
}

// settleSQL records a verdict for every pending task of an apply in a target.
func settleSQL(id int, target, verdict string) string {
	return fmt.Sprintf(`SELECT reconciler.settle_tasks(t.id, t.owner, t.term, array_agg(k.operation_id), array_agg(k.resource_id), array_agg(k.key), array_agg('%s'::text), array_agg('boom'::text), array_agg('spec'::bytea))
		FROM reconciler.targets t JOIN reconciler.operations o ON o.target_id = t.id JOIN reconciler.tasks k ON k.operation_id = o.id
		WHERE t.name = '%s' AND o.apply_id = %d AND k.state = 'pending' GROUP BY t.id`, verdict, target, id)
}

// finish claims a target and settles what is to be done there.
func (d appliesDB) finish(t *testing.T, id int, target, verdict string) {
	t.Helper()
	require.True(t, d.claim(t, target), "%s has nothing to do", target)
	d.lines(t, settleSQL(id, target, verdict))
}

func (d appliesDB) state(t *testing.T, id int) string {
	t.Helper()
	return d.line(t, fmt.Sprintf("SELECT state FROM reconciler.applies WHERE id = %d", id))
}

// phases are the phases of an apply's targets: asia, eu and us.
func (d appliesDB) phases(t *testing.T, id int) string {
	t.Helper()
	return d.line(t, fmt.Sprintf("SELECT string_agg(phase, ' ' ORDER BY target) FROM reconciler.apply_targets WHERE apply = %d", id))
}

// terminalEvents are what was written to the outbox for the ends of an apply.
func (d appliesDB) terminalEvents(t *testing.T, id int) []string {
	t.Helper()
	return d.lines(t, fmt.Sprintf(`SELECT l.was, l.state FROM reconciler.outbox o JOIN reconciler.apply_log l ON l.id = (o.image->>'event')::bigint
		WHERE o.image->>'apply' = '%d' AND l.apply_id = %d ORDER BY o.seq`, id, id))
}

// checkApplies fails if what is stored is not what would be derived now, or counts are wrong.
func (d appliesDB) checkApplies(t *testing.T) {
	t.Helper()
	require.Empty(t, d.lines(t, `
		SELECT a.id, a.state, reconciler.derive_apply(count(*) FILTER (WHERE o.state = 'pending'), count(*) FILTER (WHERE o.state = 'running'), count(*) FILTER (WHERE o.state = 'stopping'),
			count(*) FILTER (WHERE o.state = 'stopped'), count(*) FILTER (WHERE o.state = 'completed'), count(*) FILTER (WHERE o.state = 'superseded'), count(*) FILTER (WHERE o.state = 'failed'), count(*) FILTER (WHERE o.state = 'halted'),
			count(*) FILTER (WHERE o.state = 'cancelled'), bool_or(o.failed > 0 OR o.state = 'superseded' AND o.unproven), a.on_failure, a.wish, a.released)
		FROM reconciler.applies a JOIN reconciler.operations o ON o.apply_id = a.id WHERE a.opened_at IS NOT NULL GROUP BY a.id
		HAVING a.state <> reconciler.derive_apply(count(*) FILTER (WHERE o.state = 'pending'), count(*) FILTER (WHERE o.state = 'running'), count(*) FILTER (WHERE o.state = 'stopping'),
			count(*) FILTER (WHERE o.state = 'stopped'), count(*) FILTER (WHERE o.state = 'completed'), count(*) FILTER (WHERE o.state = 'superseded'), count(*) FILTER (WHERE o.state = 'failed'), count(*) FILTER (WHERE o.state = 'halted'),
			count(*) FILTER (WHERE o.state = 'cancelled'), bool_or(o.failed > 0 OR o.state = 'superseded' AND o.unproven), a.on_failure, a.wish, a.released)`))
	require.Empty(t, d.lines(t, `
		SELECT o.apply_id, o.target, o.tasks, o.completed, o.failed, o.superseded FROM reconciler.operations o JOIN reconciler.tasks k ON k.operation_id = o.id
		JOIN reconciler.applies a ON a.id = o.apply_id WHERE a.opened_at IS NOT NULL GROUP BY o.id
		HAVING (o.tasks, o.completed, o.failed, o.superseded) <> (count(*), count(*) FILTER (WHERE k.state = 'completed'), count(*) FILTER (WHERE k.state = 'failed'), count(*) FILTER (WHERE k.state = 'superseded'))
			OR o.done <> (o.completed_at IS NOT NULL AND NOT bool_or(k.governs))`))
}

// C58: rolling, with each way to deal with a failure.
func TestApplyRolls(t *testing.T) {
	t.Parallel()

	t.Run("OneTargetAfterTheOther", func(t *testing.T) {
		t.Parallel()
		db := newAppliesDB(t)
		id := db.roll(t, "'release 42'")
		require.Equal(t, "pending", db.state(t, id))
		require.Equal(t, "next waiting waiting", db.phases(t, id))
		require.False(t, db.claim(t, "us"))
		require.False(t, db.claim(t, "eu"))
		db.finish(t, id, "asia", "done")
		require.Equal(t, "running", db.state(t, id), "completed and pending is running")
		require.Equal(t, "completed next waiting", db.phases(t, id))
		require.False(t, db.claim(t, "us"))
		db.finish(t, id, "eu", "done")
		db.finish(t, id, "us", "done")
		require.Equal(t, "completed", db.state(t, id))
		require.Equal(t, []string{"running | completed"}, db.terminalEvents(t, id))
		require.Equal(t, "t | t | ", db.line(t, fmt.Sprintf("SELECT started_at < completed_at, opened_at < started_at, error_message FROM reconciler.applies WHERE id = %d", id)))
		db.checkApplies(t)
	})

	t.Run("HaltsAndNamesTheFirstThatFailed", func(t *testing.T) {
		t.Parallel()
		db := newAppliesDB(t)
		id := db.roll(t, "'release 42'")
		db.finish(t, id, "asia", "done")
		db.finish(t, id, "eu", "failed")
		require.Equal(t, "failed", db.state(t, id))
		require.Equal(t, "completed failed halted", db.phases(t, id))
		require.Equal(t, "eu failed: 2: boom", db.line(t, fmt.Sprintf("SELECT error FROM reconciler.apply_status WHERE id = %d", id)))
		require.False(t, db.claim(t, "us"))
		require.Equal(t, []string{"running | failed"}, db.terminalEvents(t, id))

		require.Equal(t, fmt.Sprintf("3 objects of apply %d to be tried again, it is running", id), db.line(t, fmt.Sprintf("SELECT reconciler.apply_retry(%d)", id)))
		require.Equal(t, "completed next waiting", db.phases(t, id))
		require.Equal(t, "t", db.line(t, fmt.Sprintf("SELECT completed_at IS NULL AND error_message IS NULL FROM reconciler.applies WHERE id = %d", id)))
		db.finish(t, id, "eu", "done")
		db.finish(t, id, "us", "done")
		require.Equal(t, []string{"running | failed", "running | completed"}, db.terminalEvents(t, id), "one for each end")
		require.Equal(t, "2", db.line(t, fmt.Sprintf("SELECT claims FROM reconciler.apply_targets WHERE apply = %d AND target = 'eu'", id)))
		db.checkApplies(t)
	})

	t.Run("ContinuesAndFailsAllTheSame", func(t *testing.T) {
		t.Parallel()
		db := newAppliesDB(t)
		id := db.roll(t, "'release 42', 'continue'")
		db.finish(t, id, "asia", "failed")
		require.Equal(t, "degraded", db.state(t, id))
		db.finish(t, id, "eu", "done")
		db.finish(t, id, "us", "done")
		require.Equal(t, "failed", db.state(t, id))
		require.Equal(t, []string{"degraded | failed"}, db.terminalEvents(t, id))
		db.checkApplies(t)
	})

	t.Run("PausesUntilReleased", func(t *testing.T) {
		t.Parallel()
		db := newAppliesDB(t)
		id := db.roll(t, "'release 42', 'pause'")
		db.finish(t, id, "asia", "failed")
		require.Equal(t, "paused", db.state(t, id))
		require.Equal(t, fmt.Sprintf("paused: asia failed; SELECT reconciler.apply_release(%d);", id), db.line(t, fmt.Sprintf("SELECT detail FROM reconciler.apply_targets WHERE apply = %d AND target = 'eu'", id)))
		require.False(t, db.claim(t, "eu"))
		require.Equal(t, fmt.Sprintf("apply %d goes on, it is degraded", id), db.line(t, fmt.Sprintf("SELECT reconciler.apply_release(%d)", id)))
		db.finish(t, id, "eu", "failed")
		db.finish(t, id, "us", "done")
		require.Equal(t, "failed", db.state(t, id))
		require.Equal(t, "asia failed: 1: boom", db.line(t, fmt.Sprintf("SELECT error FROM reconciler.apply_status WHERE id = %d", id)))
		db.checkApplies(t)
	})
}

// C58: the other orders.
func TestApplyRollsInWavesAndInParallel(t *testing.T) {
	t.Parallel()

	t.Run("InWavesWithSoakTime", func(t *testing.T) {
		t.Parallel()
		db := newAppliesDB(t)
		id := db.roll(t, `'x', strategy => 'waves', waves => '[["us"], ["eu"]]', soak => '1 hour'`)
		require.Equal(t, "waiting waiting next", db.phases(t, id))
		db.finish(t, id, "us", "done")
		require.Equal(t, "waiting soaking completed", db.phases(t, id))
		require.Greater(t, db.line(t, "SELECT again FROM reconciler.targets t, reconciler.claim_operations(t.id, t.owner, t.term, '30 s') WHERE t.name = 'eu'"), "3")
		db.Exec(t, "UPDATE reconciler.operations SET completed_at = completed_at - interval '2 hours' WHERE completed_at IS NOT NULL")
		require.Equal(t, "waiting next completed", db.phases(t, id))
		db.Exec(t, "UPDATE reconciler.targets SET trouble = 'reload fails' WHERE name = 'us'")
		require.Equal(t, "waiting for us: reload fails", db.line(t, fmt.Sprintf("SELECT detail FROM reconciler.apply_targets WHERE apply = %d AND target = 'eu'", id)))
		require.False(t, db.claim(t, "eu"))
	})

	t.Run("InParallel", func(t *testing.T) {
		t.Parallel()
		db := newAppliesDB(t)
		id := db.roll(t, "'x', strategy => 'parallel'")
		require.Equal(t, "next next next", db.phases(t, id))
		for _, target := range []string{"us", "asia", "eu"} {
			require.True(t, db.claim(t, target))
		}
		db.lines(t, settleSQL(id, "us", "failed"))
		require.Equal(t, "degraded", db.state(t, id), "terminal only when every operation is settled")
		db.lines(t, settleSQL(id, "eu", "done"))
		db.lines(t, settleSQL(id, "asia", "done"))
		require.Equal(t, "failed", db.state(t, id))
		db.checkApplies(t)
	})
}

// C61: attempts are counted for each object, and an operation has its own budget.
func TestApplySpendsAttempts(t *testing.T) {
	t.Parallel()
	db := newAppliesDB(t)
	id := db.roll(t, "'x', attempts => 3, strategy => 'parallel'")
	require.True(t, db.claim(t, "eu"))
	require.True(t, db.claim(t, "us"))
	db.lines(t, settleSQL(id, "eu", "attempt"))
	db.lines(t, settleSQL(id, "eu", "attempt"))
	require.Equal(t, "running", db.state(t, id))
	require.Equal(t, "next retrying running", db.phases(t, id))
	require.Equal(t, "0 of 3 objects; 3 retrying, attempt 3", db.line(t, fmt.Sprintf("SELECT detail FROM reconciler.apply_targets WHERE apply = %d AND target = 'eu'", id)))
	db.lines(t, settleSQL(id, "eu", "attempt"))
	require.Equal(t, "halted failed running", db.phases(t, id))
	require.Equal(t, "0", db.line(t, fmt.Sprintf("SELECT sum(attempts) FROM reconciler.apply_tasks WHERE apply = %d AND target = 'us'", id)))
	db.checkApplies(t)
}

// C62: a newer apply takes an object over, whichever is opened first; the older one settles.
func TestApplyIsSuperseded(t *testing.T) {
	t.Parallel()
	for _, newerFirst := range []bool{false, true} {
		t.Run(fmt.Sprint("NewerFirst", newerFirst), func(t *testing.T) {
			t.Parallel()
			db := newAppliesDB(t)
			older := db.begin(t, "'older'", "UPDATE public.deployments SET image = 'app:2' WHERE id < 4")
			newer := db.begin(t, "'newer'", "UPDATE public.deployments SET image = 'app:3' WHERE id IN (1, 2)")
			if newerFirst {
				db.open(t, newer, 1)
				db.open(t, older, 1)
			} else {
				db.open(t, older, 1)
				db.open(t, newer, 1)
			}
			require.Equal(t, []string{"1 | superseded | f", "2 | superseded | f", "3 | pending | t"}, db.lines(t, fmt.Sprintf("SELECT key, state, held FROM reconciler.apply_tasks WHERE apply = %d ORDER BY key", older)))
			require.Equal(t, []string{"1 | pending | t", "2 | pending | t"}, db.lines(t, fmt.Sprintf("SELECT key, state, held FROM reconciler.apply_tasks WHERE apply = %d ORDER BY key", newer)))
			require.Equal(t, "superseded superseded next", db.phases(t, older), "where nothing is left to do it is done")
			db.finish(t, older, "us", "done")
			require.Equal(t, "superseded", db.state(t, older))
			db.finish(t, newer, "asia", "done")
			db.finish(t, newer, "eu", "done")
			require.Equal(t, "completed", db.state(t, newer))
			require.Len(t, db.terminalEvents(t, older), 1)
			db.checkApplies(t)
		})
	}
}

// What an apply of nothing does: it completes, and nobody waits for it.
func TestApplyOfNothing(t *testing.T) {
	t.Parallel()
	db := newAppliesDB(t)
	id := db.begin(t, "'nothing'", "SELECT 1")
	require.Equal(t, "1", db.line(t, fmt.Sprintf("SELECT count(*) FROM reconciler.outbox WHERE xid = (SELECT xid FROM reconciler.applies WHERE id = %d)", id)), "the leader looks")
	db.open(t, id, 10)
	require.Equal(t, "completed", db.state(t, id))
	require.Equal(t, []string{"pending | completed"}, db.terminalEvents(t, id))
}

func TestApplyBeginsOncePerTransaction(t *testing.T) {
	t.Parallel()
	db := newAppliesDB(t)
	tx, err := db.Pool.Begin(t.Context())
	require.NoError(t, err)
	first := lines(t, tx, "SELECT reconciler.begin_apply('one')")
	lines(t, tx, "SAVEPOINT s")
	require.Equal(t, first, lines(t, tx, "SELECT reconciler.begin_apply('two', 'continue')"), "a savepoint is the same transaction")
	lines(t, tx, "ROLLBACK TO s")
	require.Equal(t, first, lines(t, tx, "SELECT reconciler.begin_apply('three')"))
	require.NoError(t, tx.Rollback(t.Context()))
	require.Equal(t, "0 | 0", db.line(t, "SELECT (SELECT count(*) FROM reconciler.applies), (SELECT count(*) FROM reconciler.outbox WHERE resource_id = 0)"))
}

// set_applies: the first row of a transaction that is written down begins the apply, whatever else the transaction does.
func TestEachTransactionIsAnApply(t *testing.T) {
	t.Parallel()
	db := newAppliesDB(t)
	titles := func() []string {
		return db.lines(t, "SELECT title, strategy, automatic FROM reconciler.applies ORDER BY id")
	}
	require.Equal(t, "each transaction that changes deployments is an apply from now on", db.line(t, "SELECT reconciler.set_applies('deployments', true, soak => '1 min')"))
	require.Equal(t, "unchanged", db.line(t, "SELECT reconciler.set_applies('deployments', true, soak => '1 min')"))

	db.Exec(t, "UPDATE public.deployments SET image = image")
	require.Empty(t, titles(), "nothing has changed")
	tx := db.inTx(t, "UPDATE public.deployments SET image = 'lost' WHERE id = 1")
	require.NoError(t, tx.Rollback(t.Context()))
	tx = db.inTx(t, "SAVEPOINT s")
	lines(t, tx, "UPDATE public.deployments SET image = 'lost' WHERE id = 1")
	lines(t, tx, "ROLLBACK TO s")
	require.NoError(t, tx.Commit(t.Context()))
	require.Empty(t, titles(), "nothing was committed")

	db.Exec(t, "BEGIN; UPDATE public.deployments SET image = 'app:3'; UPDATE public.deployments SET image = 'app:4' WHERE id < 5; COMMIT")
	require.Equal(t, []string{"change of deployments | rolling | t"}, titles())
	db.open(t, 1+2, 10) // two numbers were taken by what was rolled back
	require.Equal(t, "9 | 00:01:00", db.line(t, "SELECT (SELECT count(*) FROM reconciler.tasks), soak FROM reconciler.applies"), "as set_applies says")

	db.Exec(t, "BEGIN; UPDATE public.deployments SET image = 'app:5'; SELECT reconciler.begin_apply('release 5', strategy => 'parallel'); UPDATE public.deployments SET image = 'app:6'; COMMIT")
	db.Exec(t, "TRUNCATE public.deployments")
	require.Equal(t, []string{"change of deployments | rolling | t", "release 5 | parallel | f", "change of deployments | rolling | t"}, titles(), "a person's word comes first")

	require.Equal(t, "changes of deployments are no applies any more, by themselves", db.line(t, "SELECT reconciler.set_applies('deployments', false)"))
	db.Exec(t, "INSERT INTO public.deployments (id, region) VALUES (1, 'eu')")
	require.Len(t, titles(), 3)
}

func TestSetAppliesRefusesNonsense(t *testing.T) {
	t.Parallel()
	db := newAppliesDB(t)
	for call, says := range map[string]string{
		"set_applies('deploymnt', true)":                              "no resource is named 'deploymnt'\nResources: deployments",
		"set_applies(NULL, true)":                                     "resource is NULL",
		"set_applies('deployments', NULL)":                            "enabled is NULL",
		"set_applies('deployments', true, strategy => 'canary')":      "strategy must be 'rolling', 'parallel' or 'waves', not 'canary'",
		"begin_resync('deploymnt')":                                   "no resource is named 'deploymnt'\nResources: deployments",
		"begin_resync(NULL)":                                          "resource is NULL: name a resource\nResources: deployments",
		"begin_resync('deployments', targets => '{moon}')":            "no running process has a target 'moon'\nTargets: asia, eu, us",
		"begin_resync('deployments', keys => '{1}')":                  "no target has object '1' of resource deployments",
		"begin_resync('deployments', strategy => 'waves')":            `strategy 'waves' needs waves, such as '[["eu"], ["us", "asia"]]'`,
		"track('x', 'reconciler.applies', '{id}', target => '''x''')": "reconciler.applies belongs to reconciler itself: each of its changes would make another\nOf its tables only reconciler.apply_events can be tracked.",
	} {
		require.Equal(t, says, refusal(t, db.Pool, "SELECT reconciler."+call), call)
	}
	db.Exec(t, "SELECT reconciler.track('event', 'reconciler.apply_events', '{id}', target => '''chat''')")
	require.Equal(t, "resource event is made of the ends of applies: each would begin another", refusal(t, db.Pool, "SELECT reconciler.set_applies('event', true)"))
	require.Equal(t, "0", db.line(t, "SELECT count(*) FROM reconciler.applies"), "nothing is half done")
}

func TestApplyWholeResource(t *testing.T) {
	t.Parallel()
	db := newAppliesDB(t)
	db.ledger(t, "eu", "2", "applied", "")
	db.ledger(t, "us", "3", "applied", "")
	id := db.begin(t, "'empty it'", "TRUNCATE public.deployments")
	db.open(t, id, 10)
	require.Equal(t, []string{"eu | 2", "us | 3"}, db.lines(t, fmt.Sprintf("SELECT target, key FROM reconciler.apply_tasks WHERE apply = %d ORDER BY 1, 2", id)))
}

// A restore may bring transaction ids again; what was not opened before it can never be.
func TestApplyOfAnEarlierEpochFails(t *testing.T) {
	t.Parallel()
	db := newAppliesDB(t)
	id := db.begin(t, "'x'", "UPDATE public.deployments SET image = 'app:2'")
	db.Exec(t, "UPDATE reconciler.installation SET epoch = epoch + 1")
	db.open(t, id, 10)
	require.Equal(t, "failed | it could not be opened, and its changes are applied as if there was none: the database was restored before its changes were read",
		db.line(t, fmt.Sprintf("SELECT state, error FROM reconciler.apply_status WHERE id = %d", id)))
	require.Equal(t, "0", db.line(t, "SELECT count(*) FROM reconciler.operations"))
}

func TestApplyForgetsATarget(t *testing.T) {
	t.Parallel()
	db := newAppliesDB(t)
	id := db.roll(t, "'x'")
	db.finish(t, id, "asia", "done")
	db.Exec(t, "UPDATE reconciler.targets SET configured = false WHERE name = 'eu'")
	db.lines(t, "SELECT reconciler.release('eu')")
	require.Equal(t, "completed cancelled next", db.phases(t, id))
	db.finish(t, id, "us", "done")
	require.Equal(t, "cancelled", db.state(t, id))
}

func TestApplyLogIsOnlyAddedTo(t *testing.T) {
	t.Parallel()
	db := newAppliesDB(t)
	id := db.roll(t, "'x'")
	require.Equal(t, "rows of reconciler.apply_log are only added", refusal(t, db.Pool, "UPDATE reconciler.apply_log SET why = 'x'"))
	require.Equal(t, "rows of reconciler.apply_log are only added", refusal(t, db.Pool, "DELETE FROM reconciler.apply_log"))
	db.Exec(t, "DELETE FROM reconciler.applies WHERE id = $1", id)
	require.Empty(t, db.lines(t, "SELECT * FROM reconciler.apply_log"))
}
