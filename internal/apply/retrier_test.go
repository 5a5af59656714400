package apply_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/store"
)

// What is due is found oldest first, and with it when the next object is due, in one statement that reads no more than it
// returns, however many fail.
func TestDueObjectsAreFoundWithTheNextOne(t *testing.T) {
	t.Parallel()
	db := newAppliesDB(t)
	db.Exec(t, `INSERT INTO reconciler.ledger (target_id, resource_id, key, state, wanted, present, next_attempt_at)
		SELECT t.id, 1, n::text, 'failing', true, true, now() + (n - 3000.5) * interval '1 h' FROM reconciler.targets t, generate_series(1, 6000) AS n WHERE t.name = 'eu'`)
	db.Exec(t, "VACUUM ANALYZE reconciler.ledger")
	tx, err := db.Pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(t.Context()) }()
	var target int32
	require.NoError(t, tx.QueryRow(t.Context(), "SELECT id FROM reconciler.targets WHERE name = 'eu'").Scan(&target))
	look := func(most int32, back *float64) (keys []string, seconds []float64) {
		rows, err := store.New(tx).LedgerDue(t.Context(), store.LedgerDueParams{TargetID: target, MaxRows: most, Back: back, Longest: 4000 * time.Hour})
		require.NoError(t, err)
		for _, row := range rows {
			keys, seconds = append(keys, row.Key), append(seconds, row.Seconds)
		}
		return keys, seconds
	}
	const read = "SELECT sum(seq_tup_read + idx_tup_fetch) FROM pg_stat_xact_user_tables WHERE relname = 'ledger'"
	var before, after int
	require.NoError(t, tx.QueryRow(t.Context(), read).Scan(&before))
	keys, seconds := look(3, nil)
	require.NoError(t, tx.QueryRow(t.Context(), read).Scan(&after))
	require.Equal(t, []string{"1", "2", "3", "3001"}, keys)
	for i, since := range []float64{2999.5, 2998.5, 2997.5} {
		require.InDelta(t, -3600*since, seconds[i], 600)
	}
	require.Greater(t, seconds[3], 0.)
	require.LessOrEqual(t, seconds[3], 1800.)
	require.LessOrEqual(t, after-before, 2*len(keys))
	// A look need not begin with the oldest.
	keys, _ = look(3, new(2*3600.))
	require.Equal(t, []string{"2999", "3000", "3001"}, keys)
	// The look for what a person may have changed says no more than that there is something due.
	due := func() bool {
		row, err := store.New(tx).TargetSteering(t.Context(), store.TargetSteeringParams{TargetID: target})
		require.NoError(t, err)
		return row.Due
	}
	require.False(t, due(), "what was due more than a minute ago is no news")
	_, err = tx.Exec(t.Context(), "UPDATE reconciler.ledger SET next_attempt_at = statement_timestamp() - interval '1 s' WHERE key = '1'")
	require.NoError(t, err)
	require.NoError(t, tx.QueryRow(t.Context(), read).Scan(&before))
	require.True(t, due())
	require.NoError(t, tx.QueryRow(t.Context(), read).Scan(&after))
	require.LessOrEqual(t, after-before, 2)

	_, err = tx.Exec(t.Context(), "DELETE FROM reconciler.ledger WHERE key <> '6000'")
	require.NoError(t, err)
	keys, seconds = look(3, nil)
	require.Equal(t, []string{"6000"}, keys)
	require.Greater(t, seconds[0], 2900*3600.)
	require.False(t, due())
	_, err = tx.Exec(t.Context(), "UPDATE reconciler.ledger SET state = 'applied', applied_hash = '0123456789abcdef', next_attempt_at = NULL")
	require.NoError(t, err)
	keys, _ = look(3, nil)
	require.Empty(t, keys)
	require.False(t, due())
}
