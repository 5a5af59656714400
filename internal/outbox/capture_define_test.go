package outbox_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
)

// C13
func TestTrackTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TABLE apps (id int PRIMARY KEY, region text, on_ boolean, seen int); CREATE TABLE other (id int PRIMARY KEY, region text)`)
	track := func(arguments string) string {
		return w.lines(t, `SELECT reconciler.track('app', `+arguments+`)`)[0]
	}
	version := func() string {
		return w.lines(t, `SELECT version::text FROM reconciler.resources WHERE name = 'app'`)[0]
	}
	require.Equal(t, "created", track(`'apps', '{id}', 'region'`))
	require.Equal(t, []string{`app everywhere whole`}, w.marks(t))
	for _, same := range []string{
		`'apps', '{id}', 'region'`, `relation => 'public.apps', key => ARRAY['id'], target => 'region', running => 'true', spec => NULL, ignore => NULL, depends_on => NULL, always => NULL`,
	} {
		require.Equal(t, "unchanged", track(same), same)
		require.Empty(t, w.marks(t))
		require.Equal(t, "1", version())
	}
	changes := []string{
		`'apps', '{id}', 'lower(region)'`, `'apps', '{id}', 'region', 'on_'`, `'apps', '{id}', 'region', 'on_', 'to_jsonb(region)'`, `'apps', '{id}', 'region', 'on_', ignore => '{seen}'`,
		`'apps', '{id,region}', 'region', always => true`, `'other', '{id}', 'region'`, `'other', '{id}', 'region', depends_on => '{"apps": {"id": "id"}}'`,
		`'other', '{id}', 'region', depends_on => '{"apps": {"region": "region"}}'`, `'apps', '{id}', 'region'`,
	}
	w.Exec(t, `ALTER TABLE apps ALTER region SET NOT NULL`)
	for n, changed := range changes {
		require.Equal(t, "replaced", track(changed), changed)
		require.Equal(t, []string{`app everywhere whole`}, w.marks(t), changed)
		require.Equal(t, w.lines(t, `SELECT ($1::int + 2)::text`, n)[0], version())
		require.Equal(t, "unchanged", track(changed), changed)
		require.Empty(t, w.problems(t), changed)
	}
	// What stood for a table that is no longer meant is gone from it.
	w.marked(t, `INSERT INTO other VALUES (1, 'eu'); TRUNCATE other; INSERT INTO apps VALUES (1, 'eu')`, `app "eu" "1"`)
	require.Equal(t, []string{"capture_1", "capture_1_truncate"}, w.lines(t, `SELECT proname::text FROM pg_proc WHERE proname ~ '^capture_[0-9]' ORDER BY 1`))
	// A definition that does not fit leaves the one before as it was.
	w.refused(t, `SELECT reconciler.track('app', 'apps', '{id}', 'nothing')`, `target does not work on public.apps: column "nothing" does not exist`,
		`It is an SQL expression over one row of public.apps; its columns are id, region, on_, seen.`)
	w.marked(t, `INSERT INTO apps VALUES (2, 'eu')`, `app "eu" "2"`)
	// Trouble with the triggers is mended by the same call again.
	w.Exec(t, `DROP TRIGGER reconciler_capture_1 ON apps`)
	require.Equal(t, "replaced", track(`'apps', '{id}', 'region'`))
	w.marks(t)
	w.marked(t, `INSERT INTO apps VALUES (3, 'eu')`, `app "eu" "3"`)
}

// Writers are kept waiting by no statement that changes nothing: what is there already is not created again (I8).
func TestTrackTakesNoLockThatItDoesNotNeed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TABLE apps (id int PRIMARY KEY, region text) PARTITION BY RANGE (id); CREATE TABLE apps_1 PARTITION OF apps FOR VALUES FROM (0) TO (10);
		CREATE TABLE bases (id int PRIMARY KEY, name text); CREATE VIEW joined AS SELECT id, name FROM bases;
		SELECT reconciler.track('app', 'apps', '{id}', 'region'), reconciler.track('joined', 'joined', '{id}', 'name', depends_on => '{"bases": {"id": "id"}}')`)
	writer := w.Conn(t)
	_, err := writer.Exec(t.Context(), `BEGIN; INSERT INTO apps VALUES (1, 'eu'); INSERT INTO bases VALUES (1, 'eu')`)
	require.NoError(t, err)
	// The writer's locks outlast that. Commits of other tests wait a moment for each other's NOTIFY.
	w.marked(t, `SET LOCAL lock_timeout = '2s'; SELECT reconciler.regenerate('app'), reconciler.regenerate('joined'), reconciler.track('app', 'apps', '{id}', '''us'''),
		reconciler.track('joined', 'joined', '{id}', '''us''', depends_on => '[{"table": "bases", "match": {"id": "id"}}]'), reconciler.set_notify(false)`,
		`app everywhere whole`, `joined everywhere whole`, `app everywhere whole`, `joined everywhere whole`)
	_, err = writer.Exec(t.Context(), `COMMIT; INSERT INTO apps VALUES (2, 'eu')`)
	require.NoError(t, err)
	require.Equal(t, []string{`app "eu" "1"`, `joined {"id": 1}`, `app "us" "2"`}, w.marksAfter(t, 0, `app everywhere whole`, `joined everywhere whole`))
}

