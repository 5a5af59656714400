package apply_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/store"
)

// own does what the owner of a target does first: it says whether it will report its health.
func (d appliesDB) own(t *testing.T, target string, term int64, reports bool) {
	t.Helper()
	d.ownWith(t, target, term, store.TargetHealthBeginParams{Reports: reports})
}

// ownObjects is own of a driver that reports the health of each object.
func (d appliesDB) ownObjects(t *testing.T, target string, term int64) {
	t.Helper()
	d.ownWith(t, target, term, store.TargetHealthBeginParams{Reports: true, ReportsObjects: true})
}

func (d appliesDB) ownWith(t *testing.T, target string, term int64, params store.TargetHealthBeginParams) {
	t.Helper()
	var id int32
	require.NoError(t, d.Pool.QueryRow(t.Context(), "UPDATE reconciler.targets SET term = $2 WHERE name = $1 RETURNING id", target, term).Scan(&id))
	params.TargetID, params.Owner, params.Term = id, process[1:len(process)-1], term
	require.NoError(t, store.New(d.Pool).TargetHealthBegin(t.Context(), params))
}

// healthSQL records what a target said; an empty reason: it is healthy.
func healthSQL(target, reason string) string { return healthAtSQL(target, reason, "clock_timestamp()") }

func healthAtSQL(target, reason, at string) string {
	return fmt.Sprintf("SELECT reconciler.record_health(t.id, t.owner, t.term, %s, nullif('%s', '')) FROM reconciler.targets t WHERE t.name = '%s'", at, reason, target)
}

// detail says what a target of an apply waits for.
func (d appliesDB) detail(t *testing.T, id int, target string) string {
	t.Helper()
	return d.line(t, fmt.Sprintf("SELECT concat_ws(', ', phase, detail) FROM reconciler.apply_targets WHERE apply = %d AND target = '%s'", id, target))
}

// wanted reports whether an owner would ask for the health of its target now.
func (d appliesDB) wanted(t *testing.T, target string) bool {
	t.Helper()
	var id int32
	require.NoError(t, d.Pool.QueryRow(t.Context(), "SELECT id FROM reconciler.targets WHERE name = $1", target).Scan(&id))
	rows, err := store.New(d.Pool).TargetHealthWanted(t.Context(), id)
	require.NoError(t, err)
	steering, err := store.New(d.Pool).TargetSteering(t.Context(), store.TargetSteeringParams{TargetID: id})
	require.NoError(t, err)
	require.Equal(t, len(rows) > 0, steering.Health, "what wakes the owner, and what it asks then")
	return len(rows) > 0
}

// silent runs a statement and fails if it told the processes to look.
func (d appliesDB) silent(t *testing.T, sql string) {
	t.Helper()
	listener := d.Conn(t)
	lines(t, listener, "LISTEN reconciler_turn")
	d.lines(t, sql)
	d.lines(t, "SELECT pg_notify('reconciler_turn', 'the next')")
	first, err := listener.WaitForNotification(t.Context())
	require.NoError(t, err)
	require.Equal(t, "the next", first.Payload, sql)
}

const asked = "waiting, waiting for asia: its health is being asked"

