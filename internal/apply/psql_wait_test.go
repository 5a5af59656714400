package apply_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

const waitNow = "SELECT * FROM reconciler.wait('0')"

// waiting runs a statement on a connection of its own and returns a channel with its rows, once it sleeps in wait().
func (d psqlDB) waiting(t *testing.T, sql string) <-chan []string {
	t.Helper()
	conn := d.Conn(t)
	out := make(chan []string, 1)
	go func() {
		defer close(out)
		rows, err := conn.Query(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
		if err != nil {
			return
		}
		all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) { return string(row.RawValues()[4]), nil })
		if err == nil {
			out <- all
		}
	}()
	pid := conn.PgConn().PID()
	require.Eventually(t, func() bool {
		return d.line(t, fmt.Sprintf("SELECT count(*) FROM pg_stat_activity WHERE pid = %d AND wait_event = 'PgSleep'", pid)) == "1"
	}, patience, 5*time.Millisecond, "it does not wait")
	return out
}

func returned(t *testing.T, out <-chan []string) []string {
	t.Helper()
	select {
	case rows, ok := <-out:
		require.True(t, ok, "wait() failed")
		return rows
	case <-time.After(patience):
		require.FailNow(t, "wait() does not return")
		return nil
	}
}

// stillWaits fails if a wait() in the background returns while the database lets a few of its looks pass.
func (d psqlDB) stillWaits(t *testing.T, out <-chan []string) {
	t.Helper()
	d.lines(t, "SELECT pg_sleep(0.15)")
	select {
	case rows := <-out:
		require.FailNow(t, "wait() returned too early", "%v", rows)
	default:
	}
}

// C37: it returns only when true, and names what is not.
func TestPsqlWaitReturnsWhenEverythingIsApplied(t *testing.T) {
	t.Parallel()
	db := newPsqlDB(t)
	require.Empty(t, db.lines(t, waitNow), "nothing has changed")

	db.Exec(t, "INSERT INTO public.deployments (id, region) VALUES (1, 'eu')")
	require.Equal(t, []string{" |  |  | unread | changes committed before the call have no revision yet. Process host-1 leads. | t"}, db.lines(t, waitNow))
	out := db.waiting(t, "SELECT * FROM reconciler.wait('5 minutes')")
	only := db.waiting(t, "SELECT * FROM reconciler.wait(timeout => '5 minutes', target => 'us')")

	db.tick(t, 11)
	require.Equal(t, []string{
		"eu |  |  | unread | its cursor is at revision 10, the changes go up to 11 | t",
		"us |  |  | unread | its cursor is at revision 10, the changes go up to 11 | t",
	}, db.lines(t, waitNow))
	require.Equal(t, "us", db.line(t, "SELECT target FROM reconciler.wait('0', 'us')"))

	db.record(t, "us", 11)
	require.Empty(t, returned(t, only))

	db.ledger(t, "eu", "1", "pending", "applied_revision = NULL, desired_revision = 11")
	db.record(t, "eu", 11)
	require.Equal(t, []string{"eu | deployments | 1 | pending | waits for its turn | t"}, db.lines(t, waitNow))
	db.stillWaits(t, out)

	db.Exec(t, `UPDATE reconciler.ledger SET state = 'applied', next_attempt_at = NULL, applied_revision = 11`)
	require.Empty(t, returned(t, out))
	require.Empty(t, db.lines(t, waitNow))
}

