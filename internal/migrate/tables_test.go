package migrate_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// Under a publication for all tables, UPDATE and DELETE fail where there is no primary key. Rows of the outbox are only added, and
// leave by TRUNCATE.
func TestF127_EveryTableHasAPrimaryKey(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	rows, err := db.Pool.Query(t.Context(), `SELECT c.relname::text FROM pg_class c
		WHERE c.relnamespace = 'reconciler'::regnamespace AND c.relkind IN ('r', 'p')
		  AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary) ORDER BY 1`)
	require.NoError(t, err)
	without, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Equal(t, []string{"outbox", "outbox_0", "outbox_1", "outbox_2", "outbox_3"}, without)
}
