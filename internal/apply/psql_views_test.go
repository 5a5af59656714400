package apply_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/migrate"
	"github.com/pgreconciler/reconciler/internal/pgtest"
)

func TestPsqlObjects(t *testing.T) {
	t.Parallel()
	db := newPsqlDB(t)

	require.Equal(t, "target, resource, key, state, wanted, desired_revision, applied_revision, attempts, last_error, next_attempt_at, applied_at, held_by, present, protected, "+
		"observed_version, observed_state, healthy, observed_at, observed_message", db.line(t, `
		SELECT string_agg(attname, ', ' ORDER BY attnum) FROM pg_attribute WHERE attrelid = 'reconciler.objects'::regclass AND attnum > 0`))

	db.ledger(t, "eu", "1", "applied", "")
	db.ledger(t, "us", "2", "failing", "attempts = 3, last_error = 'no route'")
	require.Equal(t, []string{
		"eu | deployments | 1 | applied | t | 9 | 9 | 0 |  |  | 2026-01-02 03:04:09+00 |  | t | f |  |  |  |  | ",
		"us | deployments | 2 | failing | t | 9 | 9 | 3 | no route | 2026-01-02 03:04:05+00 | 2026-01-02 03:04:09+00 |  | t | f |  |  |  |  | ",
	}, db.lines(t, "SELECT * FROM reconciler.objects ORDER BY target"))
}

// Each step adds one more trouble to the target; the state names the one to look at first.
func TestPsqlStatusStatePrecedence(t *testing.T) {
	t.Parallel()
	db := newPsqlDB(t)
	conn := db.Conn(t)
	state := func() string { return lines(t, conn, "SELECT state FROM reconciler.status WHERE target = 'eu'")[0] }

	require.Equal(t, "ok", state())
	for _, step := range []struct{ state, sql string }{
		{"ok", `INSERT INTO reconciler.ledger (target_id, resource_id, key, state, wanted, present, applied_hash) SELECT t.id, r.id, 'a', 'applied', true, true, '\x00112233445566778899aabbccddeeff' FROM reconciler.targets t, reconciler.resources r WHERE t.name = 'eu'`},
		{"pending", `INSERT INTO reconciler.ticks (revision, snapshot) VALUES (11, pg_current_snapshot())`},
		{"pending", `INSERT INTO reconciler.ledger (target_id, resource_id, key, state, wanted, present, next_attempt_at) SELECT t.id, r.id, 'b', 'pending', true, true, now() FROM reconciler.targets t, reconciler.resources r WHERE t.name = 'eu'`},
		{"pending", `INSERT INTO reconciler.ledger (target_id, resource_id, key, state, wanted, present, held_by) SELECT t.id, r.id, 'c', 'held', false, true, 'sync' FROM reconciler.targets t, reconciler.resources r WHERE t.name = 'eu'`},
		{"syncing", `INSERT INTO reconciler.sync_runs (target_id, reason, state, started_at) SELECT id, 'interval', 'running', now() FROM reconciler.targets WHERE name = 'eu'`},
		{"draining", `UPDATE reconciler.targets SET draining = true WHERE name = 'eu'`},
		{"error", `UPDATE reconciler.heartbeats SET failing = '[{"loop": "rows", "target": "eu", "for": 20, "last": 1, "failures": 3, "error": "no such view"}]'`},
		{"failing", `INSERT INTO reconciler.ledger (target_id, resource_id, key, state, wanted, present) SELECT t.id, r.id, 'd', 'blocked', true, true FROM reconciler.targets t, reconciler.resources r WHERE t.name = 'eu'`},
		{"held", `UPDATE reconciler.targets SET guard_since = now(), guard_deletes = 1, guard_objects = 1 WHERE name = 'eu'`},
		{"down", `UPDATE reconciler.targets SET circuit_open_since = now(), circuit_error = 'x' WHERE name = 'eu'`},
		{"error", `UPDATE reconciler.heartbeats SET failing = failing || '{"loop": "read", "target": "eu", "for": 10, "last": 1, "failures": 3, "error": "no such table"}'`},
		{"unowned", `UPDATE reconciler.targets SET lease_ttl = '0' WHERE name = 'eu'`},
		{"paused", `UPDATE reconciler.targets SET paused_at = now(), paused_by = 'ann' WHERE name = 'eu'`},
		{"unknown", `UPDATE reconciler.targets SET configured = false WHERE name = 'eu'`},
	} {
		_, err := conn.Exec(t.Context(), step.sql)
		require.NoError(t, err, step.sql)
		require.Equal(t, step.state, state(), step.sql)
	}
}