func TestPsqlWaitDoesNotWaitForWhatCameLater(t *testing.T) {
	t.Parallel()
	db := newPsqlDB(t)
	open := db.Conn(t)
	_, err := open.Exec(t.Context(), "BEGIN; INSERT INTO public.deployments (id, region) VALUES (1, 'eu')")
	require.NoError(t, err)
	require.Empty(t, db.lines(t, waitNow), "an open transaction is no change yet") // I2

	db.tick(t, 11)
	db.record(t, "eu", 11)
	db.record(t, "us", 11)
	require.Empty(t, db.lines(t, waitNow))
	_, err = open.Exec(t.Context(), "COMMIT")
	require.NoError(t, err)
	require.Equal(t, "unread", db.line(t, "SELECT state FROM reconciler.wait('0')"), "it was in progress at revision 11, and is committed now")

	// The object was applied at the revision that is waited for, and changed again since: another round, not ours.
	db.tick(t, 12)
	db.record(t, "eu", 12)
	db.record(t, "us", 12)
	db.ledger(t, "eu", "1", "pending", "applied_revision = 12, desired_revision = 13")
	require.Empty(t, db.lines(t, "SELECT * FROM reconciler.wait('20 s')"), "it would name what it still waited for")
	db.Exec(t, "UPDATE reconciler.ledger SET applied_revision = 12, desired_revision = 12")
	require.Equal(t, []string{"eu | deployments | 1 | pending | waits for its turn | t"}, db.lines(t, waitNow), "applied once, found different by a sync")
	db.Exec(t, "UPDATE reconciler.ledger SET applied_revision = 11, desired_revision = 13")
	require.Equal(t, []string{"eu | deployments | 1 | pending | waits for its turn | t"}, db.lines(t, waitNow))
}

func TestPsqlWaitReturnsAtOnceWhenWaitingCannotHelp(t *testing.T) {
	t.Parallel()
	db := newPsqlDB(t)
	db.Exec(t, "INSERT INTO public.deployments (id, region) VALUES (1, 'asia')")
	db.tick(t, 11)
	db.record(t, "eu", 11)
	db.record(t, "us", 11)
	db.Exec(t, `INSERT INTO reconciler.targets (name) VALUES ('asia'), ('mars');
		UPDATE reconciler.targets SET guard_since = '2026-01-02 11:00:00+00', guard_deletes = 21, guard_objects = 100 WHERE name = 'eu';
		UPDATE reconciler.targets SET paused_at = '2026-01-02 10:00:00+00', paused_by = 'ann' WHERE name = 'us'`)
	db.ledger(t, "eu", "2", "blocked", "last_error = 'bad spec'")
	db.ledger(t, "eu", "3", "held", "held_by = 'guard', wanted = false")
	db.ledger(t, "us", "4", "held", "")
	db.ledger(t, "us", "5", "failing", "attempts = 1, last_error = 'no route'")
	want := []string{
		"eu | deployments | 2 | blocked | cannot be applied: bad spec; waits for a change of its row, or SELECT reconciler.retry('eu', 'deployments', '2'); | f",
		"eu | deployments | 3 | held | the guard holds its delete: 21 deletes of 100 objects held since 2026-01-02 11:00:00+00; SELECT reconciler.approve('eu'); | f",
		"us | deployments | 4 | held | target is paused by ann since 2026-01-02 10:00:00+00; SELECT reconciler.resume('us'); | f",
		"us | deployments | 5 | failing | attempt 1 to apply it failed: no route; next attempt at 2026-01-02 03:04:05+00; us is paused by ann since 2026-01-02 10:00:00+00. | f",
		"asia | deployments |  | unknown | running rows name this target, and no running process has asia in its config. | f",
	}
	require.Equal(t, want, db.lines(t, "SELECT * FROM reconciler.wait('20 s')"))
	require.Equal(t, want[2:4], db.lines(t, "SELECT * FROM reconciler.wait('20 s', 'us')"), "rows that name unknown targets do not concern us")

	for _, by := range []string{"sync", "batch", "gate"} {
		db.Exec(t, "UPDATE reconciler.ledger SET held_by = '"+by+"' WHERE key = '3'")
		require.Equal(t, "t", db.line(t, "SELECT DISTINCT timed_out FROM reconciler.wait('0')"), "%s goes on by itself", by)
	}
}

func TestPsqlWaitForSyncs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		reason, requested, state string
		awaited                  bool
	}{
		{"resync", "-1 minute", "requested", true},
		{"resync", "-1 minute", "running", true},
		{"resync", "1 minute", "running", false},
		{"resync", "-1 minute", "complete", false},
		{"interval", "-1 minute", "running", false},
		{"restored", "1 minute", "requested", true}, // what the target has is not known, whoever asked when
		{"first", "1 minute", "running", true},
	} {
		t.Run(c.reason+c.requested+c.state, func(t *testing.T) {
			t.Parallel()
			db := newPsqlDB(t)
			db.Exec(t, `INSERT INTO reconciler.sync_runs (target_id, reason, state, requested_at, finished_at) SELECT id, $1, $3, now() + $2::text::interval, CASE $3 WHEN 'complete' THEN now() END FROM reconciler.targets WHERE name = 'eu'`, c.reason, c.requested, c.state)
			want := []string{}
			if c.awaited {
				want = []string{fmt.Sprintf("eu |  |  | syncing | %s sync is %s | t", c.reason, c.state)}
			}
			require.Equal(t, want, db.lines(t, waitNow))
			require.Empty(t, db.lines(t, "SELECT * FROM reconciler.wait('0', 'us')"))
		})
	}
}

