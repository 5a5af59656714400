package apply_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
)

// agent takes a report of the agent of eu, which names itself.
func (d psqlDB) agent(t *testing.T, session string, seq int, client string) {
	t.Helper()
	d.Exec(t, `SELECT reconciler.report(id, $1, $2, false, 0, '{deployments}', '{1}', '{7}', '{applied}', '{""}', '{""}', '{""}', nullif($3, '')::jsonb)
		FROM reconciler.targets WHERE name = 'eu'`, session, seq, client)
}

const agentFindings = `SELECT ok, finding, remedy FROM reconciler.doctor() WHERE check_name = 'agents'`

func TestPsqlShowsAgents(t *testing.T) {
	t.Parallel()
	db := reported(t)
	agents := `SELECT name, version, driver, target, since, last_report, objects, failing, held, trouble FROM reconciler.agents`
	db.agent(t, "s", 1, "")
	require.Empty(t, db.lines(t, agents), "a client is an agent when it names itself")
	require.Empty(t, db.lines(t, agentFindings))

	db.agent(t, "s", 2, `{"name": "host-7", "version": "1.2.0", "driver": "file"}`)
	db.Exec(t, `UPDATE reconciler.reports SET session_since = '2026-01-02 03:00:00+00', reported_at = '2026-01-02 05:00:00+00'`)
	require.Equal(t, []string{"host-7 | 1.2.0 | file | eu | 2026-01-02 03:00:00+00 | 2026-01-02 05:00:00+00 | 1 | 0 | 0 | "}, db.lines(t, agents))
	db.Exec(t, `UPDATE reconciler.observations SET state = 'failed'`)
	db.Exec(t, `UPDATE reconciler.reports SET held = 3, healthy = false, client_name = NULL`)
	require.Equal(t, []string{"s | 1.2.0 | file | eu | 2026-01-02 03:00:00+00 | 2026-01-02 05:00:00+00 | 1 | 1 | 3 | the far side is not healthy"}, db.lines(t, agents))
	db.Exec(t, `UPDATE reconciler.observations SET state = 'absent'`)
	db.Exec(t, `UPDATE reconciler.reports SET trouble = 'circuit open'`)
	require.Equal(t, []string{"s | 1.2.0 | file | eu | 2026-01-02 03:00:00+00 | 2026-01-02 05:00:00+00 | 0 | 0 | 3 | circuit open"}, db.lines(t, agents))
	require.Equal(t, "agent s: circuit open", db.line(t, `SELECT trouble FROM reconciler.status WHERE target = 'eu'`))
	db.Exec(t, `UPDATE reconciler.observations SET state = 'failed'`)
	require.Equal(t, "agent s: circuit open", db.line(t, `SELECT trouble FROM reconciler.status WHERE target = 'eu'`), "one cause comes before what follows from it")

	db.agent(t, "t", 1, "")
	require.Empty(t, db.lines(t, agents), "the newest session has named none")
}

// What commands answer is true of agents, too.
func TestPsqlCommandsAskAgents(t *testing.T) {
	t.Parallel()
	db := reported(t)
	orders := `SELECT pauses, resyncs, retries, approvals FROM reconciler.stream_controls`
	require.Equal(t, "the guard holds nothing of eu", db.line(t, `SELECT reconciler.approve('eu')`), "no agent reports on it")
	db.agent(t, "s", 1, `{"name": "host-7"}`)
	require.Equal(t, "the guard holds nothing of eu; agent host-7 is asked to approve what its own guard holds", db.line(t, `SELECT reconciler.approve('eu')`))
	require.Equal(t, "the guard holds nothing of us", db.line(t, `SELECT reconciler.approve('us')`))
	require.Equal(t, []string{"agent host-7 of eu is asked to retry what has failed there"}, db.notices(t, `SELECT reconciler.retry('eu', 'deployments', '1')`))
	require.Equal(t, []string{"object '1' is applied: there is nothing to retry"}, db.notices(t, `SELECT reconciler.retry('us', 'deployments', '1')`))
	require.Equal(t, "0 | 0 | 1 | 2", db.line(t, orders))
	db.lines(t, `SELECT reconciler.pause('eu'), reconciler.resume('eu'), reconciler.resume('eu'), reconciler.resync('*'), reconciler.resync('eu')`)
	require.Equal(t, []string{"3 | 2 | 1 | 2"}, db.lines(t, orders))
	db.ledger(t, "eu", "2", "held", "wanted = false, held_by = 'guard'")
	require.Equal(t, "1 delete of eu approved; agent host-7 is asked to approve what its own guard holds", db.line(t, `SELECT reconciler.approve('eu')`))
}

