package outbox_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/desired"
)

// Many changes take one statement, and one that concerns a row that cannot be evaluated changes nothing for the others.
func TestExpandMarksTheObjectsOfManyChanges(t *testing.T) {
	t.Parallel()
	w := newWorld(t, joined, `INSERT INTO workspaces VALUES (1, 'one'), (2, 'two'); INSERT INTO reconciler.targets (name) VALUES ('eu'), ('us');
		INSERT INTO apps SELECT n, 1 + n % 2, 'a:1', 'eu', n < 10 FROM generate_series(1, 12) AS n;
		INSERT INTO reconciler.ledger (target_id, resource_id, key, state, wanted, present, applied_hash, match)
		SELECT t.id, r.id, 'gone', 'applied', true, true, substr(sha256('x'), 1, 16), '{"id": 99, "workspace_id": 1}' FROM reconciler.targets t, reconciler.resources r WHERE t.name = 'us' AND r.name = 'fleet'`)
	catalog := &desired.Catalog{}
	_, err := catalog.Reload(t.Context(), w.Pool)
	require.NoError(t, err)
	fleet, ok := catalog.ByName("fleet")
	require.True(t, ok)
	expand := func(images []string, want ...string) {
		t.Helper()
		w.marks(t)
		all := make([]json.RawMessage, len(images))
		for i, image := range images {
			all[i] = json.RawMessage(image)
		}
		n, err := fleet.Expand(t.Context(), w.Pool, all...)
		require.NoError(t, err)
		require.Equal(t, int64(len(want)), n)
		require.ElementsMatch(t, want, w.marks(t))
	}
	expand(nil)
	expand([]string{`{"id": 3}`, `{"id": 4}`, `{"id": 12}`, `{"id": 4}`}, `fleet "eu" "3"`, `fleet "eu" "4"`)
	expand([]string{`{"id": 99}`, `{"other": 1}`, `{"id": 5}`}, `fleet "us" "gone"`, `fleet "eu" "5"`)
	// Of two tables: an object that both concern is marked for each of them.
	expand([]string{`{"workspace_id": 2}`, `{"id": 1}`}, `fleet "eu" "1"`, `fleet "eu" "1"`, `fleet "eu" "3"`, `fleet "eu" "5"`, `fleet "eu" "7"`, `fleet "eu" "9"`)

	w.Exec(t, `CREATE OR REPLACE VIEW fleet AS SELECT a.id, a.workspace_id, CASE WHEN a.id = 7 THEN (1 / (a.id - 7))::text ELSE a.region END AS region, a.on_, w.name AS workspace, a.image FROM apps a JOIN workspaces w ON w.id = a.workspace_id`)
	expand([]string{`{"id": 1}`, `{"id": 6}`, `{"id": 7}`, `{"id": 8}`}, `fleet "eu" "1"`, `fleet "eu" "6"`, `fleet everywhere "7"`, `fleet "eu" "8"`)
	_, err = fleet.Expand(t.Context(), w.Pool, json.RawMessage(`{"id": 1}`), json.RawMessage(`no JSON`))
	require.EqualError(t, err, "read the image of a change for resource fleet: invalid character 'o' in literal null (expecting 'u')")
}

// In a ledger that has grown since statistics were taken, or has none, the planner must not fall back to reading all of it.
func TestExpandFindsObjectsOfTheLedgerByTheirIndex(t *testing.T) {
	t.Parallel()
	w := newWorld(t, joined, `INSERT INTO reconciler.targets (name) VALUES ('eu'); ALTER TABLE reconciler.ledger SET (autovacuum_enabled = off);
		INSERT INTO reconciler.ledger (target_id, resource_id, key, state, wanted, present, applied_hash, match)
		SELECT t.id, r.id, n, 'applied', true, true, substr(sha256('x'), 1, 16), jsonb_build_object('id', n, 'workspace_id', n % 100)
		FROM reconciler.targets t, reconciler.resources r, generate_series(1, 5000) AS n WHERE r.name = 'fleet'`)
	catalog := &desired.Catalog{}
	_, err := catalog.Reload(t.Context(), w.Pool)
	require.NoError(t, err)
	fleet, ok := catalog.ByName("fleet")
	require.True(t, ok)

	var plan strings.Builder
	conn := w.Explaining(t, func(text string) { plan.WriteString(text) })
	for _, statistics := range []string{"none", "fresh"} {
		plan.Reset()
		n, err := fleet.Expand(t.Context(), conn, json.RawMessage(`{"id": 7}`), json.RawMessage(`{"id": 8}`), json.RawMessage(`{"workspace_id": 9}`))
		require.NoError(t, err)
		require.Equal(t, int64(1+1+50), n, statistics)
		require.Contains(t, plan.String(), "Bitmap Index Scan on ledger_match", statistics)
		require.NotContains(t, plan.String(), "ledger_pkey", statistics)
		require.NotContains(t, plan.String(), "Seq Scan on ledger", statistics)
		w.Exec(t, `ANALYZE reconciler.ledger`)
	}
}
