package outbox_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/desired"
)

// protections returns what the outbox rows since the last call have as target, key and protect; "-" stands for NULL.
func (w *world) protections(t *testing.T) []string {
	t.Helper()
	lines := w.lines(t, `SELECT concat_ws(' ', coalesce(o.target, '-'), coalesce(o.key, '-'), coalesce(o.protect::text, '-')) FROM reconciler.outbox o WHERE o.seq > $1 ORDER BY o.seq`, w.seen)
	w.marks(t)
	return lines
}

// Each change carries whether the row protects its object: the new row where it still asks for the object, else the old one.
func TestF138_CaptureSaysWhetherTheRowProtectsItsObject(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TABLE apps (id int PRIMARY KEY, region text, running boolean DEFAULT true, keep boolean, n int DEFAULT 1);
		SELECT reconciler.track('app', 'apps', '{id}', 'region', running => 'running', ignore => '{keep,n}', protect => '1 / n > 0 AND keep')`)
	for _, tc := range []struct {
		statements string
		want       []string
	}{
		{`INSERT INTO apps VALUES (1, 'eu', true, true), (2, 'eu', true, false), (3, NULL, true, NULL)`, []string{"eu 1 true", "eu 2 false", "- 3 true"}},
		{`UPDATE apps SET keep = false WHERE id = 1; UPDATE apps SET keep = true WHERE id = 2`, []string{"eu 1 false", "eu 2 true"}},
		{`UPDATE apps SET keep = true WHERE id = 1; UPDATE apps SET keep = false WHERE id = 1; DELETE FROM apps WHERE id = 1`, []string{"eu 1 true", "eu 1 false", "eu 1 false"}},
		{`UPDATE apps SET keep = false, running = false WHERE id = 2`, []string{"eu 2 true"}},
		{`UPDATE apps SET keep = true WHERE id = 2; UPDATE apps SET running = true WHERE id = 2`, []string{"eu 2 true"}},
		{`UPDATE apps SET keep = false, region = 'us' WHERE id = 2`, []string{"eu 2 true", "us 2 false"}},
		{`UPDATE apps SET keep = true, id = 4 WHERE id = 2`, []string{"us 2 false", "us 4 true"}},
		{`DELETE FROM apps WHERE id > 2`, []string{"- 3 true", "us 4 true"}},
		// What cannot be evaluated protects, and fails no write.
		{`INSERT INTO apps VALUES (5, 'eu', true, false, 0)`, []string{"- 5 true"}},
		{`DELETE FROM apps`, []string{"- 5 true"}},
		{`TRUNCATE apps`, []string{"- - -"}},
	} {
		w.Exec(t, tc.statements)
		require.Equal(t, tc.want, w.protections(t), tc.statements)
	}
}

// The writer's settings do not change what protect gives. Changes of a resource without protect carry nothing.
func TestF138_CaptureEvaluatesProtectAsTheReaderDoes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TABLE apps (id int PRIMARY KEY, until date)`, `SELECT reconciler.track('app', 'apps', '{id}', '''eu''', protect => $$until::text = '2030-02-01'$$)`,
		`CREATE TABLE plain (id int PRIMARY KEY); SELECT reconciler.track('plain', 'plain', '{id}', '''eu''')`)
	w.Exec(t, `SET DateStyle = 'German'; INSERT INTO apps VALUES (1, '01.02.2030'); RESET DateStyle`)
	require.Equal(t, []string{"eu 1 true"}, w.protections(t))
	w.Exec(t, `INSERT INTO plain VALUES (1); DELETE FROM plain`)
	require.Equal(t, []string{"eu 1 -", "eu 1 -"}, w.protections(t))
}

// For a view, the leader records it when it looks for the objects of a change.
func TestF138_ExpandSaysWhetherRowsProtectTheirObjects(t *testing.T) {
	t.Parallel()
	w := newWorld(t, joined, `SELECT reconciler.track('fleet', 'fleet', '{id}', 'region', 'on_', depends_on => '{"workspaces": {"id": "workspace_id"}, "apps": {"id": "id"}}', protect => $$image = 'a:1'$$)`,
		`INSERT INTO reconciler.targets (name) VALUES ('eu'), ('us'); INSERT INTO workspaces VALUES (1, 'one'); INSERT INTO apps VALUES (1, 1, 'a:1', 'eu'), (2, 1, 'a:2', 'eu'), (3, 1, NULL, 'eu')`,
		`INSERT INTO reconciler.ledger (target_id, resource_id, key, state, wanted, present, applied_hash, match)
			SELECT t.id, r.id, k, 'applied', true, true, substr(sha256('x'), 1, 16), '{"id": 9, "workspace_id": 1}' FROM reconciler.targets t, reconciler.resources r, unnest('{1,9}'::text[]) AS k WHERE t.name = 'eu'`)
	catalog := &desired.Catalog{}
	_, err := catalog.Reload(t.Context(), w.Pool)
	require.NoError(t, err)
	fleet, ok := catalog.ByName("fleet")
	require.True(t, ok)
	_, err = fleet.Expand(t.Context(), w.Pool, json.RawMessage(`{"workspace_id": 1}`))
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"eu 1 true", "eu 2 false", "eu 3 true", "eu 9 -"}, w.protections(t))
}

// The last change of an object is found by the index, however many changes the outbox has of it and of others, also by sessions that
// made their plans while it was empty.
func TestF138_LastChangeOfAnObjectIsFoundByItsIndex(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TABLE apps (id int PRIMARY KEY, region text, keep boolean, n int); SELECT reconciler.track('app', 'apps', '{id}', 'region', protect => 'keep')`,
		`INSERT INTO reconciler.targets (name) VALUES ('eu'), ('us')`)
	w.Exec(t, `VACUUM ANALYZE`)
	conn := w.Conn(t)
	protects := func(target int, key string) (protects *bool) {
		for range 10 {
			require.NoError(t, conn.QueryRow(t.Context(), `SELECT reconciler.captured_protect($1, 1, $2)`, target, key).Scan(&protects))
		}
		return protects
	}
	require.Nil(t, protects(1, "1"))
	w.Exec(t, `INSERT INTO apps SELECT n, 'eu', true FROM generate_series(1, 5000) AS n`)
	w.Exec(t, `UPDATE apps SET region = NULL WHERE id = 1; UPDATE apps SET region = 'us', keep = false WHERE id = 1`)
	for range 3 {
		w.Exec(t, `SELECT setval('reconciler.outbox_seq', ((last_value >> 20) + 1) << 20) FROM reconciler.outbox_seq`)
		w.Exec(t, `DO 'BEGIN FOR i IN 1..1000 LOOP UPDATE apps SET n = i WHERE id = 1; END LOOP; END'`)
	}
	_, err := conn.Exec(t.Context(), `BEGIN`)
	require.NoError(t, err)
	require.Equal(t, new(true), protects(1, "1"), "of the row for every target")
	require.Equal(t, new(false), protects(2, "1"))
	require.Equal(t, new(true), protects(1, "2"))
	require.Nil(t, protects(2, "2"))
	var scanned, fetched int
	err = conn.QueryRow(t.Context(), `SELECT sum(seq_tup_read), sum(idx_tup_fetch) FROM pg_stat_xact_user_tables WHERE schemaname = 'reconciler' AND relname ~ '^outbox_'`).Scan(&scanned, &fetched)
	require.NoError(t, err)
	require.Zero(t, scanned, "rows that were read without an index")
	require.LessOrEqual(t, fetched, 40*8)
}
