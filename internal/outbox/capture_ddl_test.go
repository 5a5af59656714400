package outbox_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// C11.
func TestCaptureAfterAddedColumns(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TABLE apps (id int PRIMARY KEY, region text, seen int);
		SELECT reconciler.track('app', 'apps', '{id}', 'region'), reconciler.track('lean', 'apps', '{id}', 'region', spec => 'to_jsonb(region)'),
			reconciler.track('quiet', 'apps', '{id}', 'region', spec => 'to_jsonb(region)', ignore => '{seen}');
		INSERT INTO apps VALUES (1, 'eu', 1)`)
	w.Exec(t, `ALTER TABLE apps ADD COLUMN image text DEFAULT 'a:1'`)
	// It flows into the spec at once; what has the spec is told when capture is mended.
	require.Equal(t, []string{`{"id": 1, "seen": 1, "image": "a:1", "region": "eu"}`}, w.lines(t, `SELECT spec::text FROM reconciler.desired_app`))
	require.Equal(t, []string{
		`app: public.apps has other columns than when it was tracked: new image | SELECT reconciler.regenerate('app'); | healable`,
		`quiet: public.apps has other columns than when it was tracked: new image | SELECT reconciler.regenerate('quiet'); | healable`,
	}, w.problems(t))
	// A trigger that compares whole rows watches the column from the start, one that names its columns does not.
	w.marked(t, `UPDATE apps SET image = 'a:2'`, `app "eu" "1"`, `lean "eu" "1"`)
	w.marked(t, `SELECT reconciler.regenerate('app'), reconciler.regenerate('quiet')`, `app everywhere whole`, `quiet everywhere whole`)
	require.Empty(t, w.problems(t))
	w.marked(t, `UPDATE apps SET image = 'a:3'`, `app "eu" "1"`, `lean "eu" "1"`, `quiet "eu" "1"`)

	// A trigger that names the column stands in the way of DROP COLUMN; CASCADE takes the trigger, which is noticed and mended.
	w.refused(t, `ALTER TABLE apps DROP COLUMN image`, `cannot drop column image of table apps because other objects depend on it`, `Use DROP ... CASCADE to drop the dependent objects too.`)
	w.Exec(t, `ALTER TABLE apps DROP COLUMN image CASCADE`)
	require.Equal(t, []string{
		`app: public.apps has other columns than when it was tracked: gone image | SELECT reconciler.regenerate('app'); | healable`,
		`quiet: public.apps has other columns than when it was tracked: gone image | SELECT reconciler.regenerate('quiet'); | healable`,
		`quiet: trigger reconciler_capture_3_update on public.apps is missing | SELECT reconciler.regenerate('quiet'); | healable`,
	}, w.problems(t))
	w.marked(t, `SELECT reconciler.regenerate('app'), reconciler.regenerate('quiet')`, `app everywhere whole`, `quiet everywhere whole`)
	w.marked(t, `UPDATE apps SET region = 'us'`, `app "eu" "1"`, `app "us" "1"`, `lean "eu" "1"`, `lean "us" "1"`, `quiet "eu" "1"`, `quiet "us" "1"`)
	require.Empty(t, w.problems(t))
}

// C11.
func TestCaptureRefusesToLoseColumns(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TABLE apps (id int PRIMARY KEY, region text, on_ boolean, cpu int, image text);
		SELECT reconciler.track('app', 'apps', '{id}', 'region', 'on_', 'jsonb_build_object(''cpu'', cpu)'); INSERT INTO apps VALUES (1, 'eu', true, 1, 'a')`)
	for _, column := range []string{"id", "region", "on_", "cpu"} {
		w.refused(t, `ALTER TABLE apps DROP COLUMN `+column, `cannot drop column `+column+` of table apps because other objects depend on it`, `Use DROP ... CASCADE to drop the dependent objects too.`)
		w.refused(t, `ALTER TABLE apps ALTER COLUMN `+column+` TYPE text`, `cannot alter type of a column used by a view or rule`, "")
	}
	w.refused(t, `DROP TABLE apps`, `cannot drop table apps because other objects depend on it`, `Use DROP ... CASCADE to drop the dependent objects too.`)
	w.Exec(t, `ALTER TABLE apps DROP COLUMN image`)
	require.Empty(t, w.problems(t))
	w.marks(t)
	w.marked(t, `UPDATE apps SET cpu = 2`, `app "eu" "1"`)

	w.Exec(t, `ALTER TABLE apps DROP COLUMN region CASCADE`)
	require.Equal(t, []string{`app: view reconciler.desired_app is gone | call reconciler.track() with a definition that does not need column image, region | healable`}, w.problems(t))
	w.marked(t, `UPDATE apps SET cpu = 3`, `app everywhere "1"`)
	w.refused(t, `SELECT reconciler.regenerate('app')`, `resource app: its definition does not fit public.apps any more: column apps.region does not exist`, `Call reconciler.track() with the new names.`)
	w.marked(t, `SELECT reconciler.regenerate()`)

	w.Exec(t, `ALTER TABLE apps DROP COLUMN id CASCADE`)
	w.marked(t, `UPDATE apps SET cpu = 4`, `app everywhere whole`)
	w.marked(t, `INSERT INTO apps VALUES (true, 1); DELETE FROM apps`, `app everywhere whole`, `app everywhere whole`, `app everywhere whole`)

	w.Exec(t, `DROP TABLE apps CASCADE`)
	require.Equal(t, []string{`app: apps, which it is made from, is gone | SELECT reconciler.untrack('app'); | a person must`}, w.problems(t))
	w.refused(t, `SELECT reconciler.regenerate('app')`, `resource app: apps, which it is made from, is gone`, `SELECT reconciler.untrack('app');`)
	w.Exec(t, `SELECT reconciler.set_notify(false); SELECT reconciler.set_notify(true)`)
	require.Equal(t, []string{"untracked app; 0 objects stay in their targets"}, w.lines(t, `SELECT reconciler.untrack('app')`))
	require.Empty(t, w.lines(t, `SELECT proname::text FROM pg_proc WHERE proname ~ '^capture_[0-9]'`))
}