// C12: a change of a base table is first traced to objects, and these are what is to be applied.
func TestPsqlWaitFollowsChangesOfBaseTables(t *testing.T) {
	t.Parallel()
	db := newPsqlDB(t)
	db.Exec(t, `
		CREATE TABLE public.workspaces (id int PRIMARY KEY, name text);
		CREATE VIEW public.joined AS SELECT d.id, d.region, w.id AS workspace, w.name FROM public.deployments d JOIN public.workspaces w ON w.id = d.id % 10;
		SELECT reconciler.track('joined', 'public.joined', '{id}', 'region', depends_on => '{"workspaces": {"id": "workspace"}}')`)
	db.Exec(t, "INSERT INTO public.workspaces VALUES (1, 'one')")
	db.tick(t, 11)
	db.record(t, "eu", 11)
	db.record(t, "us", 11)
	require.Equal(t, []string{" |  |  | unread | changes of base tables up to revision 11 are not traced to objects yet. Process host-1 leads. | t"}, db.lines(t, waitNow))
	out := db.waiting(t, "SELECT * FROM reconciler.wait('5 minutes')")

	db.Exec(t, `WITH traced AS (INSERT INTO reconciler.outbox (resource_id, target, key) SELECT id, 'eu', '1' FROM reconciler.resources WHERE name = 'joined')
		SELECT reconciler.write_cursor(0, revision, snapshot) FROM reconciler.ticks WHERE revision = 11`)
	require.Equal(t, []string{" |  |  | unread | changes committed before the call have no revision yet. Process host-1 leads. | t"}, db.lines(t, waitNow))
	db.stillWaits(t, out)
	db.tick(t, 12)
	db.record(t, "us", 12)
	db.Exec(t, "UPDATE reconciler.cursors SET revision = 12 WHERE consumer = 0")
	require.Equal(t, []string{"eu |  |  | unread | its cursor is at revision 11, the changes go up to 12 | t"}, db.lines(t, waitNow))
	db.stillWaits(t, out)
	db.record(t, "eu", 12)
	require.Empty(t, returned(t, out))
}

func TestPsqlWaitSaysThatNobodyWorks(t *testing.T) {
	t.Parallel()
	db := newPsqlDB(t)
	db.Exec(t, "UPDATE reconciler.targets SET lease_ttl = '0'")
	db.ledger(t, "eu", "1", "pending", "")
	require.Equal(t, []string{"eu | deployments | 1 | pending | waits for its turn; no process works on eu. Process host-1 leads. | t"}, db.lines(t, waitNow))

	db.Exec(t, "UPDATE reconciler.heartbeats SET at = '2026-01-02 12:00:00+00'")
	require.Equal(t, []string{"eu | deployments | 1 | pending | waits for its turn; no process works on eu. No process is running: the last one was heard of at 2026-01-02 12:00:00+00; start `reconciler run`. | t"}, db.lines(t, waitNow))

	db.Exec(t, "UPDATE reconciler.leases SET owner = NULL; INSERT INTO public.deployments (id, region) VALUES (1, 'eu')")
	require.Equal(t, []string{"eu |  |  | unread | changes committed before the call have no revision yet. No process is running: start `reconciler run`. | t"}, db.lines(t, "SELECT * FROM reconciler.wait('0', 'eu')"))

	db.Exec(t, "DELETE FROM reconciler.cursors WHERE consumer > 0; UPDATE reconciler.targets SET lease_ttl = '1 h'; UPDATE reconciler.heartbeats SET at = now(); DELETE FROM reconciler.ledger")
	db.tick(t, 11)
	require.Equal(t, []string{"eu |  |  | unread | eu has no cursor: a full sync is due. | t"}, db.lines(t, "SELECT * FROM reconciler.wait('0', 'eu')"))
}

