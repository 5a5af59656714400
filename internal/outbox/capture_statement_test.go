package outbox_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

const apps = `CREATE TABLE apps (id int PRIMARY KEY, region text, on_ boolean NOT NULL DEFAULT true, image text, seen timestamptz, note text);
	SELECT reconciler.track('app', 'apps', '{id}', 'region', 'on_', ignore => '{seen,note}');`

// C1, C2, C4, C5, C7, C8
func TestCaptureOfOneRow(t *testing.T) {
	t.Parallel()
	w := newWorld(t, apps)
	steps := []struct {
		name, sql string
		want      []string
	}{
		{"Insert", `INSERT INTO apps VALUES (1, 'eu')`, []string{`app "eu" "1"`}},
		{"InsertSeveral", `INSERT INTO apps VALUES (2, 'eu'), (3, 'us')`, []string{`app "eu" "2"`, `app "us" "3"`}},
		{"InsertWithoutTarget", `INSERT INTO apps VALUES (4, NULL)`, []string{`app everywhere "4"`}},
		{"InsertNotRunning", `INSERT INTO apps VALUES (5, 'eu', false)`, nil},
		{"Update", `UPDATE apps SET image = 'a:1' WHERE id = 1`, []string{`app "eu" "1"`}},
		{"UpdateOfNothing", `UPDATE apps SET image = 'a:1', region = region WHERE id = 1`, nil},
		{"UpdateOfIgnoredColumns", `UPDATE apps SET seen = now(), note = 'x' WHERE id < 4`, nil},
		{"UpdateOfIgnoredAndOther", `UPDATE apps SET seen = now(), image = 'a:2' WHERE id = 1`, []string{`app "eu" "1"`}},
		{"UpdateOfNoRow", `UPDATE apps SET image = 'b' WHERE id = 99`, nil},
		{"UpdateWhileNotRunning", `UPDATE apps SET image = 'b', region = 'us' WHERE id = 5`, nil},
		{"DeleteOfNeverRunning", `DELETE FROM apps WHERE id = 5`, nil},
		{"Move", `UPDATE apps SET region = 'us' WHERE id = 1`, []string{`app "eu" "1"`, `app "us" "1"`}},
		{"MoveToEveryTarget", `UPDATE apps SET region = NULL WHERE id = 1`, []string{`app "us" "1"`, `app everywhere "1"`}},
		{"MoveFromEveryTarget", `UPDATE apps SET region = 'eu' WHERE id = 1`, []string{`app everywhere "1"`, `app "eu" "1"`}},
		{"KeyChange", `UPDATE apps SET id = 10 WHERE id = 1`, []string{`app "eu" "1"`, `app "eu" "10"`}},
		{"KeyChangeAndMove", `UPDATE apps SET id = 1, region = 'us' WHERE id = 10`, []string{`app "eu" "10"`, `app "us" "1"`}},
		{"SwitchOff", `UPDATE apps SET on_ = false WHERE id = 1`, []string{`app "us" "1"`}},
		{"SwitchOnElsewhere", `UPDATE apps SET on_ = true, region = 'eu' WHERE id = 1`, []string{`app "eu" "1"`}},
		{"SwitchOffAndMove", `UPDATE apps SET on_ = false, region = 'us' WHERE id = 1`, []string{`app "eu" "1"`}},
		{"SwitchOn", `UPDATE apps SET on_ = true WHERE id = 1`, []string{`app "us" "1"`}},
		{"Delete", `DELETE FROM apps WHERE id = 1`, []string{`app "us" "1"`}},
		{"DeleteAndInsert", `DELETE FROM apps WHERE id = 2; INSERT INTO apps VALUES (2, 'eu', true, 'new')`, []string{`app "eu" "2"`, `app "eu" "2"`}}, // C6
		{"Truncate", `TRUNCATE apps`, []string{`app everywhere whole`}},
		{"TruncateOfNothing", `TRUNCATE apps RESTART IDENTITY`, []string{`app everywhere whole`}},
	}
	for _, step := range steps {
		t.Run(step.name, func(t *testing.T) { w.marked(t, step.sql, step.want...) })
	}
}