// C11: writes never fail. A write whose place cannot be read from the row marks the object at every target, or the whole resource.
func TestCaptureAfterRenames(t *testing.T) {
	t.Parallel()
	w := newWorld(t, apps, `CREATE SCHEMA other; INSERT INTO apps VALUES (1, 'eu')`)
	// The table itself may have any name, and stand in any schema.
	w.marked(t, `ALTER TABLE apps RENAME TO programs; ALTER TABLE programs SET SCHEMA other; UPDATE other.programs SET image = 'a:1'`, `app "eu" "1"`)
	require.Empty(t, w.problems(t))
	w.marked(t, `SELECT reconciler.regenerate('app'); UPDATE other.programs SET image = 'a:2'`, `app everywhere whole`, `app "eu" "1"`)
	w.Exec(t, `ALTER TABLE other.programs SET SCHEMA public`)
	w.Exec(t, `CREATE TABLE apps (LIKE programs)`)
	require.Equal(t, []string{`app: public.programs, which it is made from, was called apps; another table or view has that name now | call reconciler.track() with the table that is meant | a person must`}, w.problems(t))
	w.Exec(t, `DROP TABLE apps; ALTER TABLE programs RENAME TO apps`)

	steps := []struct{ rename, problem, mark string }{
		{`image TO picture`, `public.apps has other columns than when it was tracked: gone image, new picture | SELECT reconciler.regenerate('app'); | healable`, `"eu" "1"`},
		{`note TO remark`, `ignored column note of public.apps is gone or was renamed | call reconciler.track() with the new name | a person must`, `"eu" "1"`},
		{`on_ TO running`, `column running of public.apps had another name when it was tracked: on_; until track() is called, each change is looked at in every target | call reconciler.track() with the new name | a person must`, `everywhere "1"`},
		{`region TO place`, `column place of public.apps had another name when it was tracked: region; until track() is called, each change is looked at in every target | call reconciler.track() with the new name | a person must`, `everywhere "1"`},
		{`id TO name`, `key column id of public.apps is gone or was renamed | call reconciler.track() with the new name | a person must`, `everywhere whole`},
	}
	for n, step := range steps {
		w.Exec(t, `ALTER TABLE apps RENAME COLUMN `+step.rename)
		require.Contains(t, w.problems(t), `app: `+step.problem)
		w.marked(t, fmt.Sprintf(`UPDATE apps SET picture = 'p:%d'`, n), `app `+step.mark)
	}
	w.marked(t, `INSERT INTO apps VALUES (2, 'eu'); DELETE FROM apps WHERE name = 2; TRUNCATE apps`, `app everywhere whole`, `app everywhere whole`, `app everywhere whole`)
	// The new names mend it.
	w.marked(t, `SELECT reconciler.track('app', 'apps', '{name}', 'place', 'running', ignore => '{seen,remark}')`, `app everywhere whole`)
	require.Empty(t, w.problems(t))
	w.marked(t, `INSERT INTO apps VALUES (2, 'eu')`, `app "eu" "2"`)

	// Back from another name to the same: columns changed places, which names alone do not show. The view knows.
	w.Exec(t, `ALTER TABLE apps ADD COLUMN place2 varchar(20); UPDATE apps SET place2 = place; ALTER TABLE apps RENAME COLUMN place TO place_old; ALTER TABLE apps RENAME COLUMN place2 TO place`)
	require.Equal(t, []string{
		`app: column place_old of public.apps had another name when it was tracked: place; until track() is called, each change is looked at in every target | call reconciler.track() with the new name | a person must`,
		`app: columns that its triggers read were renamed | SELECT reconciler.regenerate('app'); | healable`,
	}, w.problems(t))
	// Until the leader has mended the triggers they read the new column of the old name. The sync finds what they missed.
	w.marked(t, `SELECT reconciler.regenerate('app')`, `app everywhere whole`)
	require.Len(t, w.problems(t), 1)
	w.marked(t, `INSERT INTO apps (name, running, place, place_old) VALUES (3, true, 'eu', 'us'); UPDATE apps SET place_old = 'de' WHERE name = 3; DELETE FROM apps WHERE name = 3`,
		`app everywhere "3"`, `app everywhere "3"`, `app everywhere "3"`)
	w.marked(t, `SELECT reconciler.track('app', 'apps', '{name}', 'place', 'running', ignore => '{seen,remark}')`, `app everywhere whole`)
	require.Empty(t, w.problems(t))
	w.marked(t, `INSERT INTO apps (name, running, place, place_old) VALUES (3, true, 'eu', 'us')`, `app "eu" "3"`)
}

