package server_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/server/servertest"
	"github.com/pgreconciler/reconciler/internal/store"
)

// C44, C52, I10: a former owner's word about syncs comes late, as from a process that was cancelled in the middle of a
// statement or cut off: it starts no run, which nobody would end, and gives up none of its successor's.
func TestFormerOwnerStartsAndEndsNoSync(t *testing.T) {
	t.Parallel()
	w := servertest.New(t)
	const former, owner = "00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000002"
	w.DB.Exec(t, `INSERT INTO reconciler.targets (name, owner, term, lease_ttl) VALUES ('eu', $1, 2, '1 hour')`, owner)
	w.DB.Exec(t, `INSERT INTO reconciler.sync_runs (target_id, reason) VALUES (1, 'start')`)
	queries, ctx := store.New(w.DB.Pool), t.Context()
	const runs = `SELECT string_agg(concat_ws(' ', id, state, term), ', ' ORDER BY id) FROM reconciler.sync_runs`
	for _, late := range []store.SyncNextParams{
		{TargetID: 1, Owner: former, Term: 1, Mode: "repair"}, {TargetID: 1, Owner: owner, Term: 1, Mode: "repair"}, {TargetID: 1, Owner: former, Term: 2, Mode: "repair"},
	} {
		_, err := queries.SyncNext(ctx, late)
		require.ErrorIs(t, err, pgx.ErrNoRows, "%v", late)
	}
	require.Equal(t, "1 requested", w.Text(runs))

	run, err := queries.SyncNext(ctx, store.SyncNextParams{TargetID: 1, Owner: owner, Term: 2, Mode: "repair"})
	require.NoError(t, err)
	require.Equal(t, store.SyncNextRow{ID: 1, Reason: "start", Mode: "repair"}, run)
	n, err := queries.SyncAbandoned(ctx, store.SyncAbandonedParams{TargetID: 1, Term: 1})
	require.NoError(t, err)
	require.Zero(t, n)
	require.Equal(t, "1 running 2", w.Text(runs))

	n, err = queries.SyncAbandoned(ctx, store.SyncAbandonedParams{TargetID: 1, Term: 3})
	require.NoError(t, err)
	require.EqualValues(t, 1, n)
	require.Equal(t, "1 failed 2, 2 requested", w.Text(runs))
}