func TestPsqlStatusStateByItself(t *testing.T) {
	t.Parallel()
	db := newPsqlDB(t)
	conn := db.Conn(t)
	for _, c := range []struct{ state, sql string }{
		{"unowned", `UPDATE reconciler.targets SET owner = NULL`},
		{"syncing", `DELETE FROM reconciler.cursors`},
		{"syncing", `UPDATE reconciler.installation SET floor_revision = 11`},
		{"syncing", `INSERT INTO reconciler.sync_runs (target_id, reason) SELECT id, 'resync' FROM reconciler.targets`},
		{"held", `INSERT INTO reconciler.ledger (target_id, resource_id, key, state, wanted, present, held_by) SELECT t.id, r.id, 'c', 'held', false, true, 'guard' FROM reconciler.targets t, reconciler.resources r`},
		{"failing", `INSERT INTO reconciler.ledger (target_id, resource_id, key, state, wanted, present, next_attempt_at) SELECT t.id, r.id, 'c', 'failing', false, true, now() FROM reconciler.targets t, reconciler.resources r`},
		{"error", `UPDATE reconciler.heartbeats SET failing = '[{"loop": "definitions", "target": "", "for": 10, "last": 1, "failures": 3, "error": "no such table"}]'`},
	} {
		_, err := conn.Exec(t.Context(), "ROLLBACK; BEGIN; "+c.sql)
		require.NoError(t, err, c.sql)
		require.Equal(t, []string{"eu | " + c.state, "us | " + c.state}, lines(t, conn, "SELECT target, state FROM reconciler.status ORDER BY target"), c.sql)
	}
}