// C1
func TestCaptureOfEveryKindOfStatement(t *testing.T) {
	t.Parallel()
	w := newWorld(t, apps, `CREATE TABLE source (id int, region text); INSERT INTO source VALUES (1, 'eu'), (2, 'us')`)
	upsert := `INSERT INTO apps SELECT id, region FROM source ORDER BY id ON CONFLICT (id) `
	w.marked(t, upsert+`DO NOTHING`, `app "eu" "1"`, `app "us" "2"`)
	w.marked(t, upsert+`DO NOTHING`)
	w.marked(t, upsert+`DO UPDATE SET image = apps.image`)
	w.marked(t, upsert+`DO UPDATE SET region = 'eu'`, `app "us" "2"`, `app "eu" "2"`)
	w.marked(t, `WITH gone AS (DELETE FROM apps WHERE id = 2 RETURNING *), made AS (INSERT INTO apps SELECT id + 10, 'us' FROM gone RETURNING id)
		UPDATE apps SET image = 'cte' FROM made WHERE apps.id = 1`, `app "eu" "2"`, `app "us" "12"`, `app "eu" "1"`)
	w.marked(t, `UPDATE apps SET image = 'from' FROM source WHERE apps.id = source.id`, `app "eu" "1"`)
	w.marked(t, `DELETE FROM apps USING source WHERE apps.id = source.id + 10`, `app "us" "12"`)
	w.marked(t, `DO $$ BEGIN FOR i IN 20..22 LOOP INSERT INTO apps VALUES (i, 'eu'); END LOOP; END $$`, `app "eu" "20"`, `app "eu" "21"`, `app "eu" "22"`)
	w.marked(t, `CREATE VIEW eu AS SELECT id, region, image FROM apps WHERE region = 'eu'; UPDATE eu SET image = 'view' WHERE id = 20`, `app "eu" "20"`)
	w.marked(t, `SELECT 1 FROM apps FOR UPDATE; COMMENT ON TABLE apps IS 'x'; ANALYZE apps`)

	_, err := w.Pool.CopyFrom(t.Context(), pgx.Identifier{"apps"}, []string{"id", "region", "on_"}, pgx.CopyFromRows([][]any{{30, "eu", true}, {31, "us", false}, {32, nil, true}}))
	require.NoError(t, err)
	require.Equal(t, []string{`app "eu" "30"`, `app everywhere "32"`}, w.marks(t))
}

// C1
func TestCaptureOfMerge(t *testing.T) {
	t.Parallel()
	w := newWorld(t, apps, `INSERT INTO apps SELECT id, 'eu' FROM generate_series(1, 3) AS id; CREATE TABLE source (id int, region text);
		INSERT INTO source VALUES (1, 'us'), (2, NULL), (3, 'eu'), (4, 'us')`)
	merge := `MERGE INTO apps USING (SELECT * FROM source ORDER BY id) AS s ON apps.id = s.id
		WHEN MATCHED AND s.region IS NULL THEN DELETE
		WHEN MATCHED THEN UPDATE SET region = s.region
		WHEN NOT MATCHED THEN INSERT (id, region) VALUES (s.id, s.region)`
	if w.Version < 15 { // which has no MERGE: nothing to capture
		w.refused(t, merge, `syntax error at or near "MERGE"`, "")
		return
	}
	w.Exec(t, merge)
	require.ElementsMatch(t, []string{`app "eu" "1"`, `app "us" "1"`, `app "eu" "2"`, `app "us" "4"`}, w.marks(t))
}

// C3
func TestCaptureOfWhatIsRolledBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, apps)
	w.marked(t, `BEGIN; INSERT INTO apps VALUES (1, 'eu'); TRUNCATE apps; ROLLBACK`)
	w.marked(t, `BEGIN; INSERT INTO apps VALUES (1, 'eu'); SAVEPOINT a; INSERT INTO apps VALUES (2, 'eu'); UPDATE apps SET region = 'us'; ROLLBACK TO a;
		INSERT INTO apps VALUES (3, 'eu'); SAVEPOINT b; INSERT INTO apps VALUES (4, 'eu'); RELEASE b; COMMIT`, `app "eu" "1"`, `app "eu" "3"`, `app "eu" "4"`)
	w.marked(t, `DO $$ BEGIN BEGIN INSERT INTO apps VALUES (9, 'eu'); PERFORM 1 / 0; EXCEPTION WHEN division_by_zero THEN NULL; END; END $$`)
	w.refused(t, `INSERT INTO apps VALUES (7, 'eu'), (7, 'eu')`, `duplicate key value violates unique constraint "apps_pkey"`, "")
	require.Empty(t, w.marks(t))

	// Every row names its top-level transaction: that is what a snapshot knows. (I1)
	w.Exec(t, `BEGIN; INSERT INTO apps VALUES (5, 'eu'); SAVEPOINT a; INSERT INTO apps VALUES (6, 'eu'); COMMIT`)
	require.Equal(t, []string{"1"}, w.lines(t, `SELECT count(DISTINCT xid)::text FROM reconciler.outbox WHERE key IN ('5', '6')`))
	require.Len(t, w.marks(t), 2)
}