// C58: the next target starts when the former is completed and healthy.
func TestApplyWaitsForHealth(t *testing.T) {
	t.Parallel()

	t.Run("UntilHealthy", func(t *testing.T) {
		t.Parallel()
		db := newAppliesDB(t)
		db.own(t, "asia", 1, true)
		id := db.roll(t, "'x'")
		require.False(t, db.wanted(t, "asia"))
		db.finish(t, id, "asia", "done")
		require.True(t, db.wanted(t, "asia"))
		require.Equal(t, asked, db.detail(t, id, "eu"))
		require.Equal(t, "completed, 3 objects", db.detail(t, id, "asia"))
		require.False(t, db.claim(t, "eu"))
		db.silent(t, healthSQL("asia", "2 of 5 are ready"))
		require.Equal(t, "waiting, waiting for asia: not healthy: 2 of 5 are ready", db.detail(t, id, "eu"))
		require.Equal(t, "completed, 3 objects; not healthy: 2 of 5 are ready", db.detail(t, id, "asia"))
		require.Equal(t, "running | Wait: eu: waiting for asia: not healthy: 2 of 5 are ready.", db.line(t, fmt.Sprintf("SELECT state, next FROM reconciler.apply_status WHERE id = %d", id)))
		require.False(t, db.claim(t, "eu"))
		db.hearsOn(t, "reconciler_turn", healthSQL("asia", ""))
		require.Equal(t, "completed next waiting", db.phases(t, id))
		require.Equal(t, "completed, 3 objects", db.detail(t, id, "asia"))
		db.silent(t, healthSQL("asia", ""))
		db.finish(t, id, "eu", "done")
		require.False(t, db.wanted(t, "eu"), "it reports none")
		db.finish(t, id, "us", "done")
		require.Equal(t, "completed", db.state(t, id))
		require.False(t, db.wanted(t, "asia"), "nobody waits")
		db.checkApplies(t)
	})

	t.Run("WhenAskedAfterItCompleted", func(t *testing.T) {
		t.Parallel()
		db := newAppliesDB(t)
		db.own(t, "asia", 1, true)
		id := db.roll(t, "'x'")
		require.True(t, db.claim(t, "asia"))
		db.lines(t, healthSQL("asia", ""))
		db.lines(t, settleSQL(id, "asia", "done"))
		require.Equal(t, asked, db.detail(t, id, "eu"))
		require.False(t, db.claim(t, "eu"))
		const completed = "(SELECT o.completed_at FROM reconciler.operations o WHERE o.target = 'asia')"
		db.lines(t, healthAtSQL("asia", "", completed+" - interval '1 microsecond'"))
		require.False(t, db.claim(t, "eu"))
		db.lines(t, healthAtSQL("asia", "starting", completed+" - interval '1 microsecond'"))
		require.Equal(t, asked, db.detail(t, id, "eu"), "what it said before is about something else")
		db.lines(t, healthAtSQL("asia", "", completed))
		require.True(t, db.claim(t, "eu"))
	})

	t.Run("OfEveryTargetBefore", func(t *testing.T) {
		t.Parallel()
		db := newAppliesDB(t)
		db.own(t, "asia", 1, true)
		id := db.roll(t, "'x'")
		db.finish(t, id, "asia", "done")
		db.lines(t, healthSQL("asia", ""))
		require.True(t, db.claim(t, "eu"))
		require.True(t, db.wanted(t, "asia"), "us waits for it")
		db.lines(t, healthSQL("asia", "out of memory"))
		require.Equal(t, "completed, 3 objects; not healthy: out of memory", db.detail(t, id, "asia"), "while eu runs")
		db.lines(t, settleSQL(id, "eu", "done"))
		require.Equal(t, "waiting, waiting for asia: not healthy: out of memory", db.detail(t, id, "us"))
		require.False(t, db.claim(t, "us"))
		db.lines(t, healthSQL("asia", ""))
		require.True(t, db.claim(t, "us"))
		require.False(t, db.wanted(t, "asia"), "nothing is left that waits")
	})
}

// C58, with soak times, waves and newer applies.
func TestApplyWaitsForHealthInItsOrder(t *testing.T) {
	t.Parallel()

	t.Run("AtTheEndOfTheSoakTime", func(t *testing.T) {
		t.Parallel()
		db := newAppliesDB(t)
		db.own(t, "asia", 1, true)
		id := db.roll(t, "'x', soak => '1 hour'")
		db.finish(t, id, "asia", "done")
		require.Equal(t, "completed soaking waiting", db.phases(t, id))
		require.True(t, db.wanted(t, "asia"))
		db.lines(t, healthSQL("asia", "starting"))
		require.Equal(t, "waiting, waiting for asia: not healthy: starting", db.detail(t, id, "eu"))
		db.hearsOn(t, "reconciler_turn", healthSQL("asia", "")) // eu learns when its turn comes
		require.Equal(t, "completed soaking waiting", db.phases(t, id))

		db.Exec(t, "UPDATE reconciler.operations SET completed_at = completed_at - interval '2 hours' WHERE completed_at IS NOT NULL")
		db.Exec(t, "UPDATE reconciler.targets SET health_asked_at = health_asked_at - interval '90 minutes' WHERE name = 'asia'")
		require.Equal(t, asked, db.detail(t, id, "eu"))
		require.False(t, db.claim(t, "eu"))
		db.hearsOn(t, "reconciler_turn", healthSQL("asia", ""))
		require.True(t, db.claim(t, "eu"))
	})

	t.Run("OfAWholeWave", func(t *testing.T) {
		t.Parallel()
		db := newAppliesDB(t)
		db.own(t, "asia", 1, true)
		db.own(t, "eu", 1, true)
		id := db.roll(t, `'x', strategy => 'waves', waves => '[["asia", "eu"]]'`)
		db.finish(t, id, "asia", "done")
		db.lines(t, healthSQL("asia", ""))
		db.finish(t, id, "eu", "done")
		require.Equal(t, "waiting, waiting for eu: its health is being asked", db.detail(t, id, "us"))
		db.lines(t, healthSQL("eu", ""))
		require.True(t, db.claim(t, "us"))
	})

	t.Run("NotInParallel", func(t *testing.T) {
		t.Parallel()
		db := newAppliesDB(t)
		db.own(t, "asia", 1, true)
		id := db.roll(t, "'x', strategy => 'parallel'")
		db.finish(t, id, "asia", "done")
		require.Equal(t, "completed next next", db.phases(t, id))
		require.False(t, db.wanted(t, "asia"))
	})

	t.Run("NotOfWhatANewerApplyTookOver", func(t *testing.T) {
		t.Parallel()
		db := newAppliesDB(t)
		db.own(t, "asia", 1, true)
		older := db.begin(t, "'older'", "UPDATE public.deployments SET image = 'app:2' WHERE id < 4")
		newer := db.begin(t, "'newer'", "UPDATE public.deployments SET image = 'app:3' WHERE id = 1")
		db.open(t, older, 1000)
		db.open(t, newer, 1000)
		require.Equal(t, "superseded next waiting", db.phases(t, older), "it brought nothing there")
		require.False(t, db.wanted(t, "asia"))
	})
}

