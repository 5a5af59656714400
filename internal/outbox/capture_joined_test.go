package outbox_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/desired"
)

const joined = `CREATE TABLE workspaces (id int PRIMARY KEY, name text, plan text, seen int);
	CREATE TABLE apps (id bigint PRIMARY KEY, workspace_id int REFERENCES workspaces ON DELETE CASCADE, image text, region text, on_ boolean NOT NULL DEFAULT true, seen int);
	CREATE VIEW fleet AS SELECT a.id, a.workspace_id, a.region, a.on_, w.name AS workspace, a.image FROM apps a JOIN workspaces w ON w.id = a.workspace_id;
	SELECT reconciler.track('fleet', 'fleet', '{id}', 'region', 'on_', depends_on => '{"workspaces": {"id": "workspace_id"}, "apps": {"id": "id"}}')`

// C12: both images of a changed row of a base table, if it changed in what the resource reads.
func TestCaptureOfBaseTables(t *testing.T) {
	t.Parallel()
	w := newWorld(t, joined)
	steps := []struct {
		name, sql string
		want      []string
	}{
		{"ParentInserted", `INSERT INTO workspaces VALUES (1, 'one'), (2, 'two')`, []string{`fleet {"workspace_id": 1}`, `fleet {"workspace_id": 2}`}},
		{"ChildInserted", `INSERT INTO apps VALUES (10, 1, 'a:1', 'eu', true), (20, 2, 'a:1', 'eu', false)`, []string{`fleet {"id": 10}`, `fleet {"id": 20}`}},
		{"ParentUpdated", `UPDATE workspaces SET name = 'uno' WHERE id = 1`, []string{`fleet {"workspace_id": 1}`}},
		{"ColumnsThatTheViewDoesNotRead", `UPDATE workspaces SET plan = 'pro', seen = 1; UPDATE apps SET seen = 2`, nil},
		{"NothingChanged", `UPDATE workspaces SET name = name; UPDATE apps SET image = image`, nil},
		{"ChildMoved", `UPDATE apps SET workspace_id = 2 WHERE id = 10`, []string{`fleet {"id": 10}`}},
		{"LinkChanged", `UPDATE apps SET id = 11 WHERE id = 10`, []string{`fleet {"id": 10}`, `fleet {"id": 11}`}},
		{"ParentsLinkChanged", `UPDATE workspaces SET id = 3 WHERE id = 1`, []string{`fleet {"workspace_id": 1}`, `fleet {"workspace_id": 3}`}},
		{"ParentDeleted", `DELETE FROM workspaces WHERE id = 2`, []string{`fleet {"workspace_id": 2}`, `fleet {"id": 20}`, `fleet {"id": 11}`}},
		{"Truncated", `TRUNCATE workspaces CASCADE`, []string{`fleet everywhere whole`, `fleet everywhere whole`}},
		{"NullLink", `INSERT INTO apps VALUES (30, NULL, 'a', 'eu')`, []string{`fleet {"id": 30}`}},
	}
	for _, step := range steps {
		t.Run(step.name, func(t *testing.T) { w.marked(t, step.sql, step.want...) })
	}
}