// C13
func TestUntrack(t *testing.T) {
	t.Parallel()
	ledger := `INSERT INTO reconciler.targets (name) VALUES ('eu') ON CONFLICT DO NOTHING;
		INSERT INTO reconciler.ledger (target_id, resource_id, key, state, wanted, present, applied_hash, held_by) SELECT t.id, r.id, o.key, o.state::reconciler.object_state, true, true, substr(sha256('x'), 1, 16), o.held_by
		FROM reconciler.targets t, reconciler.resources r, (VALUES ('1', 'applied', NULL), ('2', 'held', 'pause'), ('3', 'blocked', NULL)) AS o(key, state, held_by)`
	w := newWorld(t, apps, ledger)
	generated := `SELECT 'table ' || t.tgrelid::regclass FROM pg_trigger t WHERE t.tgname LIKE 'reconciler%' UNION SELECT p.proname FROM pg_proc p WHERE p.proname ~ '^capture_[0-9]' UNION SELECT relname FROM pg_class WHERE relname LIKE 'desired\_%'`
	require.NotEmpty(t, w.lines(t, generated))

	w.refused(t, `SELECT reconciler.untrack('app', 'drop')`, `release must be 'keep' (targets keep the objects) or 'delete' (they are deleted there), not 'drop'`, "")
	w.refused(t, `SELECT reconciler.untrack('app', NULL)`, `release must be 'keep' (targets keep the objects) or 'delete' (they are deleted there), not NULL`, "")
	w.refused(t, `SELECT reconciler.untrack('apps')`, `no resource is named 'apps'`, `Resources: app`)
	w.marks(t)
	require.Equal(t, []string{`3 objects of app are being deleted`}, w.lines(t, `SELECT reconciler.untrack(release => 'delete', resource => 'app')`))
	require.Equal(t, []string{`app everywhere whole`}, w.marks(t))
	require.Empty(t, w.lines(t, generated))
	w.marked(t, `INSERT INTO apps VALUES (1, 'eu')`)
	require.Empty(t, w.problems(t))

	// Tracked again before they are gone: they are wanted again, by the same id.
	require.Equal(t, []string{"replaced"}, w.lines(t, `SELECT reconciler.track('app', 'apps', '{id}', 'region')`))
	require.Equal(t, []string{"1 false"}, w.lines(t, `SELECT format('%s %s', id, (removed_at IS NOT NULL)::text) FROM reconciler.resources`))
	w.marks(t)
	w.marked(t, `INSERT INTO apps VALUES (2, 'eu')`, `app "eu" "2"`)

	require.Equal(t, []string{`untracked app; 3 objects stay in their targets`}, w.lines(t, `SELECT reconciler.untrack('app')`))
	require.Empty(t, w.lines(t, generated+` UNION SELECT name FROM reconciler.resources`))
	for _, want := range []string{"2", "1", "0"} { // the leader forgets them, a few at once
		require.Equal(t, []string{want}, w.lines(t, `SELECT reconciler.forget_objects(2)::text`))
	}
	require.Empty(t, w.lines(t, `SELECT key FROM reconciler.ledger`))
	w.refused(t, `SELECT reconciler.untrack('app')`, `no resource is named 'app'`, `Nothing is tracked.`)
	w.Exec(t, apps[len(`CREATE TABLE apps (id int PRIMARY KEY, region text, on_ boolean NOT NULL DEFAULT true, image text, seen timestamptz, note text);`):])
	require.Equal(t, []string{`untracked app; it had no objects`}, w.lines(t, `SELECT reconciler.untrack('app', 'delete')`))
}

