package watch_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/store"
)

// Every read walks an index, whatever PostgreSQL knows of the tables, and also with the plan that it keeps.
func TestReadsWalkIndexes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.db.Exec(t, `INSERT INTO reconciler.published (target_id, resource, key, version, revision, spec, hash, bytes)
		SELECT $1, 'app', i::text, i, 1, '1', '\x00112233445566778899aabbccddeeff', 1 FROM generate_series(1, 50000) AS i`, b.target)
	b.db.Exec(t, `INSERT INTO reconciler.ledger (target_id, resource_id, key, state, wanted, present, applied_hash, next_attempt_at)
		SELECT $1, $2, i::text, CASE WHEN i <= 50000 THEN 'applied' ELSE 'pending' END::reconciler.object_state, true, true, '\x00112233445566778899aabbccddeeff', CASE WHEN i > 50000 THEN now() END
		FROM generate_series(1, 50003) AS i`, b.target, b.resource)
	b.db.Exec(t, `INSERT INTO reconciler.published (target_id, resource, key, version, revision)
		SELECT $1, 'app', CASE WHEN i > 100000 THEN (i - 50000)::text ELSE 'gone ' || i END, 1, 1 FROM generate_series(50001, 100003) AS i`, b.target)
	b.db.Exec(t, `UPDATE reconciler.published SET version = 2 WHERE target_id = $1 AND key IN ('50001', '50003')`, b.target)
	var plan strings.Builder
	conn := b.db.Explaining(t, func(text string) { plan.WriteString(text) })
	for name, value := range database.WatchSession() {
		_, err := conn.Exec(t.Context(), `SELECT set_config($1, $2, false)`, name, value)
		require.NoError(t, err)
	}
	queries := store.New(conn)
	for _, statistics := range []string{"none", "fresh"} {
		for range 7 { // from the sixth time on, PostgreSQL may keep a plan for all parameters
			plan.Reset()
			changes, err := queries.StreamChanges(t.Context(), store.StreamChangesParams{TargetIds: []int32{b.target}, Afters: []int64{49_997}, Most: 1000, MostBytes: 1 << 20})
			require.NoError(t, err)
			require.Len(t, changes, 3)
			page, err := queries.StreamPage(t.Context(), store.StreamPageParams{TargetID: b.target, FromResource: "app", FromKey: "7", ToResource: "app\x01", Most: 10, MostBytes: 1 << 20})
			require.NoError(t, err)
			require.Len(t, page, 10)
			unsettled, err := queries.StreamUnsettled(t.Context(), store.StreamUnsettledParams{TargetID: b.target, Resource: "app", Most: 10})
			require.NoError(t, err)
			require.Len(t, unsettled, 3)
			waiting, err := queries.StreamUnacknowledged(t.Context(), store.StreamUnacknowledgedParams{TargetID: b.target, Upto: 1, Most: 10})
			require.NoError(t, err)
			require.Len(t, waiting, 1)
			require.NotContains(t, plan.String(), "Hash Join")
			require.NotContains(t, plan.String(), "Merge Join")
			_, err = queries.StreamObject(t.Context(), store.StreamObjectParams{TargetID: b.target, Resource: "app", Key: "7"})
			require.NoError(t, err)
			require.NotContains(t, plan.String(), "Seq Scan on published", statistics)
			require.NotContains(t, plan.String(), "Seq Scan on ledger", statistics)
			require.NotContains(t, plan.String(), "Sort Key: o.version", statistics)
			require.NotContains(t, plan.String(), "Sort Key: o.resource", statistics)
			for line := range strings.Lines(plan.String()) {
				if statistics == "fresh" && strings.Contains(line, "Rows Removed by") { // else one walk through the ledger finds what is not settled
					require.NotRegexp(t, `: \d{4,}`, line, "%s: %s", statistics, plan.String())
				}
			}
		}
		b.db.Exec(t, `ANALYZE reconciler.published, reconciler.ledger`)
	}
}

// The read of changes keeps its plan, whatever the number of streams: to plan it takes longer than to run it. PostgreSQL plans the
// first five for themselves.
func TestReadsOfChangesKeepTheirPlan(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.db.Exec(t, `INSERT INTO reconciler.published (target_id, resource, key, version, revision, spec, hash, bytes)
		SELECT $1, 'app', i::text, i, 1, '1', '\x00112233445566778899aabbccddeeff', 1 FROM generate_series(1, 20000) AS i`, b.target)
	b.db.Exec(t, `ANALYZE reconciler.published`)
	conn := b.db.Conn(t)
	for n := range 20 {
		streams := []int32{b.target, -1, -2, -3, -4}[:1+n%5]
		_, err := store.New(conn).StreamChanges(t.Context(), store.StreamChangesParams{TargetIds: streams, Afters: make([]int64, len(streams)), Most: int32(1 + n), MostBytes: 1 << 20})
		require.NoError(t, err)
	}
	var kept int
	require.NoError(t, conn.QueryRow(t.Context(), `SELECT generic_plans FROM pg_prepared_statements WHERE statement LIKE '-- name: StreamChanges%'`).Scan(&kept))
	require.Equal(t, 15, kept)
}
