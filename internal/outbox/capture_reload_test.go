package outbox_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// C15, I12: a database that was dumped and loaded keeps capturing, and is known to be another.
func TestCaptureAfterDumpAndReload(t *testing.T) {
	t.Parallel()
	w := newWorld(t, joined, `CREATE SCHEMA "My Shop"; CREATE TYPE "My Shop".mood AS ENUM ('on', 'off');
		CREATE TABLE "My Shop"."Items" (day date, code char(8), mood "My Shop".mood NOT NULL, PRIMARY KEY (day, code)) PARTITION BY RANGE (day);
		CREATE TABLE "My Shop".items_2024 PARTITION OF "My Shop"."Items" FOR VALUES FROM ('2024-01-01') TO ('2025-01-01');
		CREATE FUNCTION is_on("My Shop".mood) RETURNS boolean IMMUTABLE LANGUAGE sql AS $$ SELECT $1 = 'on'::"My Shop".mood $$;
		SELECT reconciler.track('item', '"My Shop"."Items"', '{day,code}', '''eu''', 'is_on(mood)', ignore => '{}', always => true);
		INSERT INTO "My Shop"."Items" VALUES ('2024-02-01', 'a/b', 'on'); INSERT INTO workspaces VALUES (1, 'one'); INSERT INTO apps VALUES (1, 1, 'a', 'eu')`)
	w.Exec(t, `INSERT INTO reconciler.targets (name, configured) VALUES ('eu', true), ('us', true), ('old', false)`)
	require.Equal(t, []string{"false", "false"}, append(w.lines(t, `SELECT reconciler.adopt()::text`), w.lines(t, `SELECT reconciler.adopt()::text`)...))
	w.Exec(t, `SELECT reconciler.write_cursor(id, 1, pg_current_snapshot()) FROM reconciler.targets; INSERT INTO reconciler.ticks (revision, snapshot) VALUES (4000000000, pg_current_snapshot())`)
	before := w.marksAfter(t, 0)

	copied := &world{DB: pgtest.Empty(t)}
	copied.Restore(t, w.Dump(t))
	require.Equal(t, before, copied.marks(t))
	require.Empty(t, copied.problems(t))
	definitions := `SELECT format('%s %s %s %s', name, relation, target_bound, running_bound) FROM reconciler.resources ORDER BY name`
	require.Equal(t, w.lines(t, definitions), copied.lines(t, definitions))

	// Tracking goes on, in every kind of table.
	copied.marked(t, `INSERT INTO "My Shop"."Items" VALUES ('2024-02-02', 'c', 'on'), ('2024-02-03', 'd', 'off'); UPDATE workspaces SET name = 'uno'; UPDATE workspaces SET seen = 1; TRUNCATE "My Shop".items_2024`,
		`item "eu" "2024-02-02/c"`, `fleet {"workspace_id": 1}`, `item everywhere whole`)
	copied.marked(t, `SET LOCAL session_replication_role = replica; INSERT INTO "My Shop"."Items" VALUES ('2024-03-01', 'e', 'on')`, `item "eu" "2024-03-01/e"`)
	copied.marked(t, `SELECT reconciler.regenerate('item'), reconciler.regenerate('fleet')`, `item everywhere whole`, `fleet everywhere whole`)

	// The first leader notices: nothing of the old history is believed, everything is applied again.
	require.Equal(t, []string{"true"}, copied.lines(t, `SELECT reconciler.adopt()::text`))
	require.Equal(t, []string{"false"}, copied.lines(t, `SELECT reconciler.adopt()::text`))
	require.Equal(t, []string{"epoch 1, floor 4000001000, newest tick 4000001000"}, copied.lines(t, `SELECT format('epoch %s, floor %s, newest tick %s', epoch, floor_revision, (SELECT max(revision) FROM reconciler.ticks)) FROM reconciler.installation`))
	require.Equal(t, []string{"eu restored t", "us restored t"}, copied.lines(t, `SELECT format('%s %s %s', t.name, s.reason, s.verify) FROM reconciler.sync_runs s JOIN reconciler.targets t ON t.id = s.target_id WHERE s.state = 'requested' ORDER BY 1`))
	require.Equal(t, []string{"0 cursors, 1 ticks"}, copied.lines(t, `SELECT format('%s cursors, %s ticks', (SELECT count(*) FROM reconciler.cursors) + (SELECT count(*) FROM reconciler.targets WHERE clean), (SELECT count(*) FROM reconciler.ticks))`))
	// The original is still itself.
	require.Equal(t, []string{"false"}, w.lines(t, `SELECT reconciler.adopt()::text`))
}