// C13
func TestCaptureProblemsOfTriggers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, apps)
	w.Exec(t, `ALTER TABLE apps DISABLE TRIGGER ALL`)
	mended := `SELECT reconciler.regenerate('app'); | healable`
	require.Equal(t, []string{
		`app: trigger reconciler_capture_1 on public.apps is disabled | ` + mended, `app: trigger reconciler_capture_1_truncate on public.apps is disabled | ` + mended,
		`app: trigger reconciler_capture_1_update on public.apps is disabled | ` + mended,
	}, w.problems(t))
	w.marked(t, `SELECT reconciler.regenerate('app'); INSERT INTO apps VALUES (1, 'eu')`, `app everywhere whole`, `app "eu" "1"`)
	w.Exec(t, `DROP TRIGGER reconciler_capture_1_truncate ON apps; ALTER TABLE apps ENABLE REPLICA TRIGGER reconciler_capture_1_update`)
	require.Equal(t, []string{
		`app: trigger reconciler_capture_1_truncate on public.apps is missing | ` + mended, `app: trigger reconciler_capture_1_update on public.apps is not enabled as it was created | ` + mended,
	}, w.problems(t))
	w.marked(t, `SELECT reconciler.regenerate('app'); UPDATE apps SET image = 'b'; TRUNCATE apps`, `app everywhere whole`, `app "eu" "1"`, `app everywhere whole`)
	w.Exec(t, `DROP FUNCTION reconciler.capture_1 CASCADE`)
	require.Len(t, w.problems(t), 2)
	w.marked(t, `SELECT reconciler.regenerate('app'); INSERT INTO apps VALUES (1, 'eu')`, `app everywhere whole`, `app "eu" "1"`)

	// After an upgrade every resource of an older template is generated again, whatever state the others are in.
	w.Exec(t, `CREATE TABLE gone (id int PRIMARY KEY); SELECT reconciler.track('gone', 'gone', '{id}', '''eu'''); DROP TABLE gone CASCADE;
		UPDATE reconciler.resources SET capture_version = capture_version + 6`)
	require.Contains(t, w.problems(t), `app: its capture code is of version 7, not 1 | `+mended)
	w.marks(t)
	w.marked(t, `SELECT reconciler.regenerate()`, `app everywhere whole`)
	require.Equal(t, []string{`gone: gone, which it is made from, is gone | SELECT reconciler.untrack('gone'); | a person must`}, w.problems(t)[:1])
	w.refused(t, `SELECT reconciler.regenerate('nothing')`, `no resource is named 'nothing'`, "")
}