func TestPsqlStatusShowsEverything(t *testing.T) {
	t.Parallel()
	db := newPsqlDB(t)
	require.Equal(t, []string{
		"eu | ok | file | host-1 | 0 | 0 | 0 | 0 | 0 | 0 | 0 | 0 |  |  |  |  |  |  |  | ",
		"us | ok | file | host-1 | 0 | 0 | 0 | 0 | 0 | 0 | 0 | 0 |  |  |  |  |  |  |  | ",
	}, db.lines(t, "SELECT * FROM reconciler.status ORDER BY target"))

	db.ledger(t, "us", "1", "held", "held_by = 'guard', wanted = false")
	require.Equal(t, "held | 1 delete held; SELECT reconciler.approve('us');", db.line(t, "SELECT state, guard FROM reconciler.status WHERE target = 'us'"))

	db.ledger(t, "eu", "1", "applied", "")
	db.ledger(t, "eu", "2", "applied", "")
	db.ledger(t, "eu", "3", "pending", "desired_revision = 8")
	db.ledger(t, "eu", "4", "failing", "attempts = 2, last_error = 'no route'")
	db.ledger(t, "eu", "5", "blocked", "last_error = 'bad spec'")
	db.ledger(t, "eu", "6", "blocked", "last_error = 'bad spec'")
	db.ledger(t, "eu", "7", "held", "held_by = 'guard', wanted = false")
	db.tick(t, 11)
	db.tick(t, 12)
	db.Exec(t, `
		UPDATE reconciler.targets SET paused_at = '2026-01-02 10:00:00.5+00', paused_by = 'ann', paused_reason = 'new switch',
			guard_since = '2026-01-02 11:00:00.5+00', guard_deletes = 1, guard_objects = 7, circuit_open_since = '2026-01-02 12:00:00.5+00', circuit_error = NULL, trouble = 'reload failed' WHERE name = 'eu';
		INSERT INTO reconciler.sync_runs (target_id, reason, state, started_at, finished_at) SELECT id, 'interval', 'complete', '2026-01-01 00:00:00+00', '2026-01-01 00:00:05+00' FROM reconciler.targets WHERE name = 'eu';
		INSERT INTO reconciler.sync_runs (target_id, resource_id, reason, state, started_at, finished_at) SELECT t.id, r.id, 'resync', 'complete', '2026-01-02 00:00:00+00', '2026-01-02 00:00:05+00' FROM reconciler.targets t, reconciler.resources r WHERE t.name = 'eu';
		INSERT INTO reconciler.sync_runs (target_id, reason, state, started_at, rows, upserts, tombstones, at_resource, at_key) SELECT id, 'interval', 'running', '2026-01-02 13:00:00+00', 5000, 12, 3, 'deployments', '4711' FROM reconciler.targets WHERE name = 'eu';
		INSERT INTO reconciler.sync_runs (target_id, resource_id, reason, requested_at, requested_by) SELECT t.id, r.id, 'resync', '2026-01-02 13:00:01+00', 'ann' FROM reconciler.targets t, reconciler.resources r WHERE t.name = 'eu';`)
	require.Equal(t, "eu | paused | file | host-1 | 7 | 2 | 1 | 1 | 2 | 1 | 2 | t | 2026-01-02 03:04:10+00 | 2026-01-01 00:00:05+00 | "+
		"interval sync since 2026-01-02 13:00:00+00: 5000 rows read, 12 to apply, 3 to delete, at deployments/4711; resync sync of deployments requested by ann at 2026-01-02 13:00:01+00 | "+
		"paused by ann since 2026-01-02 10:00:00+00: new switch | 1 delete of 7 objects held since 2026-01-02 11:00:00+00; SELECT reconciler.approve('eu'); | "+
		"does not answer since 2026-01-02 12:00:00+00: no reason known | reload failed | bad spec",
		db.line(t, `SELECT target, state, driver, owner, objects, applied, pending, failing, blocked, held, lag, lag_seconds > 3600, oldest_pending, last_sync, sync, paused, guard, circuit, trouble, last_error
			FROM reconciler.status WHERE target = 'eu'`))
}

func TestPsqlStatusLastError(t *testing.T) {
	t.Parallel()
	db := newPsqlDB(t)
	lastError := func() string {
		return db.line(t, "SELECT last_error FROM reconciler.status WHERE target = 'eu'")
	}
	db.Exec(t, `INSERT INTO reconciler.sync_runs (target_id, reason, state, started_at, finished_at, error) SELECT id, 'interval', 'failed', now(), now(), 'cut off' FROM reconciler.targets WHERE name = 'eu'`)
	require.Equal(t, "cut off", lastError())
	db.Exec(t, `INSERT INTO reconciler.sync_runs (target_id, reason, state, started_at, finished_at) SELECT id, 'interval', 'complete', now(), now() FROM reconciler.targets WHERE name = 'eu'`)
	require.Empty(t, lastError(), "a later complete sync has made up for it")
	db.Exec(t, `INSERT INTO reconciler.sync_runs (target_id, reason, state, started_at, finished_at, error) SELECT id, 'interval', 'failed', now(), now(), 'cut off again' FROM reconciler.targets WHERE name = 'eu'`)
	db.ledger(t, "eu", "1", "failing", "last_error = 'a'")
	db.ledger(t, "eu", "2", "failing", "last_error = 'b'")
	db.ledger(t, "eu", "3", "blocked", "last_error = 'b'")
	require.Equal(t, "b", lastError())
	db.Exec(t, `UPDATE reconciler.targets SET circuit_open_since = now(), circuit_error = 'refused' WHERE name = 'eu'`)
	require.Equal(t, "refused", lastError())
}

