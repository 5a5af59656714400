package outbox_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// C72: with ALWAYS the triggers fire for replicated changes, too. Without it those are found by the sync: the desired
// view has the row.
func TestCaptureOfReplicatedChanges(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TABLE apps (id int PRIMARY KEY, region text); CREATE TABLE bases (id int PRIMARY KEY); CREATE VIEW v AS SELECT id FROM bases;
		SELECT reconciler.track('always', 'apps', '{id}', 'region', always => true), reconciler.track('origin', 'apps', '{id}', 'region'),
			reconciler.track('v', 'v', '{id}', '''eu''', depends_on => '{"bases": {"id": "id"}}', always => true)`)
	w.marked(t, `SET LOCAL session_replication_role = replica; INSERT INTO apps VALUES (1, 'eu'); UPDATE apps SET region = 'us'; DELETE FROM apps; TRUNCATE apps; INSERT INTO bases VALUES (1); TRUNCATE bases`,
		`always "eu" "1"`, `always "eu" "1"`, `always "us" "1"`, `always "us" "1"`, `always everywhere whole`, `v {"id": 1}`, `v everywhere whole`)
	w.marked(t, `INSERT INTO apps VALUES (2, 'eu')`, `always "eu" "2"`, `origin "eu" "2"`)
	require.Empty(t, w.problems(t))
	// Somebody's plain ENABLE TRIGGER is not what was asked for.
	w.Exec(t, `ALTER TABLE apps ENABLE TRIGGER USER`)
	require.Len(t, w.problems(t), 3)
	w.Exec(t, `SELECT reconciler.regenerate('always')`)
	require.Empty(t, w.problems(t))
}

// C72, against a real subscription.
func TestCaptureOnASubscriber(t *testing.T) {
	t.Parallel()
	table := `CREATE TABLE apps (id int PRIMARY KEY, region text);`
	source := pgtest.Empty(t)
	source.Exec(t, table+` INSERT INTO apps VALUES (1, 'eu'); CREATE PUBLICATION p FOR TABLE apps`)
	w := newWorld(t, table, `SELECT reconciler.track('app', 'apps', '{id}', 'region', always => true), reconciler.track('origin', 'apps', '{id}', 'region')`)
	source.Exec(t, `SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, w.Name)
	// The server connects to itself, where its own idea of the port counts.
	w.Exec(t, fmt.Sprintf(`CREATE SUBSCRIPTION s CONNECTION 'host=127.0.0.1 port=%s user=postgres dbname=%s' PUBLICATION p WITH (create_slot = false, slot_name = '%s')`,
		w.lines(t, `SHOW port`)[0], source.Name, w.Name))
	arrive := func(want ...string) {
		t.Helper()
		var got []string
		require.Eventually(t, func() bool { got = append(got, w.marks(t)...); return len(got) >= len(want) }, pgtest.Patience, 5*time.Millisecond)
		require.Equal(t, want, got)
	}
	arrive(`app "eu" "1"`)
	source.Exec(t, `INSERT INTO apps VALUES (2, 'us'); UPDATE apps SET region = 'jp' WHERE id = 1; DELETE FROM apps WHERE id = 2`)
	arrive(`app "us" "2"`, `app "eu" "1"`, `app "jp" "1"`, `app "us" "2"`)
	source.Exec(t, `TRUNCATE apps`)
	arrive(`app everywhere whole`)
}