// A loaded dump numbers columns anew where some had been dropped. That renames none.
func TestF188_DroppedColumnsAreNoRenamesAfterDumpAndReload(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TABLE apps (old int, id int PRIMARY KEY, note text, region text, image text); ALTER TABLE apps DROP COLUMN old;
		SELECT reconciler.track('app', 'apps', '{id}', 'region', spec => 'to_jsonb(image)'); ALTER TABLE apps DROP COLUMN note`)
	require.Empty(t, w.problems(t))
	copied := &world{DB: pgtest.Empty(t)}
	copied.Restore(t, w.Dump(t))
	require.Empty(t, copied.problems(t))
	copied.marks(t)
	copied.marked(t, `ALTER TABLE apps ADD COLUMN more int, ADD COLUMN most int; SELECT reconciler.regenerate('app'); INSERT INTO apps VALUES (1, 'eu')`, `app everywhere whole`, `app "eu" "1"`)
	require.Empty(t, copied.problems(t))
}

// A renamed column is noticed there all the same.
func TestF188_RenamesAreNoticedAfterDumpAndReload(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TABLE apps (old int, id int PRIMARY KEY, region text); ALTER TABLE apps DROP COLUMN old;
		SELECT reconciler.track('app', 'apps', '{id}', 'region'); ALTER TABLE apps RENAME COLUMN region TO place`)
	copied := &world{DB: pgtest.Empty(t)}
	copied.Restore(t, w.Dump(t))
	require.Equal(t, w.problems(t), copied.problems(t))
	require.Len(t, copied.problems(t), 2)
}

// I12: a dump that is loaded into the database that it was made of undoes what was committed since. Server, timeline and
// database are the same.
func TestF8_DumpLoadedIntoTheSameDatabaseIsNoticed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, apps, `INSERT INTO reconciler.targets (name, configured) VALUES ('eu', true)`)
	require.Equal(t, []string{"false"}, w.lines(t, `SELECT reconciler.adopt()::text`), "a fresh one is not taken for restored")
	require.Equal(t, []string{"false"}, w.lines(t, `SELECT reconciler.adopt()::text`))
	w.Restore(t, w.Dump(t), "--clean")
	require.Equal(t, []string{"true"}, w.lines(t, `SELECT reconciler.adopt()::text`))
	require.Equal(t, []string{"false"}, w.lines(t, `SELECT reconciler.adopt()::text`))
	require.Equal(t, []string{"epoch 1"}, w.lines(t, `SELECT format('epoch %s', epoch) FROM reconciler.installation`))
	require.Equal(t, []string{"eu restored"}, w.lines(t, `SELECT format('%s %s', t.name, s.reason) FROM reconciler.sync_runs s JOIN reconciler.targets t ON t.id = s.target_id WHERE s.state = 'requested'`))
	// What empties and rewrites the table is no restore.
	w.Exec(t, `VACUUM FULL reconciler.installation`)
	require.Equal(t, []string{"false"}, w.lines(t, `SELECT reconciler.adopt()::text`))
}

// A copy of the files (CREATE DATABASE ... TEMPLATE, as after a restore of a base backup under another name) is noticed, too.
func TestAdoptNoticesACopiedDatabase(t *testing.T) {
	t.Parallel()
	w := newWorld(t, apps, `SELECT reconciler.adopt()`)
	w.Pool.Close()
	name := pgx.Identifier{w.Name + "_copy"}.Sanitize()
	admin := pgtest.Empty(t)
	admin.Exec(t, `CREATE DATABASE `+name+` TEMPLATE `+w.Name)
	defer admin.Exec(t, `DROP DATABASE `+name)
	config, err := pgx.ParseConfig(w.URL)
	require.NoError(t, err)
	config.Database += "_copy"
	conn, err := pgx.ConnectConfig(t.Context(), config)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(t.Context())) }()
	var adopted bool
	require.NoError(t, conn.QueryRow(t.Context(), `SELECT reconciler.adopt()`).Scan(&adopted))
	require.True(t, adopted)
}
