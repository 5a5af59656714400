package apply_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// patience is how long a test waits for what must come.
const patience = pgtest.Patience

// inTx begins a transaction on a connection of its own and runs a statement in it.
func (d appliesDB) inTx(t *testing.T, sql string) pgx.Tx {
	t.Helper()
	tx, err := d.Conn(t).Begin(t.Context())
	require.NoError(t, err)
	lines(t, tx, sql)
	return tx
}

// blocked runs a statement on a connection of its own and returns, once it waits for a lock, a channel that is closed when
// it has ended.
func (d appliesDB) blocked(t *testing.T, sql string) <-chan error {
	t.Helper()
	conn := d.Conn(t)
	ended := make(chan error, 1)
	go func() {
		_, err := conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
		ended <- err
	}()
	require.Eventually(t, func() bool {
		return d.line(t, fmt.Sprintf("SELECT cardinality(pg_blocking_pids(%d)) > 0", conn.PgConn().PID())) == "t"
	}, patience, 5*time.Millisecond, "it waits for nobody: %s", sql)
	return ended
}

// runs is Exec for a goroutine, which cannot end the test.
func (d appliesDB) runs(t *testing.T, sql string) {
	t.Helper()
	_, err := d.Pool.Exec(t.Context(), sql)
	assert.NoError(t, err, sql)
}

func ends(t *testing.T, ended <-chan error) {
	t.Helper()
	select {
	case err := <-ended:
		require.NoError(t, err)
	case <-time.After(patience):
		require.FailNow(t, "it does not end")
	}
}

// C57: of two operations that end at once the second sees the first, and the apply ends once.
func TestApplyTwoFinishersAtOnce(t *testing.T) {
	t.Parallel()
	db := newAppliesDB(t)
	id := db.roll(t, "'x', strategy => 'parallel'")
	for _, target := range []string{"asia", "eu", "us"} {
		require.True(t, db.claim(t, target))
	}
	db.lines(t, settleSQL(id, "us", "done"))
	first := db.inTx(t, settleSQL(id, "asia", "done"))
	second := db.blocked(t, settleSQL(id, "eu", "done"))
	require.NoError(t, first.Commit(t.Context()))
	ends(t, second)
	require.Equal(t, "completed", db.state(t, id))
	require.Equal(t, []string{"running | completed"}, db.terminalEvents(t, id))
	db.checkApplies(t)
}

// C57 as it comes, many times, with failures among them.
func TestApplyFinishersInACrowd(t *testing.T) {
	t.Parallel()
	db := newAppliesDB(t)
	for round := range pgtest.Pick(20, 1000) {
		id := db.roll(t, "'x', 'continue', 'parallel'")
		targets := []string{"asia", "eu", "us"}
		for _, target := range targets {
			require.True(t, db.claim(t, target))
		}
		var crowd sync.WaitGroup
		for i, target := range targets {
			verdict := map[bool]string{false: "done", true: "failed"}[round%4 == i]
			crowd.Go(func() { db.runs(t, settleSQL(id, target, verdict)) })
		}
		crowd.Wait()
		require.Equal(t, map[bool]string{false: "completed", true: "failed"}[round%4 < 3], db.state(t, id))
		require.Len(t, db.terminalEvents(t, id), 1)
	}
	db.checkApplies(t)
}

// C59: a claim that finds a stop under way claims nothing and does not wait for it; one after it claims nothing.
func TestApplyStopBeatsClaim(t *testing.T) {
	t.Parallel()
	db := newAppliesDB(t)
	id := db.roll(t, "'x'")
	stop := db.inTx(t, fmt.Sprintf("SELECT reconciler.apply_stop(%d)", id))
	require.False(t, db.claim(t, "asia"), "a person's open transaction costs the owner a turn, not the target")
	require.NoError(t, stop.Commit(t.Context()))
	require.False(t, db.claim(t, "asia"))
	require.Equal(t, "stopped", db.state(t, id))
}

// C59: a stop that finds a claim under way waits for it, and stops what was claimed.
func TestApplyStopAfterClaim(t *testing.T) {
	t.Parallel()
	db := newAppliesDB(t)
	id := db.roll(t, "'x'")
	claim := db.inTx(t, claimSQL("asia"))
	stop := db.blocked(t, fmt.Sprintf("SELECT reconciler.apply_stop(%d)", id))
	require.NoError(t, claim.Commit(t.Context()))
	ends(t, stop)
	require.Equal(t, "stopping | stopping | f", db.line(t, fmt.Sprintf("SELECT a.state, o.state, o.is_open FROM reconciler.applies a JOIN reconciler.operations o ON o.apply_id = a.id WHERE a.id = %d AND o.target = 'asia'", id)))
	require.Equal(t, "{1}", db.line(t, "SELECT c.stopping_ids FROM reconciler.targets t, reconciler.claim_operations(t.id, t.owner, t.term, '30 s') AS c WHERE t.name = 'asia'"))
	db.lines(t, "SELECT reconciler.confirm_stops(t.id, t.owner, t.term, '{1}') FROM reconciler.targets t WHERE t.name = 'asia'")
	require.Equal(t, "stopped", db.state(t, id))
	db.checkApplies(t)
}