// A trigger on a base table watches what the view reads, whoever changed the view since.
func TestCaptureWatchesWhatTheViewReads(t *testing.T) {
	t.Parallel()
	watched := `SELECT format('%s %s', relation, coalesce(watched::text, 'everything')) FROM reconciler.dependencies ORDER BY relation::text COLLATE "C"`
	w := newWorld(t, joined)
	require.Equal(t, []string{`apps {id,workspace_id,image,region,on_}`, `workspaces {id,name}`}, w.lines(t, watched))
	w.Exec(t, `CREATE OR REPLACE VIEW fleet AS SELECT a.id, a.workspace_id, a.region, a.on_, w.name || coalesce(w.plan, '') AS workspace, a.image FROM apps a JOIN workspaces w ON w.id = a.workspace_id`)
	require.Equal(t, []string{`fleet: public.workspaces is read otherwise than when it was tracked: the trigger on it watches other columns | SELECT reconciler.regenerate('fleet'); | healable`}, w.problems(t))
	w.marked(t, `SELECT reconciler.regenerate('fleet')`, `fleet everywhere whole`)
	w.marked(t, `INSERT INTO workspaces VALUES (1, 'one'); UPDATE workspaces SET plan = 'pro'; UPDATE workspaces SET seen = 1`, `fleet {"workspace_id": 1}`, `fleet {"workspace_id": 1}`)
	require.Empty(t, w.problems(t))

	views := []struct{ name, view, arguments, want string }{
		{"ThroughAnotherView", `CREATE VIEW inner_ AS SELECT id, name, plan FROM workspaces; CREATE VIEW v AS SELECT id, name FROM inner_`, `'id'`, `{id,name,plan}`},
		{"WholeRow", `CREATE VIEW v AS SELECT id, to_jsonb(w) AS name FROM workspaces w`, `'id::text'`, `everything`},
		{"NoColumn", `CREATE VIEW v AS SELECT 1 AS id, count(*)::text AS name FROM workspaces`, `'id::text'`, `everything`},
		{"ThroughAFunction", `CREATE FUNCTION f() RETURNS bigint STABLE LANGUAGE sql AS 'SELECT count(*) FROM workspaces'; CREATE VIEW v AS SELECT 1 AS id, f()::text AS name`, `'id::text'`, `everything`},
		{"Expression", `CREATE VIEW v AS SELECT 1 AS id, 'x' AS name`, `'name', '(SELECT count(*) FROM workspaces w WHERE w.plan = ''pro'') > 0', 'to_jsonb(name)'`, `{id,plan}`},
		{"WholeRowInAnExpression", `CREATE VIEW v AS SELECT 1 AS id, 'x' AS name`, `'name', '(SELECT bool_or(to_jsonb(w) ? ''x'') FROM workspaces w)'`, `everything`},
	}
	for _, v := range views {
		t.Run(v.name, func(t *testing.T) {
			w.Exec(t, v.view+`; SELECT reconciler.track('v', 'v', '{id}', `+v.arguments+`, depends_on => '{"workspaces": {"id": "id"}}')`)
			require.Equal(t, []string{v.want}, w.lines(t, `SELECT coalesce(watched::text, 'everything') FROM reconciler.dependencies d JOIN reconciler.resources r ON r.id = d.resource_id WHERE r.name = 'v'`))
			w.Exec(t, `SELECT reconciler.untrack('v'); DROP VIEW v; DROP VIEW IF EXISTS inner_; DROP FUNCTION IF EXISTS f()`)
		})
	}
}

// C11, C12: a base table that changes its shape fails no write.
func TestCaptureOfAlteredBaseTables(t *testing.T) {
	t.Parallel()
	w := newWorld(t, joined, `CREATE TABLE tags (app bigint PRIMARY KEY, tag text);
		CREATE FUNCTION tag(bigint) RETURNS text STABLE LANGUAGE sql AS 'SELECT tag FROM tags WHERE app = $1'; CREATE VIEW tagged AS SELECT id, tag(id) AS tag FROM apps;
		SELECT reconciler.track('tagged', 'tagged', '{id}', '''eu''', depends_on => '{"tags": {"app": "id"}}')`)
	w.marked(t, `INSERT INTO tags VALUES (1, 'x')`, `tagged {"id": 1}`)
	w.marked(t, `ALTER TABLE tags RENAME COLUMN app TO program; UPDATE tags SET tag = 'y'`, `tagged everywhere whole`)
	require.Equal(t, []string{`tagged: column app of public.tags, which depends_on names, is gone or was renamed; its changes are still found, by a sync after each write | call reconciler.track() with the new name | a person must`}, w.problems(t))
	w.Exec(t, `SELECT reconciler.set_notify(false)`)
	w.marked(t, `UPDATE tags SET tag = 'z'`, `tagged everywhere whole`)
	w.Exec(t, `DROP TABLE tags CASCADE`)
	require.Regexp(t, `^tagged: the table with oid \d+ that it depends on is gone \| call reconciler.track\(\) with the new depends_on \| a person must$`, w.problems(t)[0])
	require.Len(t, w.problems(t), 1)

	w.refused(t, `ALTER TABLE workspaces DROP COLUMN name`, `cannot drop column name of table workspaces because other objects depend on it`, `Use DROP ... CASCADE to drop the dependent objects too.`)
	w.refused(t, `DROP VIEW fleet`, `cannot drop view fleet because other objects depend on it`, `Use DROP ... CASCADE to drop the dependent objects too.`)
	w.Exec(t, `DROP VIEW fleet CASCADE; SELECT reconciler.untrack('tagged')`)
	w.marked(t, `INSERT INTO workspaces VALUES (1, 'one')`, `fleet {"workspace_id": 1}`)
	require.Equal(t, []string{`fleet: fleet, which it is made from, is gone | SELECT reconciler.untrack('fleet'); | a person must`}, w.problems(t))
}