func TestPsqlDoctorNamesTroubleOfAgents(t *testing.T) {
	t.Parallel()
	db := reported(t)
	db.Exec(t, `UPDATE reconciler.instances SET version = 'devel'`)
	db.agent(t, "s", 1, `{"name": "host-7", "version": "1.2.0"}`)
	require.Equal(t, []string{"t | 1 agent reports | "}, db.lines(t, agentFindings), "a development build has no version to compare")

	for _, step := range []struct{ sql, want string }{
		{`UPDATE reconciler.instances SET version = 'v1.10.3'`, "f | agent host-7 of eu has version 1.2.0, and process " + db.line(t, `SELECT name FROM reconciler.instances`) + " version v1.10.3 | Upgrade the agent."},
		{`UPDATE reconciler.instances SET version = '0.9.0'`, "f | agent host-7 of eu has version 1.2.0, and process " + db.line(t, `SELECT name FROM reconciler.instances`) + " version 0.9.0 | Upgrade the processes of `reconciler run`."},
		{`UPDATE reconciler.instances SET version = 'v1.2.9-rc.1'`, "t | 1 agent reports | "},
		{`UPDATE reconciler.instances SET version = '1.99999999999999999999'`, "t | 1 agent reports | "},
		{`UPDATE reconciler.instances SET version = '1.3.0'; UPDATE reconciler.heartbeats SET at = at - interval '1 minute'`, "t | 1 agent reports | "},
		{`UPDATE reconciler.reports SET held = 1`, "f | the guard of agent host-7 holds 1 delete of eu | If they are right: SELECT reconciler.approve('eu'); or, on its host: reconciler agent approve eu"},
		{`UPDATE reconciler.reports SET held = 0, trouble = 'circuit open: connection refused'`, "f | agent host-7 of eu: circuit open: connection refused | Fix it on the far side; the agent goes on by itself."},
		{`UPDATE reconciler.reports SET trouble = NULL, healthy = false`, "f | agent host-7 of eu: the far side is not healthy | Fix it on the far side; the agent goes on by itself."},
		{`UPDATE reconciler.reports SET healthy = true, reported_at = '2026-01-02 05:00:00+00'`, "f | agent host-7 of eu has not reported since 2026-01-02 05:00:00+00; an agent reports each minute | " +
			"See whether it runs, reaches this server, and may report; its log and `reconciler agent status` have the reason."},
		{`UPDATE reconciler.reports SET reported_at = clock_timestamp(), session_since = clock_timestamp() - interval '30 seconds', ignored_at = clock_timestamp(), ignored_client = 'host-8'`, "t | 1 agent reports | "},
		{`UPDATE reconciler.reports SET session_since = clock_timestamp() - interval '2 minutes'`, "f | two clients report on eu: host-7, and host-8, whose reports are ignored | " +
			"Stop one of them. To have one stand by for the other, let them elect a leader on the far side."},
		{`UPDATE reconciler.reports SET session_since = clock_timestamp() - interval '2 hours', ignored_at = clock_timestamp() - interval '1 hour'`, "t | 1 agent reports | "},
	} {
		db.Exec(t, step.sql)
		require.Equal(t, []string{step.want}, db.lines(t, agentFindings), step.sql)
	}
}

// Doctor reads what agents tell of themselves, and not what they tell of a hundred thousand objects. Nor does a query that counts no objects.
func TestPsqlAgentsAreCheap(t *testing.T) {
	t.Parallel()
	db := reported(t)
	db.agent(t, "s", 1, `{"name": "host-7"}`)
	db.Exec(t, `ALTER TABLE reconciler.observations SET (autovacuum_enabled = off)`)
	db.Exec(t, `INSERT INTO reconciler.observations (target_id, resource_id, key, version, state, session, seq, observed_at)
		SELECT t.id, r.id, 'object-' || i, 7, 'applied', 1, 1, clock_timestamp() FROM reconciler.targets t, reconciler.resources r, generate_series(1, 100000) AS i WHERE t.name = 'eu'`)
	for _, statistics := range []string{"none", "fresh"} {
		for _, sql := range []string{`SELECT ok, finding FROM reconciler.doctor_agents()`, `SELECT name, held, trouble, failing FROM reconciler.agents`, `SELECT trouble FROM reconciler.status`} {
			conn := db.Conn(t)
			_, err := conn.Exec(t.Context(), `BEGIN`)
			require.NoError(t, err)
			require.NotEmpty(t, lines(t, conn, sql))
			require.Equal(t, []string{"0"}, lines(t, conn, `SELECT sum(seq_tup_read + idx_tup_fetch) FROM pg_stat_xact_user_tables WHERE relid = 'reconciler.observations'::regclass`), "%s: %s", statistics, sql)
		}
		db.Exec(t, `ANALYZE reconciler.observations`)
	}
}

// notices runs a statement and returns its notices.
func (d psqlDB) notices(t *testing.T, sql string) (notices []string) {
	t.Helper()
	config, err := pgx.ParseConfig(d.URL)
	require.NoError(t, err)
	config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { notices = append(notices, n.Message) }
	conn, err := pgx.ConnectConfig(t.Context(), config)
	require.NoError(t, err)
	defer conn.Close(t.Context())
	lines(t, conn, sql)
	return notices
}
