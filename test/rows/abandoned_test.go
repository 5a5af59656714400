package rows_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/server/servertest"
	"github.com/pgreconciler/reconciler/internal/store"
)

// C37, C44: somebody asks for a sync and waits for it, and its owner is lost in the middle of it. The next owner's run
// is still the one that was asked for: wait() must not return before its end.
func TestWaitWaitsForASyncWhoseOwnerIsLost(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ waiting, want string }{
		"NothingElseIsAskedFor":  {"", "resync repair t before"},
		"ACheckOfTheIntervalIs":  {"interval", "resync repair t before"},
		"TheTakeoverIsToBe":      {"takeover", "takeover repair t before"},
		"AnotherOneOfAPersonIs":  {"resync", "resync repair t before"},
		"TheFirstOneIsStillToBe": {"first", "first repair t before"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := servertest.New(t)
			w.DB.Exec(t, `WITH t AS (INSERT INTO reconciler.targets (name, configured) VALUES ('eu', true) RETURNING id) INSERT INTO reconciler.cursors (consumer, revision, snapshot) SELECT id, 1, pg_current_snapshot() FROM t`)
			w.DB.Exec(t, `INSERT INTO reconciler.sync_runs (target_id, reason, verify, state, term, requested_at) VALUES (1, 'resync', true, 'running', 1, '2026-01-01')`)
			if tc.waiting != "" {
				w.DB.Exec(t, `INSERT INTO reconciler.sync_runs (target_id, reason, mode) VALUES (1, $1, CASE $1 WHEN 'interval' THEN 'report' ELSE 'repair' END)`, tc.waiting)
			}
			asked := w.Text(`SELECT clock_timestamp()::text`)
			_, err := store.New(w.DB.Pool).SyncAbandoned(t.Context(), store.SyncAbandonedParams{TargetID: 1, Term: 2})
			require.NoError(t, err)
			require.Equal(t, tc.want, w.Text(`SELECT string_agg(concat_ws(' ', reason, mode, verify, CASE WHEN requested_at < '2026-01-02' THEN 'before' END), ', ')
				FROM reconciler.sync_runs WHERE state = 'requested'`))
			require.Equal(t, "true", w.Text(`SELECT bool_or(reconciler.awaited(s, '`+asked+`'))::text FROM reconciler.sync_runs s WHERE state = 'requested'`))
		})
	}
}

// A takeover's sync looks at what the former owner's last call may have overwritten; a check of the interval, which
// waits already, does not.
func TestCheckOfTheIntervalGivesWayToWhatIsAskedFor(t *testing.T) {
	t.Parallel()
	w := servertest.New(t)
	w.DB.Exec(t, `INSERT INTO reconciler.targets (name) VALUES ('eu')`)
	queries := store.New(w.DB.Pool)
	const requested = `SELECT string_agg(concat_ws(' ', reason, mode, verify), ', ') FROM reconciler.sync_runs`
	ask := func(reason, mode string, verify bool) {
		require.NoError(t, queries.SyncRequest(t.Context(), store.SyncRequestParams{TargetID: 1, Reason: reason, Mode: mode, Verify: verify}))
	}
	ask("interval", "report", true)
	ask("takeover", "repair", false)
	require.Equal(t, "takeover repair t", w.Text(requested))
	ask("interval", "report", true)
	require.Equal(t, "takeover repair t", w.Text(requested))
	ask("start", "repair", true)
	require.Equal(t, "takeover repair t", w.Text(requested), "the first one counts")
}
