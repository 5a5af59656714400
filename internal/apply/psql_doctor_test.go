package apply_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

const doctorAll = "SELECT check_name, ok, finding, remedy FROM reconciler.doctor() WHERE NOT (ok AND check_name IN ('connections', 'notify_queue', 'outbox', 'schema'))"

var doctorHealthy = []string{
	"capture | t | 1 resource captured | ",
	"index | t | syncs have an index to walk, or need none | ",
	"leader | t | Process host-1 leads. | ",
	"clock | t | nothing is dated in the future | ",
	"loops | t | no part of a process fails again and again | ",
	"locks | t | nobody holds a lock that others wait for | ",
	"targets | t | 2 targets, nothing is in the way | ",
	"objects | t | no object is blocked, none fails again and again | ",
	"prepared_transactions | t | no transaction is prepared | ",
	"open_transactions | t | no transaction with changes has been open for long | ",
	"old_snapshots | t | nothing that only reads keeps old versions of rows | ",
	"rights | t | role postgres has the rights of: viewer, operator, runtime, definer | ",
}

func TestPsqlDoctorOfAHealthyDatabase(t *testing.T) {
	t.Parallel()
	db := newPsqlDB(t)
	require.Equal(t, doctorHealthy, db.lines(t, doctorAll))
	require.Equal(t, []string{"connections | t", "notify_queue | t", "outbox | t", "schema | t"}, db.lines(t, `
		SELECT check_name, finding ~ CASE check_name WHEN 'connections' THEN '^\d+ of 997 connections are in use$' WHEN 'notify_queue' THEN '^the NOTIFY queue of the server is 0[.]0 % full$'
			WHEN 'outbox' THEN '^the outbox takes \d+ kB; no target is far behind$' ELSE '^the schema has version \d+$' END
		FROM reconciler.doctor() WHERE check_name IN ('connections', 'notify_queue', 'outbox', 'schema') ORDER BY 1`))
}