// C11: a session that has written before goes on when the table is altered under it, and when capture is generated anew.
func TestCaptureOfASessionThatGoesOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TABLE parts (dropped int, id int, region text, n int, PRIMARY KEY (id)) PARTITION BY RANGE (id); ALTER TABLE parts DROP COLUMN dropped;
		CREATE TABLE parts_1 (n int, region text, gone text, id int NOT NULL); ALTER TABLE parts_1 DROP COLUMN gone; ALTER TABLE parts ATTACH PARTITION parts_1 FOR VALUES FROM (0) TO (10);
		CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (10) TO (20);
		SELECT reconciler.track('part', 'parts', '{id}', 'region', 'n > 0'); INSERT INTO parts VALUES (1, 'eu', 1), (11, 'eu', 1)`)
	w.marks(t)
	session := w.Conn(t)
	for _, step := range []string{
		`SELECT 1`, `ALTER TABLE parts ADD COLUMN extra text DEFAULT 'x'`, `ALTER TABLE parts RENAME COLUMN n TO m; ALTER TABLE parts ADD COLUMN n int; UPDATE parts SET n = 1`,
		`ALTER TABLE parts DROP COLUMN n`, `SELECT reconciler.track('part', 'parts', '{id}', 'region', 'm > 0')`, `SELECT reconciler.regenerate('part')`, `ALTER TABLE parts DROP COLUMN extra`, `ALTER TABLE parts RENAME TO pieces; ALTER TABLE pieces RENAME TO parts`,
		`SELECT reconciler.track('part', 'parts', '{id}', 'upper(region)', 'm > 0'); SELECT reconciler.track('part', 'parts', '{id}', 'region', 'm > 0')`,
		`ALTER TABLE parts RENAME TO pieces; SELECT reconciler.track('part', 'pieces', '{id}', 'region', 'm > 0'); ALTER TABLE pieces RENAME TO parts`,
	} {
		w.Exec(t, step)
		w.marks(t)
		_, err := session.Exec(t.Context(), `UPDATE parts SET region = region || '1' WHERE id = 1; UPDATE parts SET region = 'eu' WHERE id = 1; UPDATE parts SET region = region || '1' WHERE id = 11; UPDATE parts SET region = 'eu' WHERE id = 11;
			DELETE FROM parts WHERE id = 1; INSERT INTO parts SELECT (jsonb_populate_record(p, '{"id": 1}')).* FROM parts p WHERE id = 11`)
		require.NoError(t, err, step)
		want := []string{`part "eu" "1"`, `part "eu1" "1"`, `part "eu1" "1"`, `part "eu" "1"`, `part "eu" "11"`, `part "eu1" "11"`, `part "eu1" "11"`, `part "eu" "11"`, `part "eu" "1"`, `part "eu" "1"`}
		if step == `ALTER TABLE parts DROP COLUMN n` { // and what is tracked has another name
			want = []string{`part everywhere "1"`, `part everywhere "1"`, `part everywhere "11"`, `part everywhere "11"`, `part everywhere "1"`, `part everywhere "1"`}
		}
		require.Equal(t, want, w.marks(t), step)
	}
}

// I8: no writer fails or loses its change while capture is generated anew, by whatever brings that about. A view is the
// writers' name for the table.
func TestWritersGoOnWhileCaptureIsGenerated(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TABLE apps (id int PRIMARY KEY, region text, n int); INSERT INTO apps SELECT i, 'eu', 0 FROM generate_series(1, 4) AS i;
		CREATE VIEW door AS SELECT * FROM apps; SELECT reconciler.track('app', 'apps', '{id}', 'region')`)
	w.marks(t)
	const writers = 4
	done := make(chan struct{})
	written, failed := make([]int, writers), make([]error, writers)
	var writing sync.WaitGroup
	for i := range writers {
		conn := w.Conn(t)
		writing.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if _, failed[i] = conn.Exec(t.Context(), fmt.Sprintf(`UPDATE door SET n = n + 1 WHERE id = %d`, i+1)); failed[i] != nil {
					return
				}
				written[i]++
			}
		})
	}
	for range 2 {
		for _, step := range []string{
			`SELECT reconciler.track('app', 'apps', '{id}', 'lower(region)', ignore => '{}')`, `SELECT reconciler.regenerate('app')`,
			`SELECT reconciler.set_notify(false)`, `SELECT reconciler.track('app', 'apps', '{id}', 'region', 'n >= 0')`, `SELECT reconciler.set_notify(true)`,
			`ALTER TABLE apps RENAME TO programs`, `SELECT reconciler.track('app', 'programs', '{id}', 'region')`,
			`ALTER TABLE programs RENAME TO apps`, `SELECT reconciler.track('app', 'apps', '{id}', 'region')`,
		} {
			w.Exec(t, step)
		}
	}
	close(done)
	writing.Wait()
	for i := range writers {
		require.NoError(t, failed[i])
		require.Equal(t, []string{fmt.Sprintf("%d %d", written[i], written[i])},
			w.lines(t, `SELECT format('%s %s', (SELECT n FROM apps WHERE id = $1), (SELECT count(*) FROM reconciler.outbox WHERE target = 'eu' AND key = $1::text))`, i+1))
	}
}