// C59 as it comes, many times.
func TestApplyStopAgainstClaim(t *testing.T) {
	t.Parallel()
	db := newAppliesDB(t)
	for range pgtest.Pick(20, 1000) {
		id := db.roll(t, "'x'")
		var crowd sync.WaitGroup
		crowd.Go(func() { db.runs(t, claimSQL("asia")) })
		crowd.Go(func() { db.runs(t, fmt.Sprintf("SELECT reconciler.apply_stop(%d)", id)) })
		crowd.Wait()
		require.False(t, db.claim(t, "asia"))
		require.Equal(t, "0", db.line(t, fmt.Sprintf("SELECT count(*) FROM reconciler.operations WHERE apply_id = %d AND (is_open OR state = 'running')", id)))
		db.lines(t, fmt.Sprintf("SELECT reconciler.apply_cancel(%d)", id))
		db.lines(t, fmt.Sprintf("SELECT reconciler.confirm_stops(t.id, t.owner, t.term, ARRAY(SELECT id FROM reconciler.operations WHERE apply_id = %d)) FROM reconciler.targets t WHERE t.name = 'asia'", id))
		require.Equal(t, "cancelled", db.state(t, id))
	}
	db.checkApplies(t)
}

// The last task of an operation is settled by its owner while a newer apply takes the one before it: somebody must see
// that nothing is left.
func TestApplySupersedeAgainstSettle(t *testing.T) {
	t.Parallel()
	db := newAppliesDB(t)
	older := db.roll(t, "'older', strategy => 'parallel'")
	for _, target := range []string{"asia", "eu", "us"} {
		require.True(t, db.claim(t, target))
	}
	db.lines(t, settleSQL(older, "eu", "done"))
	db.lines(t, settleSQL(older, "us", "done"))
	newer := db.begin(t, "'newer'", "UPDATE public.deployments SET image = 'app:9' WHERE id = 1")
	settle := db.inTx(t, `SELECT reconciler.settle_tasks(t.id, t.owner, t.term, array_agg(k.operation_id), array_agg(k.resource_id), array_agg(k.key), '{done,done}', '{"",""}', '{spec,spec}')
		FROM reconciler.targets t JOIN reconciler.tasks k ON k.target_id = t.id WHERE t.name = 'asia' AND k.key IN ('4', '7') AND k.state = 'pending' GROUP BY t.id`)
	open := fmt.Sprintf("SELECT reconciler.open_apply(%s, 1, %d, 12, 1000)", process, newer)
	require.Equal(t, "f", db.line(t, open), "the leader waits for nobody")
	require.NoError(t, settle.Commit(t.Context()))
	require.Equal(t, "t", db.line(t, open))
	require.Equal(t, "superseded", db.state(t, older))
	require.Equal(t, "pending", db.state(t, newer))
	require.Len(t, db.terminalEvents(t, older), 1)
	db.checkApplies(t)
}

// A deposed owner claims and settles nothing; what it had claimed the next one goes on with, and no attempt is counted
// for that (C60).
func TestApplyTakeover(t *testing.T) {
	t.Parallel()
	db := newAppliesDB(t)
	id := db.roll(t, "'x'")
	require.True(t, db.claim(t, "asia"))
	require.False(t, db.claim(t, "asia"), "it is said once in a term")
	db.lines(t, settleSQL(id, "asia", "attempt"))
	db.Exec(t, "UPDATE reconciler.targets SET term = 2 WHERE name = 'asia'")
	require.Contains(t, refusal(t, db.Pool, `SELECT reconciler.settle_tasks(t.id, t.owner, 1, '{1}', '{1}', '{1}', '{done}', '{""}', '{spec}') FROM reconciler.targets t WHERE t.name = 'asia'`), "was taken over by another process: term 1 is over")
	require.Contains(t, refusal(t, db.Pool, "SELECT reconciler.claim_operations(t.id, t.owner, 1, '30 s') FROM reconciler.targets t WHERE t.name = 'asia'"), "was taken over by another process: term 1 is over")
	require.True(t, db.claim(t, "asia"), "the next owner puts its objects into its queue")
	require.Equal(t, "1 | 1", db.line(t, fmt.Sprintf("SELECT o.claims, max(k.attempts) FROM reconciler.operations o JOIN reconciler.tasks k ON k.operation_id = o.id WHERE o.apply_id = %d AND o.target = 'asia' GROUP BY o.id", id)))
	require.Equal(t, "{3,0}", db.line(t, settleSQL(id, "asia", "done")), "what owners count: three are completed by that")
	require.Equal(t, "{0,0}", db.line(t, fmt.Sprintf(`SELECT reconciler.settle_tasks(t.id, t.owner, t.term, array_agg(k.operation_id), array_agg(k.resource_id), array_agg(k.key), array_agg('failed'::text), array_agg(''::text), array_agg('spec'::bytea))
		FROM reconciler.targets t JOIN reconciler.operations o ON o.target_id = t.id JOIN reconciler.tasks k ON k.operation_id = o.id WHERE t.name = 'asia' AND o.apply_id = %d GROUP BY t.id`, id)))
	require.Equal(t, "completed next waiting", db.phases(t, id), "what is settled stays as it is")
	db.checkApplies(t)
}

// begin_apply waits for nobody, and nobody waits for it.
func TestApplyBeginLocksNothing(t *testing.T) {
	t.Parallel()
	db := newAppliesDB(t)
	db.Exec(t, "ALTER DATABASE "+pgx.Identifier{db.line(t, "SELECT current_database()")}.Sanitize()+" SET lock_timeout = '2s'")
	first := db.inTx(t, "SELECT reconciler.begin_apply('one'); UPDATE public.deployments SET image = 'app:2' WHERE id = 1")
	second := db.inTx(t, "SELECT reconciler.begin_apply('two'); UPDATE public.deployments SET image = 'app:2' WHERE id = 2")
	require.NoError(t, second.Commit(t.Context()))
	require.NoError(t, first.Rollback(t.Context()))
	require.Equal(t, []string{"two"}, db.lines(t, "SELECT title FROM reconciler.applies"))
}