func TestPsqlDoctorFinds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, sql string
		want      []string
	}{
		{"ASchemaOfNoVersion", "DROP TABLE reconciler.goose_db_version", []string{
			"schema | nothing says which version the schema has | reconciler migrate up",
		}},
		{"ADisabledTrigger", "ALTER TABLE public.deployments DISABLE TRIGGER reconciler_capture_1", []string{
			"capture | resource deployments: trigger reconciler_capture_1 on public.deployments is disabled | SELECT reconciler.regenerate('deployments');",
		}},
		{"NoIndexForASmallTable", "DROP INDEX public.deployments_region_id_idx", []string{}},
		{"AMissingIndex", "DROP INDEX public.deployments_region_id_idx; SET session_replication_role = replica; INSERT INTO public.deployments (id, region) SELECT i, 'eu' FROM generate_series(1, 30000) AS i; RESET session_replication_role", []string{
			"index | a sync of resource deployments has no index to walk and scans the table for each page | CREATE INDEX CONCURRENTLY ON public.deployments (region, id) WHERE running;",
		}},
		{"NoLeader", "INSERT INTO reconciler.heartbeats VALUES ('00000000-0000-0000-0000-000000000002', 1, '2026-01-02 12:00:00+00'); UPDATE reconciler.leases SET owner = '00000000-0000-0000-0000-000000000002'", []string{
			"leader | No process is running: the last one was heard of at 2026-01-02 12:00:00+00; start `reconciler run`. | reconciler run",
		}},
		{"ThatNobodyEverRan", "UPDATE reconciler.leases SET owner = NULL", []string{
			"leader | No process is running: start `reconciler run`. | reconciler run",
		}},
		{"AClockThatWentBack", "INSERT INTO reconciler.instances (id, name, version) VALUES ('00000000-0000-0000-0000-000000000002', 'host-2', 'v1'); INSERT INTO reconciler.heartbeats VALUES ('00000000-0000-0000-0000-000000000002', 1, '2099-01-02 12:00:00.5+00')", []string{
			"clock | the database has times up to 2099-01-02 12:00:00+00: its clock was set back | If the clock of the database server is wrong now, set it. Retries that were scheduled while it was ahead run within about an hour, or within backoff.max if that is longer; retry() runs them now.",
		}},
		{"AnUnownedTarget", "UPDATE reconciler.targets SET owner = NULL WHERE name = 'us'", []string{
			"targets | no process works on us | Start `reconciler run` with us in its config.",
		}},
		// F5
		{"OtherOptions", "INSERT INTO reconciler.instances (id, name, version, targets, options) SELECT ('00000000-0000-0000-0000-00000000000' || i)::uuid, 'host-' || i, 'v1', '{us,eu}', ARRAY['same', CASE WHEN i = 3 THEN 'other' ELSE 'same' END] FROM generate_series(2, 5) AS i; INSERT INTO reconciler.heartbeats (instance, beat, at) SELECT i.id, 1, CASE WHEN i.name = 'host-5' THEN '2026-01-02' ELSE clock_timestamp() END FROM reconciler.instances i WHERE i.name <> 'host-1'; DELETE FROM reconciler.instances WHERE name = 'host-5'", []string{
			"targets | eu has other options in process host-2 than in process host-3: what it has depends on which of them owns it | Give it the same driver and options in every config, and restart the processes that have others.",
		}},
		// F92
		{"OptionsThatCount", "SELECT reconciler.beat('00000000-0000-4000-8000-00000000000b', 'host-2', 'v1', '{eu}', '{two}', 1, 0, NULL), reconciler.beat('00000000-0000-4000-8000-00000000000c', 'host-3', 'v1', '{eu}', '{three}', 1, 0, NULL); UPDATE reconciler.targets SET options_fingerprint = 'two' WHERE name = 'eu'", []string{
			"targets | eu has other options in process host-3 than in process host-2: those of process host-2 count until every process with them has stopped | Give it the same driver and options in every config, and restart the processes that have others.",
		}},
		{"LostCommits", "UPDATE reconciler.targets SET lost_at = '2026-01-02 12:00:00+00' WHERE name = 'eu'", []string{
			"targets | commits may have been lost when this database was restored or failed over at 2026-01-02 12:00:00+00, and what they had created in eu stays there: it cannot say what it has | Compare it with the rows, and delete there what no row wants; then SELECT reconciler.acknowledge('eu');",
		}},
		{"LostCommitsAreBeingLookedFor", "UPDATE reconciler.targets SET lost_at = '2026-01-02 12:00:00+00' WHERE name = 'eu'; INSERT INTO reconciler.sync_runs (target_id, reason) SELECT id, 'restored' FROM reconciler.targets WHERE name = 'eu'", []string{}},
		{"LostCommitsAreAcknowledged", "UPDATE reconciler.targets SET lost_at = '2026-01-02 12:00:00+00' WHERE name = 'eu'; SELECT reconciler.acknowledge('eu')", []string{}},
		{"AnUnknownTarget", "INSERT INTO reconciler.targets (name) VALUES ('asia'), ('mars'); INSERT INTO public.deployments (id, region) VALUES (1, 'asia')", []string{
			"targets | running rows of deployments name target asia, which is in no running process's config | Put asia into the config of a process, or correct the rows.",
		}},
		{"ATargetLeftBehind", "UPDATE reconciler.targets SET configured = false WHERE name = 'us'; INSERT INTO reconciler.ledger (target_id, resource_id, key, state, wanted, present, applied_hash) SELECT t.id, 1, '1', 'applied', true, true, '\\x00112233445566778899aabbccddeeff' FROM reconciler.targets t WHERE name = 'us'", []string{
			"targets | us is in no running process's config, and keeps 1 object | SELECT reconciler.release('us');",
		}},
		{"ATargetThatIsDown", "UPDATE reconciler.targets SET circuit_open_since = '2026-01-02 12:00:00+00', circuit_error = 'connection refused' WHERE name = 'eu'", []string{
			"targets | eu does not answer since 2026-01-02 12:00:00+00: connection refused | Mend the target; calls go on by themselves when it answers.",
		}},
		{"HeldDeletes", "INSERT INTO reconciler.ledger (target_id, resource_id, key, state, wanted, present, held_by) SELECT t.id, 1, k, 'held', false, true, 'guard' FROM reconciler.targets t, unnest('{b,a}'::text[]) AS k WHERE t.name = 'eu'", []string{
			"targets | the guard of eu holds 2 deletes | Look at SELECT * FROM reconciler.held WHERE target = 'eu'; then SELECT reconciler.approve('eu');",
		}},
		{"AForgottenPause", "UPDATE reconciler.targets SET paused_at = '2026-01-02 10:00:00+00', paused_by = 'ann' WHERE name = 'eu'; UPDATE reconciler.targets SET paused_at = now(), paused_by = 'ann' WHERE name = 'us'", []string{
			"targets | eu is paused by ann since 2026-01-02 10:00:00+00 | SELECT reconciler.resume('eu');",
		}},
		{"BlockedObjects", "INSERT INTO reconciler.ledger (target_id, resource_id, key, state, wanted, present, last_error) SELECT t.id, 1, k, 'blocked', true, true, 'bad spec ' || k FROM reconciler.targets t, unnest('{b,a}'::text[]) AS k WHERE t.name = 'eu'", []string{
			"objects | 2 objects of deployments blocked in eu, such as 'a': bad spec a | Correct the rows; or after mending what refused them: SELECT reconciler.retry('eu', 'deployments');",
		}},
		// F52
		{"FailingObjects", "INSERT INTO reconciler.ledger (target_id, resource_id, key, state, wanted, present, attempts, last_error, next_attempt_at) SELECT t.id, 1, k::text, 'failing', true, true, k, 'no route ' || k, now() FROM reconciler.targets t, generate_series(1, 3) AS k WHERE t.name = 'eu'", []string{
			"objects | 2 objects of deployments failing in eu after up to 3 attempts, such as '2': no route 2 | Mend what the error says; they are tried again by themselves. To have it now: SELECT reconciler.retry('eu', 'deployments');",
		}},
		{"AFailingLoop", `UPDATE reconciler.heartbeats SET failing = jsonb_build_array(jsonb_build_object('loop', 'read', 'target', 'eu', 'for', extract(epoch FROM at - '2026-01-02 12:00:00.5+00'), 'last', 1, 'failures', 3, 'error', 'no such table'))`, []string{
			"loops | read of target eu of process host-1 has been failing since 2026-01-02 12:00:00+00 (3 times): no such table | Mend what the error says; it is tried again by itself. The log of the process has more.",
		}},
		{"ASilentProcess", "UPDATE reconciler.heartbeats SET at = '2026-01-02 12:00:00.5+00'; UPDATE reconciler.targets SET lease_ttl = '1000 years'; UPDATE reconciler.leases SET lease_ttl = '1000 years'", []string{
			"loops | process host-1 has not been heard of since 2026-01-02 12:00:00+00 | See whether it runs and reaches this database; its log and /readyz say what fails. Remains of a process that is gone vanish by themselves once another one runs.",
		}},
		{"ASlowConsumer", "INSERT INTO reconciler.ticks (revision, snapshot, at) VALUES (11, pg_current_snapshot(), '2026-01-02 12:00:00+00'); UPDATE reconciler.cursors SET revision = 11 WHERE consumer = (SELECT id FROM reconciler.targets WHERE name = 'us')", []string{
			"outbox | eu is behind the outbox since 2026-01-02 12:00:00+00 | SELECT * FROM reconciler.status WHERE target = 'eu';",
		}},
		{"AConsumerBelowTheFloor", "UPDATE reconciler.installation SET floor_revision = 11; UPDATE reconciler.cursors SET revision = 11 WHERE consumer = (SELECT id FROM reconciler.targets WHERE name = 'us')", []string{
			"outbox | eu was away longer than the outbox keeps changes | SELECT * FROM reconciler.status WHERE target = 'eu';",
		}},
		{"APreparedTransaction", "BEGIN; CREATE TABLE public.prepared (); PREPARE TRANSACTION 'doctor'", []string{
			"prepared_transactions | 1 prepared transaction in this database, while NOTIFY is on: PREPARE TRANSACTION fails after a write to a tracked table that notified | SELECT reconciler.set_notify(false);",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			db := newPsqlDB(t)
			if c.name == "APreparedTransaction" {
				c.sql = fmt.Sprintf("BEGIN; CREATE TABLE public.prepared (); PREPARE TRANSACTION 'doctor %s'", db.Name)
			}
			db.Exec(t, c.sql)
			require.Equal(t, c.want, db.lines(t, "SELECT check_name, finding, remedy FROM reconciler.doctor() WHERE NOT ok"))
		})
	}
}

