package apply_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// turns are the targets that may have something to do for applies, and what.
func (d appliesDB) turns(t *testing.T) string {
	t.Helper()
	return strings.Join(d.lines(t, `SELECT t.name || CASE WHEN w.turn THEN ' turn' ELSE '' END || CASE WHEN w.health THEN ' health' ELSE '' END
		FROM reconciler.turns(`+process+`) AS w JOIN reconciler.targets t ON t.id = w.target_id ORDER BY 1`), ", ")
}

// ownAll has the process of the tests own all three targets.
func (d appliesDB) ownAll(t *testing.T) appliesDB {
	t.Helper()
	d.Exec(t, "UPDATE reconciler.targets SET owner = "+process+", lease_ttl = '1 hour'")
	return d
}

// Of many targets only those are told whose turn may have come.
func TestTurns(t *testing.T) {
	t.Parallel()

	t.Run("RollingIsOneAfterTheOther", func(t *testing.T) {
		t.Parallel()
		db := newAppliesDB(t).ownAll(t)
		require.Empty(t, db.turns(t))
		id := db.begin(t, "'x'", "UPDATE public.deployments SET image = image || '+'")
		require.Empty(t, db.turns(t), "it is not open")
		db.open(t, id, 1000)
		require.Equal(t, "asia turn", db.turns(t))
		require.True(t, db.claim(t, "asia"))
		require.Empty(t, db.turns(t), "it is at work, and knows")
		db.lines(t, settleSQL(id, "asia", "done"))
		require.Equal(t, "eu turn", db.turns(t))
		db.finish(t, id, "eu", "done")
		db.finish(t, id, "us", "done")
		require.Empty(t, db.turns(t))
	})

	t.Run("SoakingIsTold", func(t *testing.T) {
		t.Parallel()
		db := newAppliesDB(t).ownAll(t)
		id := db.roll(t, "'x', soak => '1 hour'")
		db.finish(t, id, "asia", "done")
		require.Equal(t, "eu turn", db.turns(t), "or nobody would know when it ends")
	})

	t.Run("AWaveTogether", func(t *testing.T) {
		t.Parallel()
		db := newAppliesDB(t).ownAll(t)
		id := db.roll(t, `'x', strategy => 'waves', waves => '[["us"], ["asia", "eu"]]'`)
		require.Equal(t, "us turn", db.turns(t))
		db.finish(t, id, "us", "done")
		require.Equal(t, "asia turn, eu turn", db.turns(t))
	})

	t.Run("AllInParallel", func(t *testing.T) {
		t.Parallel()
		db := newAppliesDB(t).ownAll(t)
		db.roll(t, `'x', strategy => 'parallel'`)
		require.Equal(t, "asia turn, eu turn, us turn", db.turns(t))
		require.True(t, db.claim(t, "eu"))
		require.Equal(t, "asia turn, us turn", db.turns(t))
	})

	t.Run("OnlyOnesOwnTargets", func(t *testing.T) {
		t.Parallel()
		db := newAppliesDB(t).ownAll(t)
		db.roll(t, `'x', strategy => 'parallel'`)
		db.Exec(t, "UPDATE reconciler.targets SET owner = '00000000-0000-0000-0000-000000000002' WHERE name <> 'eu'")
		require.Equal(t, "eu turn", db.turns(t))
	})
}

// Those that have begun are told of what there is to do beside.
func TestTurnsOfWhatHasBegun(t *testing.T) {
	t.Parallel()

	t.Run("WhatStops", func(t *testing.T) {
		t.Parallel()
		db := newAppliesDB(t).ownAll(t)
		id := db.roll(t, "'x'")
		require.True(t, db.claim(t, "asia"))
		db.lines(t, fmt.Sprintf("SELECT reconciler.apply_stop(%d)", id))
		require.Equal(t, "asia turn", db.turns(t))
	})

	t.Run("WhatAFormerOwnerOpened", func(t *testing.T) {
		t.Parallel()
		db := newAppliesDB(t).ownAll(t)
		id := db.roll(t, "'x'")
		require.True(t, db.claim(t, "asia"))
		db.Exec(t, "UPDATE reconciler.targets SET term = term + 1 WHERE name = 'asia'")
		require.Equal(t, "asia turn", db.turns(t))
		require.True(t, db.claim(t, "asia"))
		require.Empty(t, db.turns(t))

		// What a person lets go after the end, too.
		db.lines(t, settleSQL(id, "asia", "failed"))
		require.Equal(t, "failed", db.state(t, id))
		require.Empty(t, db.turns(t))
		db.lines(t, fmt.Sprintf("SELECT reconciler.apply_release(%d)", id))
		require.Equal(t, "eu turn, us turn", db.turns(t))
	})

	t.Run("WhoseHealthIsWaitedFor", func(t *testing.T) {
		t.Parallel()
		db := newAppliesDB(t).ownAll(t)
		db.own(t, "asia", 1, true)
		id := db.roll(t, "'x'")
		require.Equal(t, "asia turn", db.turns(t))
		db.finish(t, id, "asia", "done")
		require.Equal(t, "asia health, eu turn", db.turns(t))
		db.lines(t, healthSQL("asia", ""))
		require.True(t, db.claim(t, "eu"))
		db.lines(t, settleSQL(id, "eu", "done"))
		require.True(t, db.claim(t, "us"))
		require.Empty(t, db.turns(t))
	})
}