// Columns of a base table that change names crosswise keep both names, and link other rows.
func TestF188_CrosswiseRenamedLinksOfABaseTableAreNoticed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, joined)
	const track = `SELECT reconciler.track('fleet', 'fleet', '{id}', 'region', 'on_', depends_on => '{"workspaces": {"id": "workspace_id"}, "apps": {"id": "id"}}')`
	swap := func(one, other string) {
		w.Exec(t, `ALTER TABLE workspaces RENAME `+one+` TO x; ALTER TABLE workspaces RENAME `+other+` TO `+one+`; ALTER TABLE workspaces RENAME x TO `+other)
	}
	swap("id", "seen")
	require.Equal(t, []string{
		`fleet: column id of public.workspaces, which depends_on names, is gone or was renamed; its changes are still found, by a sync after each write | call reconciler.track() with the new name | a person must`,
		`fleet: public.workspaces is read otherwise than when it was tracked: the trigger on it watches other columns | SELECT reconciler.regenerate('fleet'); | healable`,
	}, w.problems(t))
	w.marked(t, `SELECT reconciler.regenerate('fleet')`, `fleet everywhere whole`)
	w.marked(t, `INSERT INTO workspaces (seen, id, name) VALUES (1, 7, 'one')`, `fleet everywhere whole`)
	require.Len(t, w.problems(t), 1)
	w.marked(t, strings.Replace(track, `{"id": "workspace_id"}`, `{"seen": "workspace_id"}`, 1)+`; UPDATE workspaces SET name = 'uno'`, `fleet everywhere whole`, `fleet {"workspace_id": 1}`)
	require.Empty(t, w.problems(t))

	// Or the same definition: it means the new column.
	swap("id", "seen")
	w.Exec(t, track)
	require.Empty(t, w.problems(t))
	w.marks(t)
	w.marked(t, `UPDATE workspaces SET name = 'one'`, `fleet {"workspace_id": 1}`)
}

// One changed row of a base table marks every dependent object that is wanted, and those in the ledger whose row is gone.
func TestExpandMarksDependentObjects(t *testing.T) {
	t.Parallel()
	w := newWorld(t, joined, `INSERT INTO workspaces VALUES (1, 'one'), (2, 'two'); INSERT INTO reconciler.targets (name) VALUES ('eu'), ('us');
		INSERT INTO apps SELECT n, 1 + n % 2, 'a:1', CASE n % 3 WHEN 0 THEN 'eu' WHEN 1 THEN 'us' END, n < 100 FROM generate_series(1, 110) AS n;
		INSERT INTO reconciler.ledger (target_id, resource_id, key, state, wanted, present, applied_hash, match)
		SELECT t.id, r.id, k, 'applied', true, true, substr(sha256('x'), 1, 16), m::jsonb FROM reconciler.targets t, reconciler.resources r,
			(VALUES ('eu', '3', '{"id": 3, "workspace_id": 2}'), ('us', '3', '{"id": 3, "workspace_id": 2}'), ('eu', 'gone', '{"id": 9999, "workspace_id": 1}')) AS l(target, k, m) WHERE t.name = l.target AND r.name = 'fleet'`)
	catalog := &desired.Catalog{}
	_, err := catalog.Reload(t.Context(), w.Pool)
	require.NoError(t, err)
	fleet, ok := catalog.ByName("fleet")
	require.True(t, ok)
	expand := func(image string, want ...string) {
		t.Helper()
		w.marks(t)
		n, err := fleet.Expand(t.Context(), w.Pool, []byte(image))
		require.NoError(t, err)
		require.Equal(t, int64(len(want)), n)
		require.ElementsMatch(t, want, w.marks(t))
	}
	expand(`{"id": 4}`, `fleet "us" "4"`)
	expand(`{"id": 3}`, `fleet "eu" "3"`, `fleet "us" "3"`) // it moved; the ledger knows where it was
	expand(`{"id": 5}`, `fleet everywhere "5"`)
	expand(`{"id": 105}`) // not running, and nowhere
	expand(`{"id": 9999}`, `fleet "eu" "gone"`)
	expand(`{"id": null}`)
	expand(`{"other": 1}`) // of an older definition
	expand(`{"workspace_id": 7}`)
	n, err := fleet.Expand(t.Context(), w.Pool, []byte(`{"workspace_id": 2}`))
	require.NoError(t, err)
	require.Equal(t, int64(50+1), n) // 1, 3, ... 99 and what moved

	// C43: a row that cannot be evaluated hides no other. Then every row is marked for every target.
	w.Exec(t, `CREATE OR REPLACE VIEW fleet AS SELECT a.id, a.workspace_id, CASE WHEN a.id = 7 THEN (1 / (a.id - 7))::text ELSE a.region END AS region, a.on_, w.name AS workspace, a.image FROM apps a JOIN workspaces w ON w.id = a.workspace_id`)
	w.marks(t)
	tx, err := w.Pool.Begin(t.Context())
	require.NoError(t, err)
	n, err = fleet.Expand(t.Context(), tx, []byte(`{"workspace_id": 2}`))
	require.NoError(t, err)
	require.Equal(t, int64(55+2), n)
	require.NoError(t, tx.Commit(t.Context()), "the transaction that it was called in goes on")
	require.Subset(t, w.marks(t), []string{`fleet everywhere "7"`, `fleet everywhere "109"`, `fleet "us" "3"`})
}

