package apply_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// objectsSQL records what an owner was told of the objects of an apply in a target, from began on: "": the answer is still to come.
func objectsSQL(id int, target, began, unhealthy string) string {
	operation := "0"
	if id != 0 {
		operation = fmt.Sprintf("(SELECT o.id FROM reconciler.operations o WHERE o.apply_id = %d AND o.target_id = t.id)", id)
	}
	return fmt.Sprintf("SELECT reconciler.record_object_health(t.id, t.owner, t.term, %s, clock_timestamp(), clock_timestamp(), nullif('%s', '')::timestamptz, nullif('%s', ''), '{}', '{}', '{}', '{}') "+
		"FROM reconciler.targets t WHERE t.name = '%s'", operation, began, unhealthy, target)
}

// due reports whether an owner would ask about the objects of an operation now.
func (d appliesDB) due(t *testing.T, target string) string {
	t.Helper()
	return d.line(t, "SELECT coalesce(string_agg(w.due::text, ' '), 'nothing') FROM reconciler.targets t CROSS JOIN LATERAL reconciler.health_waits(t.id) AS w WHERE t.name = '"+target+"'")
}

// C58: an apply waits for its own objects.
func TestApplyWaitsForHealthOfObjects(t *testing.T) {
	t.Parallel()

	t.Run("UntilAllAreHealthy", func(t *testing.T) {
		t.Parallel()
		db := newAppliesDB(t)
		db.ownObjects(t, "asia", 1)
		id := db.roll(t, "'x'")
		require.Equal(t, "nothing", db.due(t, "asia"))
		db.finish(t, id, "asia", "done")
		require.Equal(t, asked, db.detail(t, id, "eu"))
		db.lines(t, objectsSQL(0, "asia", "now", "")) // of all objects, for somebody else
		require.Equal(t, asked, db.detail(t, id, "eu"))
		require.Equal(t, "true", db.due(t, "asia"))
		db.silent(t, objectsSQL(id, "asia", "", "deployments 1: crashed"))
		require.Equal(t, "waiting, waiting for asia: not healthy: deployments 1: crashed", db.detail(t, id, "eu"))
		require.Equal(t, "completed, 3 objects; not healthy: deployments 1: crashed", db.detail(t, id, "asia"))
		db.silent(t, objectsSQL(id, "asia", "", ""))
		require.Equal(t, asked, db.detail(t, id, "eu"), "others are asked about")
		require.False(t, db.claim(t, "eu"))
		db.lines(t, objectsSQL(id, "asia", "yesterday", ""))
		require.Equal(t, asked, db.detail(t, id, "eu"), "what it said before is about something else")
		db.hearsOn(t, "reconciler_turn", objectsSQL(id, "asia", "now", ""))
		require.True(t, db.claim(t, "eu"))
		require.Equal(t, "nothing", db.due(t, "asia"), "they are healthy")
		db.checkApplies(t)
	})

	t.Run("AtTheEndOfTheSoakTime", func(t *testing.T) {
		t.Parallel()
		db := newAppliesDB(t)
		db.ownObjects(t, "asia", 1)
		id := db.roll(t, "'x', soak => '1 hour'")
		db.finish(t, id, "asia", "done")
		require.Equal(t, "true", db.due(t, "asia"), "what it says until then is shown")
		db.lines(t, objectsSQL(id, "asia", "now", ""))
		require.Equal(t, "false", db.due(t, "asia"))
		db.Exec(t, "UPDATE reconciler.operations SET completed_at = completed_at - interval '2 hours', health_asked_at = health_asked_at - interval '90 minutes' WHERE completed_at IS NOT NULL")
		require.Equal(t, "true", db.due(t, "asia"))
		require.Equal(t, asked, db.detail(t, id, "eu"))
		db.lines(t, objectsSQL(id, "asia", "now", ""))
		require.True(t, db.claim(t, "eu"))
	})

	t.Run("AnewWhenItGoesOn", func(t *testing.T) {
		t.Parallel()
		db := newAppliesDB(t)
		db.ownObjects(t, "asia", 1)
		id := db.roll(t, "'x'")
		db.finish(t, id, "asia", "done")
		db.lines(t, objectsSQL(id, "asia", "now", ""))
		db.lines(t, fmt.Sprintf("SELECT reconciler.apply_pause(%d)", id))
		require.Equal(t, "nothing", db.due(t, "asia"))
		db.lines(t, fmt.Sprintf("SELECT reconciler.apply_release(%d)", id))
		require.Equal(t, "true", db.due(t, "asia"))
		require.Equal(t, asked, db.detail(t, id, "eu"))
		db.lines(t, objectsSQL(id, "asia", "", "deployments 1: crashed"))
		db.lines(t, fmt.Sprintf("SELECT reconciler.apply_cancel(%d)", id))
		require.Equal(t, "nothing", db.due(t, "asia"), "it has ended")
		db.checkApplies(t)
	})

	t.Run("OfTheNextOwner", func(t *testing.T) {
		t.Parallel()
		db := newAppliesDB(t)
		db.ownObjects(t, "asia", 1)
		id := db.roll(t, "'x'")
		db.finish(t, id, "asia", "done")
		db.lines(t, objectsSQL(id, "asia", "now", ""))
		require.Equal(t, "completed next waiting", db.phases(t, id))
		db.ownObjects(t, "asia", 2)
		require.Equal(t, asked, db.detail(t, id, "eu"), "what a former owner was told does not count")
		require.Equal(t, "true", db.due(t, "asia"))
		db.lines(t, objectsSQL(id, "asia", "now", ""))
		require.Equal(t, "completed next waiting", db.phases(t, id))
		db.own(t, "asia", 3, true)
		require.Equal(t, asked, db.detail(t, id, "eu"), "now the target is asked as a whole")
	})

	t.Run("WhileSomebodyHoldsIt", func(t *testing.T) {
		t.Parallel()
		db := newAppliesDB(t)
		db.ownObjects(t, "asia", 1)
		id := db.roll(t, "'x'")
		db.finish(t, id, "asia", "done")
		tx := db.inTx(t, fmt.Sprintf("UPDATE reconciler.operations SET budget = budget WHERE apply_id = %d", id))
		require.Equal(t, "f", db.line(t, objectsSQL(id, "asia", "now", "")))
		require.NoError(t, tx.Rollback(t.Context()))
		require.Equal(t, "t", db.line(t, objectsSQL(id, "asia", "now", "")))
	})
}

