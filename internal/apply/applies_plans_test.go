package apply_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// reads runs SQL in a transaction and returns how many rows of the product's tables it has read.
func (d appliesDB) reads(t *testing.T, sql string) (rows int) {
	t.Helper()
	tx, err := d.Pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(t.Context()) }()
	read := func() (n int) { // what the session has not reported yet: of former transactions, too
		require.NoError(t, tx.QueryRow(t.Context(), `SELECT coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0) FROM pg_stat_xact_user_tables WHERE schemaname = 'reconciler'`).Scan(&n))
		return n
	}
	before := read()
	_, err = tx.Exec(t.Context(), sql)
	require.NoError(t, err)
	rows = read() - before
	require.NoError(t, tx.Commit(t.Context()))
	return rows
}

// Statistics are of a time when nothing was under way; then a large apply comes, and another one that takes its objects.
func TestApplyOfManyAfterQuietTimes(t *testing.T) {
	t.Parallel()
	const many = 1000
	db := newAppliesDB(t)
	db.Exec(t, "DELETE FROM public.deployments")
	db.Exec(t, fmt.Sprintf("INSERT INTO public.deployments (id, region) SELECT n, 'eu' FROM generate_series(1, %d) AS n", many))
	change := "UPDATE public.deployments SET image = image || '+'"
	first := db.begin(t, "'first'", change)
	db.open(t, first, 20*many)
	db.finish(t, first, "eu", "done")
	require.Equal(t, "completed", db.state(t, first))
	db.Exec(t, fmt.Sprintf(`INSERT INTO reconciler.ledger (target_id, resource_id, key, state, wanted, present, applied_hash)
		SELECT t.id, r.id, n::text, 'applied', true, true, '0123456789abcdef' FROM reconciler.targets t, reconciler.resources r, generate_series(1, %d) AS n WHERE t.name = 'eu' AND r.name = 'deployments'`, many))
	db.Exec(t, "VACUUM ANALYZE reconciler.tasks, reconciler.operations, reconciler.applies, reconciler.ledger")

	second := db.begin(t, "'second'", change)
	db.open(t, second, 20*many)
	third := db.begin(t, "'third'", change)
	openSQL := fmt.Sprintf("SELECT reconciler.open_apply(%s, 1, %d, 12, %d)", process, third, 20*many)
	require.Less(t, db.reads(t, openSQL), 20*many)
	require.Equal(t, "superseded", db.state(t, second), "all that it was to bring has gone to the third one")

	db.Exec(t, "UPDATE reconciler.ledger SET state = 'held', held_by = 'gate'")
	require.Less(t, db.reads(t, claimSQL("eu")), 20*many)
	require.Equal(t, "0", db.line(t, "SELECT count(*) FROM reconciler.ledger WHERE state = 'held'"))
	require.Less(t, db.reads(t, settleSQL(third, "eu", "done")), 20*many)
	require.Equal(t, "completed", db.state(t, third))
	db.checkApplies(t)
}