// C60: what the gate waits for survives its owner, and follows the next one's config.
func TestApplyHealthWithTheNextOwner(t *testing.T) {
	t.Parallel()

	t.Run("WhichAsksAnew", func(t *testing.T) {
		t.Parallel()
		db := newAppliesDB(t)
		db.own(t, "asia", 1, true)
		id := db.roll(t, "'x'")
		db.finish(t, id, "asia", "done")
		db.Exec(t, "UPDATE reconciler.targets SET owner = NULL WHERE name = 'asia'")
		require.False(t, db.claim(t, "eu"), "it died before it had asked")
		require.Equal(t, "waiting, waiting for asia: its health is being asked; no process works on asia. Process host-1 leads.", db.detail(t, id, "eu"))
		db.Exec(t, "UPDATE reconciler.targets SET owner = "+process+", lease_ttl = '1 hour' WHERE name = 'asia'")
		db.own(t, "asia", 2, true)
		require.Contains(t, refusal(t, db.Pool, "SELECT reconciler.record_health(t.id, t.owner, 1, clock_timestamp(), NULL) FROM reconciler.targets t WHERE t.name = 'asia'"), "term 1 is over")
		require.False(t, db.claim(t, "eu"))
		db.lines(t, healthSQL("asia", ""))
		require.Equal(t, "completed next waiting", db.phases(t, id))
		db.own(t, "asia", 3, true)
		require.False(t, db.claim(t, "eu"), "what a former owner was told does not count")
		db.lines(t, healthSQL("asia", ""))
		require.True(t, db.claim(t, "eu"))
	})

	t.Run("WhoseConfigHasLostTheOption", func(t *testing.T) {
		t.Parallel()
		db := newAppliesDB(t)
		db.own(t, "asia", 1, true)
		id := db.roll(t, "'x'")
		db.finish(t, id, "asia", "done")
		db.lines(t, healthSQL("asia", "starting"))
		db.own(t, "asia", 2, false)
		require.Equal(t, "completed next waiting", db.phases(t, id))
		require.False(t, db.wanted(t, "asia"))
		require.True(t, db.claim(t, "eu"))
	})

	t.Run("OfATargetThatIsForgotten", func(t *testing.T) {
		t.Parallel()
		db := newAppliesDB(t)
		db.own(t, "asia", 1, true)
		id := db.roll(t, "'x'")
		db.finish(t, id, "asia", "done")
		db.lines(t, healthSQL("asia", "starting"))
		db.Exec(t, "UPDATE reconciler.targets SET configured = false WHERE name = 'asia'")
		require.False(t, db.claim(t, "eu"))
		db.lines(t, "SELECT reconciler.release('asia')")
		require.True(t, db.claim(t, "eu"))
	})
}

// While an apply does not go on nobody asks; what was healthy before says nothing when it goes on again.
func TestApplyHealthIsAskedAnewWhenItGoesOn(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ halt, resume string }{
		"AfterAPause":   {"SELECT reconciler.apply_pause(%d)", "SELECT reconciler.apply_release(%d)"},
		"AfterAStop":    {"SELECT reconciler.apply_stop(%d)", "SELECT reconciler.apply_start(%d)"},
		"AfterAFailure": {"", "SELECT reconciler.apply_retry(%d)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newAppliesDB(t)
			db.own(t, "asia", 1, true)
			id := db.roll(t, "'x'")
			db.finish(t, id, "asia", "done")
			db.lines(t, healthSQL("asia", ""))
			if c.halt == "" {
				db.finish(t, id, "eu", "failed")
			} else {
				db.lines(t, fmt.Sprintf(c.halt, id))
			}
			require.False(t, db.wanted(t, "asia"))
			db.lines(t, fmt.Sprintf(c.resume, id))
			require.True(t, db.wanted(t, "asia"))
			require.Equal(t, "waiting, waiting for asia: its health is being asked", db.detail(t, id, "eu"))
			require.False(t, db.claim(t, "eu"))
			db.hearsOn(t, "reconciler_turn", healthSQL("asia", ""))
			require.True(t, db.claim(t, "eu"))
			db.checkApplies(t)
		})
	}
}