// C1
func TestCaptureOfCascades(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TABLE parents (id int PRIMARY KEY);
		CREATE TABLE children (id int PRIMARY KEY, parent int REFERENCES parents ON DELETE CASCADE ON UPDATE CASCADE, region text NOT NULL);
		CREATE TABLE optional (id int PRIMARY KEY, parent int REFERENCES parents ON DELETE SET NULL DEFERRABLE INITIALLY DEFERRED, region text NOT NULL);
		SELECT reconciler.track('child', 'children', '{id}', 'region'), reconciler.track('optional', 'optional', '{id}', 'region');
		INSERT INTO parents VALUES (1), (2), (3);
		INSERT INTO children VALUES (10, 1, 'eu'), (11, 1, 'us'), (20, 2, 'eu'); INSERT INTO optional VALUES (10, 1, 'eu'), (20, 2, 'eu')`)
	w.marked(t, `DELETE FROM parents WHERE id = 1`, `child "eu" "10"`, `child "us" "11"`, `optional "eu" "10"`)
	w.marked(t, `UPDATE parents SET id = 5 WHERE id = 3`)
	w.refused(t, `UPDATE parents SET id = 6 WHERE id = 2`, `update or delete on table "parents" violates foreign key constraint "optional_parent_fkey" on table "optional"`, "")
	require.Empty(t, w.marks(t))
	w.marked(t, `DELETE FROM optional; UPDATE parents SET id = 6 WHERE id = 2`, `optional "eu" "20"`, `optional "eu" "10"`, `child "eu" "20"`)
	w.marked(t, `BEGIN; INSERT INTO optional VALUES (7, 7, 'eu'); INSERT INTO parents VALUES (7); COMMIT`, `optional "eu" "7"`)
	w.marked(t, `TRUNCATE parents CASCADE`, `child everywhere whole`, `optional everywhere whole`)
}

// C1, C73
func TestCaptureOfPartitions(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TABLE apps (id int, region text, on_ boolean DEFAULT true, seen int, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
		CREATE TABLE apps_eu PARTITION OF apps FOR VALUES IN ('eu');
		CREATE TABLE apps_us PARTITION OF apps FOR VALUES IN ('us') PARTITION BY RANGE (id);
		CREATE TABLE apps_us_1 PARTITION OF apps_us FOR VALUES FROM (0) TO (100);
		SELECT reconciler.track('app', 'apps', '{id,region}', 'region', 'on_', ignore => '{seen}')`)
	w.marked(t, `INSERT INTO apps VALUES (1, 'eu'), (2, 'us')`, `app "eu" "1/eu"`, `app "us" "2/us"`)
	w.marked(t, `INSERT INTO apps_us_1 VALUES (3, 'us')`, `app "us" "3/us"`)
	w.marked(t, `UPDATE apps SET seen = 1; UPDATE apps_eu SET seen = 2`)
	w.marked(t, `UPDATE apps SET region = 'us' WHERE id = 1`, `app "eu" "1/eu"`, `app "us" "1/us"`)
	w.marked(t, `UPDATE apps_us SET id = 4 WHERE id = 3`, `app "us" "3/us"`, `app "us" "4/us"`)
	w.marked(t, `DELETE FROM apps_us_1 WHERE id = 4`, `app "us" "4/us"`)
	w.marked(t, `TRUNCATE apps_us_1`, `app everywhere whole`)
	w.marked(t, `TRUNCATE apps`, `app everywhere whole`, `app everywhere whole`, `app everywhere whole`, `app everywhere whole`)

	// A partition that comes later has the row triggers at once, the one for TRUNCATE when capture is mended.
	w.marked(t, `CREATE TABLE apps_jp (LIKE apps); INSERT INTO apps_jp VALUES (1, 'jp', true); ALTER TABLE apps ATTACH PARTITION apps_jp FOR VALUES IN ('jp')`)
	w.marked(t, `INSERT INTO apps VALUES (2, 'jp'); UPDATE apps_jp SET on_ = false WHERE id = 1`, `app "jp" "2/jp"`, `app "jp" "1/jp"`)
	require.Equal(t, []string{`app: trigger reconciler_capture_1_truncate on public.apps_jp is missing | SELECT reconciler.regenerate('app'); | healable`}, w.problems(t))
	w.marked(t, `SELECT reconciler.regenerate('app')`, `app everywhere whole`)
	require.Empty(t, w.problems(t))
	w.marked(t, `TRUNCATE apps_jp`, `app everywhere whole`)

	// A detached one is no part of the resource; what is left on it goes with the next track().
	w.marked(t, `ALTER TABLE apps DETACH PARTITION apps_jp; INSERT INTO apps_jp VALUES (9, 'jp')`)
	w.marked(t, `SELECT reconciler.track('app', 'apps', '{id,region}', 'region', 'on_')`, `app everywhere whole`)
	w.marked(t, `TRUNCATE apps_jp`)
	require.Empty(t, w.problems(t))
}