// Tables of every make: generated and identity columns, dropped columns, many columns, unlogged, inherited.
func TestCaptureOfOddTables(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	t.Run("GeneratedAndIdentityAndDropped", func(t *testing.T) {
		w.marked(t, `CREATE TABLE g (dropped1 int, id int GENERATED ALWAYS AS IDENTITY, n int, dropped2 text, region text GENERATED ALWAYS AS ('r' || n) STORED, on_ boolean, PRIMARY KEY (id));
			ALTER TABLE g DROP COLUMN dropped1, DROP COLUMN dropped2; SELECT reconciler.track('g', 'g', '{id}', 'region', 'on_ AND region <> ''r0''')`, `g everywhere whole`)
		w.marked(t, `INSERT INTO g (n, on_) VALUES (1, true), (0, true)`, `g "r1" "1"`)
		w.marked(t, `UPDATE g SET n = 2`, `g "r1" "1"`, `g "r2" "1"`, `g "r2" "2"`)
		w.marked(t, `UPDATE g SET n = n`)
		w.Exec(t, `DELETE FROM g`)
		w.marks(t)
	})
	t.Run("ManyColumns", func(t *testing.T) {
		w.Exec(t, fmt.Sprintf(`CREATE TABLE wide (id int PRIMARY KEY, region text, %s)`, strings.Join(w.lines(t, `SELECT 'c' || n || ' int' FROM generate_series(1, 300) AS n`), ", ")))
		w.marked(t, `SELECT reconciler.track('wide', 'wide', '{id}', 'region', ignore => '{c300}')`, `wide everywhere whole`)
		w.marked(t, `INSERT INTO wide (id, region) VALUES (1, 'eu'); UPDATE wide SET c300 = 1; UPDATE wide SET c299 = 1`, `wide "eu" "1"`, `wide "eu" "1"`)
		require.Equal(t, []string{"301"}, w.lines(t, `SELECT count(*)::text FROM reconciler.desired_wide, jsonb_object_keys(spec)`))
	})
	t.Run("ColumnsWithoutEquality", func(t *testing.T) {
		w.marked(t, `CREATE TABLE odd (id int PRIMARY KEY, region text, j json, x xml, p point); SELECT reconciler.track('odd', 'odd', '{id}', 'region')`, `odd everywhere whole`)
		w.marked(t, `INSERT INTO odd VALUES (1, 'eu', '{"a":1}', '<a/>', '(1,2)'); UPDATE odd SET j = '{"a":1}', x = '<a/>', p = '(1,2)'`, `odd "eu" "1"`)
		w.marked(t, `UPDATE odd SET j = '{"a":2}'; UPDATE odd SET x = '<b/>'; UPDATE odd SET p = '(1,3)'`, `odd "eu" "1"`, `odd "eu" "1"`, `odd "eu" "1"`)
	})
	t.Run("VirtualColumns", func(t *testing.T) {
		virtual := `CREATE TABLE virt (id int PRIMARY KEY, n int, region text GENERATED ALWAYS AS ('r' || n) VIRTUAL, twice int GENERATED ALWAYS AS (n * 2) VIRTUAL)`
		if w.Version < 18 { // which has no such columns
			w.refused(t, virtual, `syntax error at or near "VIRTUAL"`, "")
			return
		}
		w.Exec(t, virtual)
		hint := `Write its expression out, or make the column STORED.`
		w.refused(t, `SELECT reconciler.track('virt', 'virt', '{id}', 'region')`, `target uses region, a virtual generated column, which triggers cannot see: region`, hint)
		w.refused(t, `SELECT reconciler.track('virt', 'virt', '{id}', '''eu''', 'twice > 2')`, `running uses twice, a virtual generated column, which triggers cannot see: twice > 2`, hint)
		w.refused(t, `SELECT reconciler.track('virt', 'virt', '{id}', '''eu''', 'virt IS NOT NULL')`, `running uses region, twice, a virtual generated column, which triggers cannot see: virt IS NOT NULL`, hint)
		w.marked(t, `SELECT reconciler.track('virt', 'virt', '{id}', '''r'' || n', 'n > 1'), reconciler.track('some', 'virt', '{id}', '''eu''', ignore => '{twice}')`, `virt everywhere whole`, `some everywhere whole`)
		w.marked(t, `INSERT INTO virt VALUES (1, 2)`, `virt "r2" "1"`, `some "eu" "1"`)
		w.marked(t, `UPDATE virt SET n = 3`, `virt "r2" "1"`, `virt "r3" "1"`, `some "eu" "1"`)
		w.marked(t, `UPDATE virt SET n = 3`)
		require.Equal(t, []string{`{"n": 3, "id": 1, "twice": 6, "region": "r3"}`}, w.lines(t, `SELECT spec::text FROM reconciler.desired_virt`))
	})
	t.Run("ForeignPartition", func(t *testing.T) {
		w.marked(t, `CREATE FOREIGN DATA WRAPPER nothing; CREATE SERVER nowhere FOREIGN DATA WRAPPER nothing; CREATE TABLE ranges (id int, region text) PARTITION BY RANGE (id);
			CREATE TABLE ranges_1 PARTITION OF ranges (PRIMARY KEY (id)) FOR VALUES FROM (0) TO (10); CREATE FOREIGN TABLE ranges_2 PARTITION OF ranges FOR VALUES FROM (10) TO (20) SERVER nowhere;
			CREATE VIEW local AS SELECT 1 AS id; SELECT reconciler.track('local', 'local', '{id}', '''eu''', depends_on => '{"ranges": {"id": "id"}}')`, `local everywhere whole`)
		w.marked(t, `INSERT INTO ranges VALUES (1, 'eu'); TRUNCATE ranges_1`, `local {"id": 1}`, `local everywhere whole`)
		require.Empty(t, w.lines(t, `SELECT problem FROM reconciler.capture_problems() WHERE resource = 'local'`))
	})
	t.Run("Unlogged", func(t *testing.T) {
		w.marked(t, `CREATE UNLOGGED TABLE u (id int PRIMARY KEY); SELECT reconciler.track('u', 'u', '{id}', '''eu'''); INSERT INTO u VALUES (1)`, `u everywhere whole`, `u "eu" "1"`)
	})
	t.Run("ChildOfAnother", func(t *testing.T) {
		w.marked(t, `CREATE TABLE parent (id int, region text); CREATE TABLE child (PRIMARY KEY (id)) INHERITS (parent); SELECT reconciler.track('child', 'child', '{id}', 'region')`, `child everywhere whole`)
		w.marked(t, `INSERT INTO child VALUES (1, 'eu'); INSERT INTO parent VALUES (1, 'eu'); UPDATE parent SET region = 'us'; DELETE FROM parent`, `child "eu" "1"`, `child "eu" "1"`, `child "us" "1"`, `child "us" "1"`)
	})
	t.Run("ParentOfALaterChild", func(t *testing.T) {
		w.marked(t, `CREATE TABLE p (id int PRIMARY KEY); SELECT reconciler.track('p', 'p', '{id}', '''eu'''); CREATE TABLE c () INHERITS (p); INSERT INTO c VALUES (1); INSERT INTO p VALUES (2)`, `p everywhere whole`, `p "eu" "2"`)
		require.Equal(t, []string{"2"}, w.lines(t, `SELECT key FROM reconciler.desired_p`))
		require.Equal(t, []string{`p: public.p has child tables (INHERITS), whose rows are not seen | track the child tables too, or a view over all of them | a person must`}, w.problems(t))
	})
	t.Run("MaterializedView", func(t *testing.T) {
		w.marked(t, `CREATE MATERIALIZED VIEW m AS SELECT 1 AS id; SELECT reconciler.track('m', 'm', '{id}', '''eu'''); REFRESH MATERIALIZED VIEW m`, `m everywhere whole`)
	})
}
