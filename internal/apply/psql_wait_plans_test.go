package apply

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// wait() asks again and again in one session, which keeps its plans. Those that were made while outbox and ledger were
// empty, and known to be, must not read all of them when they are full.
func TestWaitsPlansForEmptyTablesServeFullOnes(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, `CREATE TABLE apps (id int PRIMARY KEY)`)
	db.Exec(t, `SELECT reconciler.track('app', 'apps', '{id}', '''eu''')`)
	db.Exec(t, `WITH t AS (INSERT INTO reconciler.targets (name, configured) VALUES ('eu', true) RETURNING id) INSERT INTO reconciler.cursors (consumer, revision, snapshot) SELECT id, 100, '3:3:' FROM t`)
	db.Exec(t, `VACUUM ANALYZE`)
	conn := db.Conn(t)
	ask := func() (moving bool) {
		for range 10 {
			err := conn.QueryRow(t.Context(), `SELECT reconciler.still_moving(NULL, reconciler.covering_revision(pg_current_snapshot()), now())`).Scan(&moving)
			require.NoError(t, err)
		}
		return moving
	}
	ask()
	db.Exec(t, `INSERT INTO apps SELECT generate_series(1, 20000)`)
	db.Exec(t, `INSERT INTO reconciler.ticks (revision, snapshot) SELECT coalesce(max(revision), 0) + 1, pg_current_snapshot() FROM reconciler.ticks`)
	db.Exec(t, `INSERT INTO reconciler.ledger (target_id, resource_id, key, state, wanted, present, desired_revision, applied_revision, applied_hash)
		SELECT t.id, r.id, n::text, 'applied', true, true, 1, 1, substr(sha256('x'), 1, 16) FROM reconciler.targets t, reconciler.resources r, generate_series(1, 20000) AS n`)

	_, err := conn.Exec(t.Context(), `BEGIN`)
	require.NoError(t, err)
	require.False(t, ask())
	var scanned, fetched int
	err = conn.QueryRow(t.Context(), `SELECT sum(seq_tup_read), sum(idx_tup_fetch) FROM pg_stat_xact_user_tables WHERE schemaname = 'reconciler' AND relname ~ '^(outbox_|ledger$)'`).Scan(&scanned, &fetched)
	require.NoError(t, err)
	require.Zero(t, scanned, "rows that were read without an index")
	require.Less(t, fetched, 100)
}