// The ledger rows of a resource that is gone go, in every target; those of the resources tracked before and after it stay.
func TestLedgerRowsOfGoneResourcesAreForgotten(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TABLE apps (id int PRIMARY KEY)`, `SELECT reconciler.track(name, 'apps', '{id}', '''eu''') FROM unnest('{a,b,c,d}'::text[]) AS name`,
		`INSERT INTO reconciler.targets (name) VALUES ('eu'), ('us')`,
		`INSERT INTO reconciler.ledger (target_id, resource_id, key, state, wanted, present, next_attempt_at)
			SELECT t.id, r.id, '1', 'pending', true, true, now() FROM reconciler.targets t, reconciler.resources r`,
		`SELECT reconciler.untrack('b'), reconciler.untrack('d')`)
	require.Equal(t, []string{"4"}, w.lines(t, `SELECT reconciler.forget_objects(100)::text`))
	require.Equal(t, []string{"eu a", "eu c", "us a", "us c"}, w.lines(t, `SELECT concat_ws(' ', target, resource) FROM reconciler.objects ORDER BY 1`))
	require.Equal(t, []string{"4"}, w.lines(t, `SELECT count(*)::text FROM reconciler.ledger`))
}

// C13: what is not wrong but may surprise is said.
func TestTrackTells(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TABLE apps (id int PRIMARY KEY, region text NOT NULL, mood text, until timestamptz); CREATE MATERIALIZED VIEW m AS SELECT 1 AS id; CREATE INDEX ON apps (region, id)`)
	var notices []string
	config := w.Pool.Config().ConnConfig.Copy()
	config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { notices = append(notices, n.Severity+": "+n.Message) }
	conn, err := pgx.ConnectConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	told := func(statement string, want ...string) {
		t.Helper()
		notices = nil
		_, err := conn.Exec(t.Context(), statement)
		require.NoError(t, err, statement)
		require.Equal(t, want, notices, statement)
	}
	told(`SELECT reconciler.track('a', 'apps', '{id}', 'region')`)
	told(`SELECT reconciler.track('b', 'apps', '{id}', 'region', 'until > now()')`, `WARNING: running of public.apps uses the current time: what changes by time alone is seen by the next sync, not at once`)
	told(`SELECT reconciler.track('c', 'apps', '{id}', 'CASE WHEN current_date > ''2024-01-01'' THEN region END')`, `WARNING: target of public.apps uses the current time: what changes by time alone is seen by the next sync, not at once`)
	told(`SELECT reconciler.track('m', 'm', '{id}', '''eu''')`, `WARNING: public.m is a materialized view and has no triggers that see its changes: they are found by the sync only`)
	told(`DROP INDEX apps_region_id_idx; SELECT reconciler.track('a', 'apps', '{id}', 'region', 'mood = ''apps.x'' AND id > 0')`,
		`NOTICE: a sync of resource a has no index to walk and scans the table for each page; create one with: CREATE INDEX CONCURRENTLY ON public.apps (region, id) WHERE ((mood = 'apps.x'::text) AND (id > 0));`)
	told(`CREATE INDEX CONCURRENTLY ON public.apps (region, id) WHERE ((mood = 'apps.x'::text) AND (id > 0))`)
	told(`SELECT reconciler.regenerate('a'), reconciler.index_advice(1)`)
	told(`CREATE TABLE parts (id int, region text, PRIMARY KEY (id, region)) PARTITION BY LIST (region); SELECT reconciler.track('p', 'parts', '{id,region}', 'region', 'length(region) > 1')`,
		`NOTICE: a sync of resource p has no index to walk and scans the table for each page; create one with: CREATE INDEX ON public.parts (region, id);`)
	told(`CREATE INDEX ON public.parts (region, id); SELECT reconciler.untrack('p'), reconciler.untrack('m'), reconciler.untrack('a', 'delete')`)
}