// Columns that link rows may have the types that users mix.
func TestExpandOverTypesOfLinks(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE DOMAIN code AS varchar(8)`)
	for _, link := range []struct{ name, base, relation, value string }{
		{"SmallToBig", "smallint", "bigint", "7"}, {"BigToSmall", "bigint", "smallint", "7"}, {"Uuid", "uuid", "uuid", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'"}, {"TextToVarchar", "text", "varchar(9)", `'a"b\/ü'`},
		{"Char", "char(6)", "char(4)", "'ab'"}, {"Numeric", "numeric(10,2)", "numeric(10,1)", "1.5"}, {"Date", "date", "date", "'2024-02-01'"}, {"Timestamp", "timestamp", "timestamp", "'2024-02-01 10:00'"},
		{"Bool", "boolean", "boolean", "true"}, {"Inet", "inet", "inet", "'10.0.0.0/8'"}, {"Domain", "code", "text", "'x'"},
	} {
		t.Run(link.name, func(t *testing.T) {
			w.Exec(t, `CREATE TABLE base (b `+link.base+` PRIMARY KEY, v int); CREATE TABLE child (id int PRIMARY KEY, c `+link.relation+`);
				CREATE VIEW joined AS SELECT id, c, v FROM child JOIN base ON b = c; INSERT INTO base VALUES (`+link.value+`, 1); INSERT INTO child VALUES (1, `+link.value+`);
				SELECT reconciler.track('joined', 'joined', '{id}', '''eu''', depends_on => '{"base": {"b": "c"}}')`)
			catalog := &desired.Catalog{}
			_, err := catalog.Reload(t.Context(), w.Pool)
			require.NoError(t, err)
			resource, _ := catalog.ByName("joined")
			_, err = w.Conn(t).Exec(t.Context(), `SET DateStyle = 'German'; SET TimeZone = 'Asia/Tokyo'; UPDATE base SET v = 2`)
			require.NoError(t, err)
			images := w.lines(t, `SELECT image::text FROM reconciler.outbox WHERE image IS NOT NULL AND seq > $1`, w.seen)
			require.Len(t, images, 1)
			// The same value on the side of the ledger.
			require.Equal(t, []string{"true"}, w.lines(t, `SELECT (match @> $1::text::jsonb)::text FROM reconciler.desired_joined`, images[0]))
			w.marks(t)
			n, err := resource.Expand(t.Context(), w.Pool, []byte(images[0]))
			require.NoError(t, err)
			require.Equal(t, int64(1), n)
			require.Equal(t, []string{`joined "eu" "1"`}, w.marks(t))
			w.Exec(t, `SELECT reconciler.untrack('joined'); DROP VIEW joined; DROP TABLE base, child`)
			w.marks(t)
		})
	}
}