// Viewers may call ask_health(). An ask expires, and blocks no other session.
func TestAskHealth(t *testing.T) {
	t.Parallel()
	db := newAppliesDB(t)
	db.ownObjects(t, "asia", 1)
	require.Contains(t, refusal(t, db.Pool, "SELECT reconciler.ask_health('mars')"), "no target is named 'mars'")
	for _, lasting := range []string{"'0'", "'2 days'", "NULL"} {
		require.Contains(t, refusal(t, db.Pool, "SELECT reconciler.ask_health('asia', "+lasting+")"), "asks for 1 second to 1 day")
	}
	require.Contains(t, refusal(t, db.Pool, "SELECT * FROM reconciler.wait_healthy('0', 'asia')"), "no owner was asked")
	held := db.inTx(t, "SELECT reconciler.ask_health()")
	db.hearsOn(t, "reconciler_turn", "SELECT reconciler.ask_health('asia')")
	require.Equal(t, "true", db.due(t, "asia"))
	require.Contains(t, refusal(t, held, "SELECT * FROM reconciler.wait_healthy('0', 'asia')"), "this transaction has changes of its own")
	db.lines(t, objectsSQL(0, "asia", "yesterday", ""))
	require.Equal(t, "asia |  |  | unasked", db.line(t, "SELECT target, resource, key, state FROM reconciler.wait_healthy('0', 'asia')"))
	db.lines(t, objectsSQL(0, "asia", "", "deployments 1: crashed"))
	require.Equal(t, "asia |  |  | unhealthy | deployments 1: crashed", db.line(t, "SELECT * FROM reconciler.wait_healthy('0', 'asia')"))
	db.lines(t, objectsSQL(0, "asia", "now", ""))
	require.Empty(t, db.lines(t, "SELECT * FROM reconciler.wait_healthy()"), "others report none")
	require.Equal(t, "nothing", db.due(t, "asia"))
	require.Equal(t, []string{"asia"}, db.lines(t, "SELECT target FROM reconciler.wait_healthy('0', NULL, clock_timestamp())"), "an answer of before")

	db.Exec(t, "UPDATE reconciler.health_asks SET at = at - interval '1 hour', until = clock_timestamp()")
	db.lines(t, objectsSQL(0, "asia", "", "deployments 1: crashed"))
	require.Equal(t, "nothing", db.due(t, "asia"), "the ask has expired")
	db.lines(t, "SELECT reconciler.ask_health('asia', '1 min')")
	require.Equal(t, "1", db.line(t, "SELECT count(*) FROM reconciler.health_asks"))
}