func TestPsqlPendingShowsLedgerAndOutbox(t *testing.T) {
	t.Parallel()
	db := newPsqlDB(t)
	db.ledger(t, "eu", "1", "applied", "")
	db.ledger(t, "eu", "2", "failing", "attempts = 3, last_error = 'no route'")
	db.ledger(t, "eu", "3", "applied", "")
	late := db.Conn(t)
	_, err := late.Exec(t.Context(), "BEGIN; INSERT INTO public.deployments (id, region) VALUES (5, 'eu')")
	require.NoError(t, err)
	db.Exec(t, "INSERT INTO public.deployments (id, region) VALUES (3, 'eu')")
	db.tick(t, 11)
	db.record(t, "eu", 11) // the late transaction is in progress in this snapshot
	db.Exec(t, `INSERT INTO public.deployments (id, region) VALUES (1, 'eu'), (2, 'eu'), (4, 'us');
		UPDATE public.deployments SET image = 'app:2' WHERE id = 1; UPDATE public.deployments SET image = 'app:3' WHERE id = 1`)

	failing := "eu | deployments | 2 | failing | t | 9 | 3 | attempt 3 to apply it failed: no route; next attempt at 2026-01-02 03:04:05+00"
	require.Equal(t, []string{
		"eu | deployments | 1 | pending |  |  | 0 | a change is in the outbox",
		failing,
		"us | deployments | 4 | pending |  |  | 0 | a change is in the outbox",
	}, db.lines(t, "SELECT target, resource, key, state, wanted, desired_revision, attempts, reason FROM reconciler.pending ORDER BY target, key"))

	_, err = late.Exec(t.Context(), "COMMIT")
	require.NoError(t, err)
	db.Exec(t, "TRUNCATE public.deployments")
	require.Equal(t, []string{
		"eu | 1 | a change is in the outbox",
		"eu | 2 | attempt 3 to apply it failed: no route; next attempt at 2026-01-02 03:04:05+00",
		"eu | 5 | a change is in the outbox",
		"eu |  | a change of all or some objects is in the outbox",
		"us | 4 | a change is in the outbox",
		"us |  | a change of all or some objects is in the outbox",
	}, db.lines(t, "SELECT target, key, reason FROM reconciler.pending ORDER BY target, key"))
}