func TestPsqlDoctorIsContentWithPreparedTransactionsWhenNotifyIsOff(t *testing.T) {
	t.Parallel()
	db := newPsqlDB(t)
	db.Exec(t, "SELECT reconciler.set_notify(false)")
	db.Exec(t, fmt.Sprintf("BEGIN; CREATE TABLE public.prepared (); PREPARE TRANSACTION 'content %s'", db.Name))
	require.Equal(t, "t | NOTIFY is off: transactions may be prepared", db.line(t, "SELECT ok, finding FROM reconciler.doctor() WHERE check_name = 'prepared_transactions'"))
}

func TestPsqlDoctorNamesOldTransactions(t *testing.T) {
	t.Parallel()
	db := newPsqlDB(t)
	conn := db.Conn(t)
	_, err := conn.Exec(t.Context(), "SET application_name = 'billing'; BEGIN; INSERT INTO public.deployments (id, region) VALUES (1, 'eu')")
	require.NoError(t, err)
	reader := db.Conn(t)
	_, err = reader.Exec(t.Context(), "BEGIN; SELECT * FROM public.deployments")
	require.NoError(t, err)
	db.Exec(t, fmt.Sprintf("BEGIN; CREATE TABLE public.prepared (); PREPARE TRANSACTION 'old %s'", db.Name))
	since := db.line(t, fmt.Sprintf("SELECT date_trunc('second', xact_start) FROM pg_stat_activity WHERE pid = %d", conn.PgConn().PID()))
	prepared := db.line(t, "SELECT date_trunc('second', prepared) FROM pg_prepared_xacts WHERE database = current_database()")
	require.Equal(t, []string{
		fmt.Sprintf("f | pid %d (billing, user postgres) has a transaction open since %s that wrote; its changes are seen when it ends | End it, or: SELECT pg_terminate_backend(%d);", conn.PgConn().PID(), since, conn.PgConn().PID()),
		fmt.Sprintf("f | transaction 'old %[1]s' was prepared at %[2]s and is not ended; its changes are seen when it ends | COMMIT PREPARED 'old %[1]s'; or ROLLBACK PREPARED 'old %[1]s';", db.Name, prepared),
	}, db.lines(t, "SELECT ok, finding, remedy FROM reconciler.doctor_transactions('0')"))
	require.Equal(t, []string{"t | no transaction with changes has been open for long | "}, db.lines(t, "SELECT ok, finding, remedy FROM reconciler.doctor_transactions('1 hour')"))
}