// The view has the last answers; one that says the same is written once for each that waits.
func TestHealthOfObjectsIsWrittenOnChange(t *testing.T) {
	t.Parallel()
	db := newAppliesDB(t)
	db.ownObjects(t, "asia", 1)
	db.Exec(t, `INSERT INTO reconciler.ledger (target_id, resource_id, key, state, wanted, present, applied_hash)
		SELECT t.id, r.id, n::text, 'applied', true, true, decode(repeat('00', 16), 'hex') FROM reconciler.targets t, reconciler.resources r, generate_series(101, 102) AS n WHERE t.name = 'asia' AND r.name = 'deployments'`)
	record := func(since, at, states, reasons string) {
		t.Helper()
		db.lines(t, fmt.Sprintf(`SELECT reconciler.record_object_health(t.id, t.owner, t.term, 0, '%s', '%s', NULL, 'x', ARRAY[r.id, r.id, r.id], '{101, 102, gone}', '%s', '%s')
			FROM reconciler.targets t, reconciler.resources r WHERE t.name = 'asia' AND r.name = 'deployments'`, since, at, states, reasons))
	}
	rows := func() []string {
		t.Helper()
		return db.lines(t, "SELECT key, state, reason, since AT TIME ZONE 'UTC', asked_at AT TIME ZONE 'UTC' FROM reconciler.health ORDER BY key")
	}
	record("2026-01-01 00:00Z", "2026-01-01 00:01Z", "{progressing, unhealthy, unhealthy}", "{1 of 3, crashed, crashed}")
	require.Equal(t, []string{"101 | progressing | 1 of 3 | 2026-01-01 00:01:00 | 2026-01-01 00:01:00", "102 | unhealthy | crashed | 2026-01-01 00:01:00 | 2026-01-01 00:01:00"}, rows())
	record("2026-01-01 00:00Z", "2026-01-01 00:02Z", "{progressing, unhealthy, healthy}", "{2 of 3, crashed, \"\"}")
	require.Equal(t, []string{"101 | progressing | 2 of 3 | 2026-01-01 00:01:00 | 2026-01-01 00:02:00", "102 | unhealthy | crashed | 2026-01-01 00:01:00 | 2026-01-01 00:01:00"}, rows())
	record("2026-01-01 00:02Z", "2026-01-01 00:03Z", "{healthy, unhealthy, healthy}", "{\"\", crashed, \"\"}")
	require.Equal(t, []string{"102 | unhealthy | crashed | 2026-01-01 00:01:00 | 2026-01-01 00:03:00"}, rows())
	record("2026-01-01 00:02Z", "2026-01-01 00:04Z", "{healthy, unknown, healthy}", "{\"\", not known, \"\"}")
	require.Equal(t, []string{"102 | unknown | not known | 2026-01-01 00:04:00 | 2026-01-01 00:04:00"}, rows())
	db.Exec(t, "DELETE FROM reconciler.ledger WHERE key = '102'")
	require.Empty(t, rows())
}
