package outbox_test

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
)

// C13, I8: no wait without end behind somebody's transaction, in front of everybody else's.
func TestTrackSaysWhoHoldsTheTable(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TABLE apps (id int PRIMARY KEY, region text); CREATE TABLE bases (id int PRIMARY KEY, name text); CREATE VIEW v AS SELECT id, name FROM bases`)
	locked := func(statement, message string) {
		t.Helper()
		_, err := w.Pool.Exec(t.Context(), `SET LOCAL lock_timeout = '20ms'; `+statement)
		var pgErr *pgconn.PgError
		require.ErrorAs(t, err, &pgErr)
		require.Regexp(t, message, pgErr.Message)
		require.Equal(t, "55P03", pgErr.Code)
		require.Equal(t, `Nothing was changed. End that transaction, or try again when it has ended.`, pgErr.Hint)
	}
	holder := w.Conn(t)
	hold := func(statement string) {
		t.Helper()
		_, err := holder.Exec(t.Context(), statement)
		require.NoError(t, err)
	}
	by := func(statement string) string {
		return `pid ` + fmt.Sprint(holder.PgConn().PID()) + ` \(nightly load, user postgres, transaction open for 00:00:0\d: ` + statement + `\)$`
	}
	hold(`SET application_name = 'nightly load'`)
	hold(`BEGIN`)
	hold(`INSERT INTO apps VALUES (1, 'eu')`)
	locked(`SELECT reconciler.track('app', 'apps', '{id}', 'region')`, `^cannot lock public.apps to create its triggers: it is in use by `+by(`INSERT INTO apps VALUES \(1, 'eu'\)`))
	require.Empty(t, w.lines(t, `SELECT name FROM reconciler.resources`))
	hold(`ROLLBACK; BEGIN; LOCK TABLE bases IN SHARE UPDATE EXCLUSIVE MODE`)
	locked(`SELECT reconciler.track('v', 'v', '{id}', 'name', depends_on => '{"bases": {"id": "id"}}')`, `^cannot lock public.bases to create its triggers: it is in use by `+by(`.*`))
	hold(`ROLLBACK`)

	// A reader is in nobody's way, until something is dropped.
	hold(`BEGIN`)
	hold(`SELECT FROM apps, bases`)
	w.Exec(t, `SELECT reconciler.track('app', 'apps', '{id}', 'region'), reconciler.track('v', 'v', '{id}', 'name', depends_on => '{"bases": {"id": "id"}}')`)
	w.marks(t)
	locked(`SELECT reconciler.untrack('app', 'delete')`, `^cannot lock public.apps to drop its triggers: it is in use by `+by(`SELECT FROM apps, bases`))
	locked(`SELECT reconciler.track('app', 'bases', '{id}', 'name')`, `^cannot lock public.apps to drop its triggers: it is in use by `+by(`SELECT FROM apps, bases`))
	locked(`SELECT reconciler.track('v', 'v', '{id}', 'name', depends_on => '{}')`, `^cannot lock public.bases to drop its triggers: it is in use by `+by(`SELECT FROM apps, bases`))
	hold(`ROLLBACK`)
	w.marked(t, `INSERT INTO apps VALUES (1, 'eu'); INSERT INTO bases VALUES (1, 'eu')`, `app "eu" "1"`, `v {"id": 1}`)

	hold(`BEGIN; INSERT INTO bases VALUES (2, 'eu'); PREPARE TRANSACTION '` + w.Name + `'`)
	locked(`SELECT reconciler.track('base', 'bases', '{id}', 'name')`, `^cannot lock public.bases to create its triggers: it is in use by prepared transaction '`+w.Name+`'$`)
	hold(`ROLLBACK PREPARED '` + w.Name + `'`)
	w.Exec(t, `SELECT reconciler.track('base', 'bases', '{id}', 'name')`)
}

// I8
func TestTrackBoundsItsWaitForLocks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for before, within := range map[string]string{"0": "3s", "1min": "3s", "3s": "3s", "500ms": "500ms", "2s": "2s"} {
		conn := w.Conn(t)
		_, err := conn.Exec(t.Context(), `SET lock_timeout = '`+before+`'; BEGIN`)
		require.NoError(t, err)
		var told, bound string
		require.NoError(t, conn.QueryRow(t.Context(), `SELECT reconciler.bound_lock_timeout()`).Scan(&told))
		require.NoError(t, conn.QueryRow(t.Context(), `SHOW lock_timeout`).Scan(&bound))
		require.Equal(t, []string{before, within}, []string{told, bound})
	}
	// The rest of the caller's transaction has his own limit again.
	conn := w.Conn(t)
	_, err := conn.Exec(t.Context(), `CREATE TABLE apps (id int PRIMARY KEY); SET lock_timeout = '1min'; BEGIN`)
	require.NoError(t, err)
	for _, statement := range []string{
		`SELECT reconciler.track('app', 'apps', '{id}', '''eu''')`, `SELECT reconciler.track('app', 'apps', '{id}', '''us''')`, `SELECT reconciler.regenerate('app')::text`, `SELECT reconciler.untrack('app')`,
	} {
		var limit, unused string
		require.NoError(t, conn.QueryRow(t.Context(), statement).Scan(&unused))
		require.NoError(t, conn.QueryRow(t.Context(), `SHOW lock_timeout`).Scan(&limit))
		require.Equal(t, "1min", limit, statement)
	}
}

// I8: the leader looks at what it captures every few seconds. A lock on a partition until the end of that look would deadlock with DDL,
// and it may be the user's transaction that PostgreSQL cancels.
func TestF188_LooksAtTheCatalogueLockNoTable(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TABLE apps (id int PRIMARY KEY, region text) PARTITION BY RANGE (id); CREATE TABLE bases (id int PRIMARY KEY, name text)`,
		`CREATE TABLE apps_1 PARTITION OF apps FOR VALUES FROM (0) TO (10) PARTITION BY RANGE (id); CREATE TABLE apps_1_1 PARTITION OF apps_1 FOR VALUES FROM (0) TO (5)`,
		`CREATE VIEW v AS SELECT id, name FROM bases; SELECT reconciler.track('app', 'apps', '{id}', 'region'), reconciler.track('v', 'v', '{id}', 'name', depends_on => '{"bases": {"id": "id"}}')`)
	looks := []string{
		`SELECT (SELECT count(*) FROM reconciler.capture_problems())::text`,
		`SELECT (SELECT count(*) FROM reconciler.resources r CROSS JOIN LATERAL jsonb_each(reconciler.source_fingerprints(r.id)))::text`,
		`SELECT (SELECT count(*) FROM reconciler.resources r CROSS JOIN LATERAL reconciler.places(r.id))::text`,
	}
	before := []string{}
	for _, look := range looks {
		before = append(before, w.lines(t, look)...)
	}
	holder := w.Conn(t)
	_, err := holder.Exec(t.Context(), `BEGIN; LOCK TABLE apps, apps_1, apps_1_1, bases, v IN ACCESS EXCLUSIVE MODE`)
	require.NoError(t, err)
	looker := w.Conn(t)
	_, err = looker.Exec(t.Context(), `SET lock_timeout = '1s'`)
	require.NoError(t, err)
	for n, look := range looks {
		var found string
		require.NoError(t, looker.QueryRow(t.Context(), look).Scan(&found), look)
		require.Equal(t, before[n], found)
	}
}