func (d psqlDB) snapshots(t *testing.T, of string) []string {
	t.Helper()
	return d.lines(t, fmt.Sprintf("SELECT ok, finding, remedy FROM reconciler.doctor_snapshots('0') WHERE finding LIKE '%s%%'", of))
}

// Who keeps versions of rows without writing anything: a reader with one snapshot.
func TestF95_DoctorNamesReadersOfOneSnapshot(t *testing.T) {
	t.Parallel()
	db := newPsqlDB(t)
	conn := db.Conn(t)
	_, err := conn.Exec(t.Context(), "SET application_name = 'report'; BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT * FROM public.deployments")
	require.NoError(t, err)
	pid := conn.PgConn().PID()
	since := db.line(t, fmt.Sprintf("SELECT date_trunc('second', xact_start) FROM pg_stat_activity WHERE pid = %d", pid))
	require.Equal(t, []string{fmt.Sprintf("f | pid %d (report, user postgres) has had a transaction open since %s that only reads; PostgreSQL keeps every version of rows that was replaced since | End it, or: SELECT pg_terminate_backend(%d);", pid, since, pid)},
		db.snapshots(t, fmt.Sprintf("pid %d", pid)))
	require.Equal(t, []string{"t | nothing that only reads keeps old versions of rows | "}, db.lines(t, "SELECT ok, finding, remedy FROM reconciler.doctor_snapshots('1 hour')"))
}