func TestPsqlWaitListsAHundredAndWhatMovesFirst(t *testing.T) {
	t.Parallel()
	db := newPsqlDB(t)
	for _, state := range []string{"blocked", "pending"} {
		db.Exec(t, `INSERT INTO reconciler.ledger (target_id, resource_id, key, state, wanted, present, next_attempt_at)
			SELECT t.id, r.id, $1 || n, $1::text::reconciler.object_state, true, true, CASE $1 WHEN 'pending' THEN now() END FROM reconciler.targets t, reconciler.resources r, generate_series(1, 60) AS n WHERE t.name = 'eu'`, state)
	}
	require.Equal(t, "100 | 60 | pending1", db.line(t, "SELECT count(*), count(*) FILTER (WHERE state = 'pending'), (array_agg(key))[1] FROM reconciler.wait('0')"))
}

func TestPsqlWaitRefusesToWaitInVain(t *testing.T) {
	t.Parallel()
	db := newPsqlDB(t)
	db.Exec(t, "INSERT INTO reconciler.targets (name) VALUES ('gone')")
	require.Equal(t, "no target is named 'asia'\nTargets: eu, gone, us", refusal(t, db.Pool, "SELECT * FROM reconciler.wait(target => 'asia')"))
	require.Equal(t, "no running process has target 'gone' in its config, so nothing is applied there\nTargets: eu, gone, us", refusal(t, db.Pool, "SELECT * FROM reconciler.wait(target => 'gone')"))

	conn := db.Conn(t)
	begin := func(sql string) {
		_, err := conn.Exec(t.Context(), "ROLLBACK; "+sql)
		require.NoError(t, err)
	}
	for _, level := range []string{"REPEATABLE READ", "SERIALIZABLE"} {
		begin("BEGIN ISOLATION LEVEL " + level)
		require.Equal(t, "wait() sees nothing new in a "+level+" transaction, so it would wait in vain\nCall it by itself, without BEGIN.", refusal(t, conn, waitNow))
	}
	begin("BEGIN")
	require.Empty(t, lines(t, conn, waitNow), "BEGIN alone does no harm")
	begin("BEGIN; INSERT INTO public.deployments (id, region) VALUES (1, 'eu')")
	require.Equal(t, "this transaction has changes of its own, which are not applied before it commits\nCOMMIT, then call wait().", refusal(t, conn, waitNow))
}

func TestPsqlWaitTimesOut(t *testing.T) {
	t.Parallel()
	db := newPsqlDB(t)
	db.ledger(t, "eu", "1", "pending", "")
	began := time.Now()
	require.Equal(t, "t", db.line(t, "SELECT timed_out FROM reconciler.wait('250 ms')"))
	require.GreaterOrEqual(t, time.Since(began), 250*time.Millisecond)
}

// A giant transaction that is still open must not make each look at the outbox walk over its rows.
func TestPsqlWaitDoesNotTouchRowsOfOpenTransactions(t *testing.T) {
	t.Parallel()
	db := newPsqlDB(t)
	open, looking := db.Conn(t), db.Conn(t)
	_, err := open.Exec(t.Context(), "BEGIN; INSERT INTO public.deployments (id, region) SELECT n, 'eu' FROM generate_series(1, 20000) AS n")
	require.NoError(t, err)
	touched := func() string {
		_, err := looking.Exec(t.Context(), "BEGIN; SELECT reconciler.covering_revision(pg_current_snapshot())")
		require.NoError(t, err)
		out := lines(t, looking, "SELECT sum(pg_stat_get_xact_tuples_returned(indexrelid)) FROM pg_index WHERE indrelid IN (SELECT relid FROM pg_partition_tree('reconciler.outbox'))")[0]
		_, err = looking.Exec(t.Context(), "COMMIT")
		require.NoError(t, err)
		return out
	}
	require.Equal(t, "0", touched(), "its rows are above the newest revision")
	db.tick(t, 11)
	require.Equal(t, "0", touched(), "it was in progress at the newest revision")

	_, err = open.Exec(t.Context(), "COMMIT")
	require.NoError(t, err)
	require.Equal(t, "1", touched(), "one row shows that it is not covered")
}