func TestPsqlReasons(t *testing.T) {
	t.Parallel()
	db := newPsqlDB(t)
	db.Exec(t, `UPDATE reconciler.targets SET guard_since = '2026-01-02 11:00:00+00', guard_deletes = 21, guard_objects = 100, paused_at = '2026-01-02 10:00:00+00', paused_by = 'ann' WHERE name = 'eu'`)
	for key, state := range map[string][2]string{
		"a": {"pending", ""},
		"b": {"pending", "wanted = false, next_attempt_at = '2099-01-01 00:00:00+00'"},
		"c": {"failing", "wanted = false, attempts = 1"},
		"d": {"blocked", "last_error = 'bad spec'"},
		"e": {"blocked", "wanted = false, last_error = 'forbidden'"},
		"f": {"held", ""},
		"g": {"held", "wanted = false, held_by = 'guard'"},
		"h": {"held", "wanted = false, held_by = 'sync'"},
		"i": {"held", "wanted = false, held_by = 'batch'"},
		"j": {"held", "held_by = 'gate'"},
	} {
		db.ledger(t, "eu", key, state[0], state[1])
	}
	db.ledger(t, "us", "f", "held", "")
	db.ledger(t, "us", "g", "held", "held_by = 'guard'")
	require.Equal(t, []string{
		"eu | a | waits for its turn",
		"eu | b | its delete waits for its turn, not before 2099-01-01 00:00:00+00",
		"eu | c | attempt 1 to delete it failed: no reason known; next attempt at 2026-01-02 03:04:05+00",
		"eu | d | cannot be applied: bad spec; waits for a change of its row, or SELECT reconciler.retry('eu', 'deployments', 'd');",
		"eu | e | cannot be deleted: forbidden; waits for a change of its row, or SELECT reconciler.retry('eu', 'deployments', 'e');",
		"eu | f | target is paused by ann since 2026-01-02 10:00:00+00; SELECT reconciler.resume('eu');",
		"eu | g | the guard holds its delete: 21 deletes of 100 objects held since 2026-01-02 11:00:00+00; SELECT reconciler.approve('eu');",
		"eu | h | its delete waits until the running sync has counted all deletes",
		"eu | i | its delete waits until all deletes of one change are counted",
		"eu | j | waits for its turn in a rollout",
		"us | f | held since a pause that is over; SELECT reconciler.resume('us');",
		"us | g | the guard holds its delete; SELECT reconciler.approve('us');",
	}, db.lines(t, "SELECT target, key, reason FROM reconciler.pending ORDER BY target, key"))

	require.Equal(t, []string{
		"eu | c | failing | f | 1 |  | 2026-01-02 03:04:05+00",
		"eu | d | blocked | t | 0 | bad spec | ",
		"eu | e | blocked | f | 0 | forbidden | ",
	}, db.lines(t, "SELECT target, key, state, wanted, attempts, last_error, next_attempt_at FROM reconciler.failing ORDER BY target, key"))
	require.Equal(t, []string{
		"eu | deployments | g | f | guard | the guard holds its delete: 21 deletes of 100 objects held since 2026-01-02 11:00:00+00; SELECT reconciler.approve('eu');",
		"us | deployments | g | t | guard | the guard holds its delete; SELECT reconciler.approve('us');",
	}, db.lines(t, "SELECT * FROM reconciler.held WHERE held_by = 'guard' ORDER BY target"))
}

func TestPsqlDriftAndSyncs(t *testing.T) {
	t.Parallel()
	db := newPsqlDB(t)
	db.Exec(t, `
		INSERT INTO reconciler.sync_runs (target_id, reason, mode, verify, state, requested_at, requested_by, started_at, finished_at, rows, upserts, tombstones, drifted, held)
		SELECT id, 'interval', 'report', true, 'complete', '2026-01-02 00:00:00+00', 'ann', '2026-01-02 00:00:01+00', '2026-01-02 00:00:03.5+00', 5, 4, 3, 2, 1 FROM reconciler.targets WHERE name = 'eu';
		INSERT INTO reconciler.sync_runs (target_id, resource_id, reason, requested_at, requested_by) SELECT t.id, r.id, 'resync', '2026-01-02 00:00:00+00', 'ann' FROM reconciler.targets t, reconciler.resources r WHERE t.name = 'us';
		INSERT INTO reconciler.drift_found (target_id, resource_id, key, kind, sync_id, found_at) SELECT t.id, r.id, '7', 'orphan', 1, '2026-01-02 00:00:02+00' FROM reconciler.targets t, reconciler.resources r WHERE t.name = 'eu'`)
	require.Equal(t, []string{"eu | deployments | 7 | orphan | 2026-01-02 00:00:02+00 | 1"}, db.lines(t, "SELECT * FROM reconciler.drift"))
	require.Equal(t, []string{
		"1 | eu |  | interval | report | t | complete | 2026-01-02 00:00:00+00 | ann | 2026-01-02 00:00:01+00 | 2026-01-02 00:00:03.5+00 | 00:00:02.5 | 5 | 4 | 3 | 2 | 1 |  |  | ",
		"2 | us | deployments | resync | repair | f | requested | 2026-01-02 00:00:00+00 | ann |  |  |  | 0 | 0 | 0 | 0 | 0 |  |  | ",
	}, db.lines(t, "SELECT * FROM reconciler.syncs ORDER BY id"))
}