// A slot that nobody reads, and a standby with hot_standby_feedback that somebody reads for long.
func TestF95_DoctorNamesSlotsAndStandbys(t *testing.T) {
	t.Parallel()
	primary := pgtest.Server(t)
	db := psqlDB{primary.New(t)}
	db.Exec(t, "INSERT INTO reconciler.ticks (revision, snapshot) VALUES (1, pg_current_snapshot())")
	db.Exec(t, "SELECT pg_create_logical_replication_slot('gone', 'test_decoding')")
	standby := primary.Standby(t)
	reader, err := pgx.Connect(t.Context(), standby.URL(db.Name))
	require.NoError(t, err)
	t.Cleanup(func() { _ = reader.Close(context.Background()) })
	for _, sql := range []string{"ALTER SYSTEM SET hot_standby_feedback = on", "ALTER SYSTEM SET wal_receiver_status_interval = 1", "SELECT pg_reload_conf()",
		"BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT count(*) FROM reconciler.ticks"} {
		_, err := reader.Exec(t.Context(), sql)
		require.NoError(t, err, sql)
	}
	require.Eventually(t, func() bool {
		return len(db.lines(t, "SELECT pid FROM pg_stat_replication WHERE backend_xmin IS NOT NULL")) == 1
	}, time.Minute, 50*time.Millisecond)
	// What was written since is what they keep.
	db.Exec(t, "CREATE TABLE public.later ()")
	db.Exec(t, "INSERT INTO reconciler.ticks (revision, snapshot) VALUES (2, pg_current_snapshot())")
	since := db.line(t, "SELECT date_trunc('second', at) FROM reconciler.ticks WHERE revision = 2")
	require.Equal(t, []string{fmt.Sprintf("f | replication slot 'gone' has stood still since %s; PostgreSQL keeps every version of the catalogs' rows that was replaced since | Start what reads it, or: SELECT pg_drop_replication_slot('gone');", since)},
		db.snapshots(t, "replication slot"))
	from := db.line(t, "SELECT host(client_addr) FROM pg_stat_replication")
	require.Equal(t, []string{fmt.Sprintf("f | standby %s (walreceiver) has stood still since %s; PostgreSQL keeps every version of rows that was replaced since | End the long transaction there, or set hot_standby_feedback = off there.", from, since)},
		db.snapshots(t, "standby"))
	db.Exec(t, "SELECT pg_drop_replication_slot('gone')")
	require.Empty(t, db.snapshots(t, "replication slot"))
}

func TestPsqlDoctorTellsWhatTheRoleMayDo(t *testing.T) {
	t.Parallel()
	db := newPsqlDB(t)
	role := db.Role(t, "watcher", "")
	db.Exec(t, "SELECT reconciler.grant('"+role+"', 'viewer')")
	conn := db.ConnAs(t, role)
	rights := func() []string {
		return lines(t, conn, "SELECT ok, finding, remedy FROM reconciler.doctor() WHERE check_name = 'rights'")
	}
	require.Equal(t, []string{"t | role " + role + " has the rights of: viewer | "}, rights())
	require.Equal(t, []string{"t | role " + role + " sees its own transactions only; GRANT pg_read_all_stats TO " + role + "; shows all"},
		lines(t, conn, "SELECT ok, finding FROM reconciler.doctor() WHERE check_name = 'open_transactions'"))

	db.Exec(t, "SELECT reconciler.grant('"+role+"', 'runtime'); REVOKE INSERT ON reconciler.ledger FROM "+role)
	require.Equal(t, []string{"f | role " + role + " was made runtime and lacks 1 right, such as INSERT on table reconciler.ledger | As the owner of the schema: SELECT reconciler.grant('" + role + "', 'runtime');"}, rights())
}