// Owners ask at the same moment. Those who only wait leave the apply to the one whose turn it is.
func TestWaitingForOthersHoldsNobody(t *testing.T) {
	t.Parallel()
	db := newAppliesDB(t)
	db.roll(t, "'x'")
	tx, err := db.Pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(t.Context()) }()
	for _, target := range []string{"eu", "us"} {
		_, err = tx.Exec(t.Context(), claimSQL(target))
		require.NoError(t, err)
	}
	require.True(t, db.claim(t, "asia"))
}

// An apply that a person holds is asked for again; by the one whose turn it is, and by nobody else.
func TestHeldApplyIsAskedForAgain(t *testing.T) {
	t.Parallel()
	db := newAppliesDB(t)
	id := db.roll(t, "'x'")
	busy := func(target string) string {
		return db.line(t, strings.Replace(claimSQL(target), "c.operation_ids", "c.operation_ids, c.again, c.busy", 1))
	}
	tx, err := db.Pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(t.Context()) }()
	_, err = tx.Exec(t.Context(), fmt.Sprintf("SELECT reconciler.apply_pause(%d)", id))
	require.NoError(t, err)
	require.Equal(t, "{} | -1 | t", busy("asia"))
	require.Equal(t, "{} | -1 | f", busy("eu"))
	require.NoError(t, tx.Rollback(t.Context()))
	require.True(t, db.claim(t, "asia"))
}

// Rollouts do not wait for a time that was written before the server's clock was set back, and ignore answers about health from then.
func TestRolloutsGoOnAfterAClockThatWasAhead(t *testing.T) {
	t.Parallel()
	db := newAppliesDB(t)
	id := db.roll(t, `'x', strategy => 'waves', waves => '[["us"], ["eu"]]', soak => '1 hour'`)
	db.finish(t, id, "us", "done")
	db.Exec(t, `UPDATE reconciler.operations SET completed_at = now() + interval '30 days', health_asked_at = now() + interval '30 days' WHERE completed_at IS NOT NULL;
		UPDATE reconciler.targets SET lost_at = now() + interval '30 days', health_asked_at = now() + interval '30 days', unhealthy = 'it was', reports_health = true;
		UPDATE reconciler.applies SET resumed_at = now() + interval '30 days';
		INSERT INTO reconciler.guard_passes (target_id, at, until, deletes, objects) SELECT id, now() + interval '30 days', now() + interval '30 days 1 minute', 1, 10 FROM reconciler.targets`)
	times := func() string {
		return db.line(t, `SELECT bool_and(t.lost_at <= clock_timestamp() AND t.health_asked_at IS NULL AND t.unhealthy IS NULL), bool_and(p.at <= clock_timestamp() AND p.until = p.at + interval '1 minute'),
			bool_and(a.resumed_at <= clock_timestamp()), bool_and(o.completed_at <= clock_timestamp() AND o.health_asked_at IS NULL)
			FROM reconciler.targets t JOIN reconciler.guard_passes p ON p.target_id = t.id, reconciler.applies a, reconciler.operations o WHERE o.completed_at IS NOT NULL`)
	}
	require.Equal(t, "f | f | f | f", times())
	db.Exec(t, "SELECT reconciler.clamp_times()")
	require.Equal(t, "t | t | t | t", times())
	db.Exec(t, "UPDATE reconciler.targets SET reports_health = false")
	require.Equal(t, "waiting soaking completed", db.phases(t, id))
	db.Exec(t, "UPDATE reconciler.operations SET completed_at = completed_at - interval '1 hour' WHERE completed_at IS NOT NULL")
	require.Equal(t, "waiting next completed", db.phases(t, id))
}