func TestPsqlOutboxLag(t *testing.T) {
	t.Parallel()
	db := newPsqlDB(t)
	const lag = "SELECT target, cursor_revision, newest_revision, revisions, seconds > 3600, rows, below_floor FROM reconciler.outbox_lag ORDER BY target"
	require.Equal(t, []string{"eu | 10 | 10 | 0 | f | 0 | f", "us | 10 | 10 | 0 | f | 0 | f"}, db.lines(t, lag))

	db.Exec(t, "INSERT INTO public.deployments (id, region) VALUES (1, 'eu'), (2, 'eu'), (3, 'us'), (4, NULL)")
	db.tick(t, 11)
	db.tick(t, 12)
	require.Equal(t, []string{"eu | 10 | 12 | 2 | t | 3 | f", "us | 10 | 12 | 2 | t | 2 | f"}, db.lines(t, lag))

	db.record(t, "us", 12)
	db.Exec(t, "UPDATE reconciler.installation SET floor_revision = 11; INSERT INTO reconciler.targets (name, configured) VALUES ('new', true)")
	require.Equal(t, []string{"eu | 10 | 12 | 2 | t | 3 | t", "new |  | 12 |  |  |  | ", "us | 12 | 12 | 0 | f | 0 | f"}, db.lines(t, lag))
}

// A backlog of a part of the outbox must not be scanned to show the few rows past a cursor.
func TestPsqlRowsPastTheCursorAreFoundByIndex(t *testing.T) {
	t.Parallel()
	db := newPsqlDB(t)
	db.Exec(t, `INSERT INTO reconciler.outbox (xid, resource_id, target, key)
		SELECT (3 + n / 1000)::text::xid8, r.id, 'eu', n::text FROM generate_series(1, 150000) AS n, reconciler.resources r;
		INSERT INTO reconciler.ticks (revision, snapshot) VALUES (20, '152:152:'), (21, '200:200:');
		SELECT reconciler.write_cursor(id, 20, '152:152:') FROM reconciler.targets`)
	db.Exec(t, "ANALYZE reconciler.outbox")
	part := db.line(t, "SELECT tableoid::regclass FROM reconciler.outbox LIMIT 1")
	for _, query := range []string{
		"SELECT * FROM reconciler.pending", "SELECT * FROM reconciler.outbox_lag", "SELECT * FROM reconciler.past_cursors",
	} {
		plan := strings.Join(db.lines(t, "EXPLAIN "+query), "\n")
		require.NotContains(t, plan, "Seq Scan on "+strings.TrimPrefix(part, "reconciler."), plan)
	}
	require.Equal(t, "1002 | 1002", db.line(t, "SELECT (SELECT rows FROM reconciler.outbox_lag WHERE target = 'eu'), (SELECT count(*) FROM reconciler.pending WHERE target = 'eu')"))
	require.Equal(t, "100000", func() string {
		db.Exec(t, "SELECT reconciler.write_cursor(id, 19, '3:3:') FROM reconciler.targets")
		return db.line(t, "SELECT rows FROM reconciler.outbox_lag WHERE target = 'eu'")
	}(), "counting ends somewhere")
}

func TestPsqlSurfaceGoesAndComesBack(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	_, err := migrate.DownTo(t.Context(), db.URL, 5)
	require.NoError(t, err)
	left := "SELECT (SELECT count(*) FROM pg_class WHERE relnamespace = 'reconciler'::regnamespace AND relkind = 'v') + (SELECT count(*) FROM pg_proc WHERE pronamespace = 'reconciler'::regnamespace AND proname IN ('wait', 'explain', 'doctor', 'grant', 'pause'))"
	require.Equal(t, []string{"0"}, lines(t, db.Pool, left))
	_, err = migrate.Up(t.Context(), db.URL)
	require.NoError(t, err)
	require.Empty(t, lines(t, db.Pool, "SELECT * FROM reconciler.status"))
}
