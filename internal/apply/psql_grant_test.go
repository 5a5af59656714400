package apply_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/store"
)

// roleOf makes a role of a kind ("" for none) and connects as it.
func (d psqlDB) roleOf(t *testing.T, kind string) (string, *pgx.Conn) {
	t.Helper()
	role := d.Role(t, "role", "")
	if kind != "" {
		d.Exec(t, "SELECT reconciler.grant('"+role+"', '"+kind+"')")
	}
	return role, d.ConnAs(t, role)
}

func TestPsqlGrantMatrix(t *testing.T) {
	t.Parallel()
	db := newPsqlDB(t)
	db.Exec(t, "INSERT INTO public.deployments (id, region) VALUES (1, 'eu')")
	db.tick(t, 11)
	db.record(t, "eu", 11)
	db.record(t, "us", 11)
	db.ledger(t, "eu", "1", "failing", "attempts = 1")
	db.Exec(t, "INSERT INTO reconciler.targets (name) VALUES ('gone')")
	kinds := []string{"", "viewer", "operator", "writer", "runtime", "definer"}
	conns := map[string]*pgx.Conn{}
	for _, kind := range kinds {
		_, conns[kind] = db.roleOf(t, kind)
	}
	const all, operators, daemon = "viewer operator runtime definer", "operator runtime", "runtime"
	for _, c := range []struct{ sql, may string }{
		{"SELECT * FROM reconciler.status", all},
		{"SELECT FROM reconciler.pending UNION ALL SELECT FROM reconciler.outbox_lag UNION ALL SELECT FROM reconciler.objects UNION ALL SELECT FROM reconciler.syncs UNION ALL SELECT FROM reconciler.held UNION ALL SELECT FROM reconciler.drift UNION ALL SELECT FROM reconciler.failing", all},
		{"SELECT * FROM reconciler.instances", all},
		{"SELECT * FROM reconciler.explain('eu', 'deployments', '1')", all},
		{"SELECT * FROM reconciler.doctor()", all},
		{"SELECT * FROM reconciler.wait('0')", all},
		{"SELECT FROM reconciler.health", all},
		{"SELECT reconciler.ask_health()", all},
		{"SELECT * FROM reconciler.wait_healthy('0', NULL, clock_timestamp())", all},
		{"DELETE FROM reconciler.health_asks WHERE false", daemon},
		{"SELECT target, key, running FROM reconciler.desired_deployments", all},
		{"SELECT spec FROM reconciler.desired_deployments", daemon}, // specs may hold secrets
		{"SELECT target_id, key, version, state, message FROM reconciler.observations UNION ALL SELECT NULL, session, NULL, NULL, NULL FROM reconciler.stream_reports", all},
		{"SELECT status FROM reconciler.observations", daemon}, // it may hold secrets, too
		{"DELETE FROM reconciler.observations WHERE false", daemon},
		{"SELECT reconciler.report(1, 's', 1, true, 0, '{}', '{}', '{}', '{}', '{}', '{}', '{}')", daemon},
		{"SELECT * FROM public.deployments", ""},
		{"SELECT reconciler.pause('eu')", operators},
		{"SELECT reconciler.resume('eu')", operators},
		{"SELECT reconciler.retry('eu')", operators},
		{"SELECT reconciler.resync('*')", operators},
		{"SELECT reconciler.approve('eu')", operators},
		{"SELECT reconciler.release('gone')", operators},
		{"SELECT reconciler.begin_apply('x')", "operator writer runtime definer"},
		{"SELECT reconciler.apply_stop(1)", operators},
		{"SELECT reconciler.begin_resync('deployments')", operators},
		{"SELECT reconciler.set_applies('nothing', false)", "definer"},
		{"SELECT FROM reconciler.apply_events", all},
		{"SELECT reconciler.begin_rollout(1)", "runtime definer"},
		{"SELECT FROM reconciler.apply_status UNION ALL SELECT FROM reconciler.apply_targets UNION ALL SELECT FROM reconciler.apply_tasks UNION ALL SELECT FROM reconciler.apply_log", all},
		{"SELECT * FROM reconciler.apply_wait(1, '0')", all},
		{"SELECT reconciler.refresh_apply(1)", daemon},
		{"INSERT INTO reconciler.applies SELECT FROM reconciler.applies WHERE false", daemon},
		{"UPDATE reconciler.targets SET paused_at = NULL WHERE false", daemon},
		{"INSERT INTO reconciler.ledger SELECT * FROM reconciler.ledger WHERE false", daemon},
		{"DELETE FROM reconciler.ledger WHERE false", daemon},
		{"INSERT INTO reconciler.outbox (resource_id) SELECT 1 WHERE false", "runtime definer"},
		{"INSERT INTO reconciler.resources SELECT FROM reconciler.resources WHERE false", "runtime definer"},
		{"DELETE FROM reconciler.ticks WHERE false", daemon},
		{"TRUNCATE reconciler.outbox_3", daemon},
		{"TRUNCATE reconciler.ledger", ""},
		{"INSERT INTO reconciler.grants (role_name, kind) VALUES ('x', 'viewer')", ""},
		{"SELECT reconciler.grant('postgres', 'viewer')", ""},
		{"SELECT reconciler.revoke('postgres', 'viewer')", ""},
		{"SELECT reconciler.regrant()", ""},
		{"SELECT reconciler.named_target('eu')", daemon},
		{"CREATE VIEW reconciler.mine AS SELECT 1", "definer"},
		{"SELECT reconciler.untrack('nothing')", "definer"},
		{"CREATE TABLE reconciler_trap (); CREATE TRIGGER t AFTER INSERT ON reconciler_trap EXECUTE FUNCTION reconciler.capture_1()", ""},
	} {
		for _, kind := range kinds {
			_, err := conns[kind].Exec(t.Context(), "BEGIN")
			require.NoError(t, err)
			_, err = conns[kind].Exec(t.Context(), c.sql)
			_, rollback := conns[kind].Exec(t.Context(), "ROLLBACK")
			require.NoError(t, rollback)
			if !slices.Contains(strings.Fields(c.may), kind) {
				require.ErrorContains(t, err, "permission denied", "%q: %s", kind, c.sql)
				continue
			}
			if err != nil { // named_target locks, untrack finds nothing: refused for another reason than rights
				require.NotContains(t, err.Error(), "permission denied", "%q: %s", kind, c.sql)
			}
		}
	}
}

// C10: whoever may write the table may write it.
func TestPsqlWriterNeedsNoRightOnTheSchema(t *testing.T) {
	t.Parallel()
	db := newPsqlDB(t)
	role, conn := db.roleOf(t, "")
	db.Exec(t, "GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON public.deployments TO "+role)
	for _, sql := range []string{
		"INSERT INTO public.deployments (id, region) VALUES (1, 'eu')",
		"UPDATE public.deployments SET region = 'us'",
		"DELETE FROM public.deployments",
		"TRUNCATE public.deployments",
	} {
		_, err := conn.Exec(t.Context(), sql)
		require.NoError(t, err, sql)
	}
	require.Equal(t, []string{"eu | 1", "eu | 1", "us | 1", "us | 1", " | "}, db.lines(t, "SELECT target, key FROM reconciler.outbox WHERE seq > 1 ORDER BY seq"))
	require.Equal(t, "permission denied for schema reconciler", refusal(t, conn, "SELECT * FROM reconciler.status"))
	require.Equal(t, "permission denied for schema reconciler", refusal(t, conn, "SELECT reconciler.pause('eu')"))
}

func TestPsqlOperatorOrdersAreSignedByTheLoginRole(t *testing.T) {
	t.Parallel()
	db := newPsqlDB(t)
	role, conn := db.roleOf(t, "operator")
	lines(t, conn, "SELECT reconciler.pause('eu', 'why not')")
	lines(t, conn, "SELECT reconciler.resync('us')")
	require.Equal(t, role, db.line(t, "SELECT paused_by FROM reconciler.targets WHERE name = 'eu'"))
	require.Equal(t, role, db.line(t, "SELECT requested_by FROM reconciler.syncs"))
}

func TestPsqlDefinerTracksWithoutOwningTheSchema(t *testing.T) {
	t.Parallel()
	db := newPsqlDB(t)
	role, conn := db.roleOf(t, "definer")
	_, viewer := db.roleOf(t, "viewer")
	_, runtime := db.roleOf(t, "runtime")
	db.Exec(t, "CREATE SCHEMA app AUTHORIZATION "+role)
	for _, sql := range []string{
		"CREATE TABLE app.jobs (id int PRIMARY KEY, region text, secret text)",
		"SELECT reconciler.track('jobs', 'app.jobs', '{id}', 'region')",
		"INSERT INTO app.jobs VALUES (1, 'eu', 's3cret')",
		"SELECT reconciler.track('jobs', 'app.jobs', '{id}', 'region', 'id > 0')",
	} {
		_, err := conn.Exec(t.Context(), sql)
		require.NoError(t, err, sql)
	}
	require.Equal(t, []string{"eu | 1 | t"}, lines(t, viewer, "SELECT target, key, running FROM reconciler.desired_jobs"))
	require.Equal(t, "permission denied for view desired_jobs", refusal(t, viewer, "SELECT spec FROM reconciler.desired_jobs"))
	require.Equal(t, []string{`{"id": 1, "region": "eu", "secret": "s3cret"}`}, lines(t, runtime, "SELECT spec FROM reconciler.desired_jobs"))
	// What was generated since they were granted their rights lacks none.
	for kind, role := range map[string]*pgx.Conn{"definer": conn, "viewer": viewer, "runtime": runtime} {
		require.Equal(t, []string{}, lines(t, role, "SELECT * FROM reconciler.missing_rights(current_user, '"+kind+"')"), kind)
	}
	require.Equal(t, "Row: app.jobs has it, it is running and names target eu.", lines(t, viewer, "SELECT * FROM reconciler.explain('eu', 'jobs', '1')")[0])

	require.Equal(t, []string{"untracked jobs; 0 objects stay in their targets"}, lines(t, conn, "SELECT reconciler.untrack('jobs')"))
}

func TestPsqlRuntimeMayDoWhatTheDaemonDoes(t *testing.T) {
	t.Parallel()
	db := newPsqlDB(t)
	_, conn := db.roleOf(t, "runtime")
	ctx := t.Context()
	const me = "00000000-0000-0000-0000-000000000001"
	for _, sql := range []string{
		"SELECT reconciler.fence(1, '" + me + "', 1)",
		"SELECT reconciler.fence_leader('" + me + "', 1)",
		"SELECT reconciler.retain('1 day', 1000000, '0')",
		"SELECT nextval('reconciler.outbox_seq')",
		"INSERT INTO reconciler.outbox (resource_id, target, key) VALUES (1, 'eu', '1')",
		"SELECT reconciler.start_over('test')",
		"SELECT reconciler.adopt()",
		"LISTEN reconciler_control",
	} {
		_, err := conn.Exec(ctx, sql)
		require.NoError(t, err, sql)
	}
	q := store.New(conn)
	resources, err := q.ResourceList(ctx)
	require.NoError(t, err)
	require.Len(t, resources, 1)
	_, err = q.Forget(ctx, store.ForgetParams{})
	require.NoError(t, err)
	require.Equal(t, []string{}, lines(t, conn, "SELECT * FROM reconciler.missing_rights(current_user, 'runtime')"))
}

func TestPsqlNoFunctionIsForEverybody(t *testing.T) {
	t.Parallel()
	db := newPsqlDB(t)
	const public = `SELECT p.oid::regprocedure FROM pg_proc p WHERE p.pronamespace = 'reconciler'::regnamespace
		AND EXISTS (SELECT FROM aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) AS a WHERE a.grantee = 0)`
	require.Empty(t, db.lines(t, public), "a migration that adds functions ends with SELECT reconciler.regrant()")

	// A later version's table and function reach the roles that were granted before.
	_, viewer := db.roleOf(t, "viewer")
	db.Exec(t, "CREATE FUNCTION reconciler.newer() RETURNS int LANGUAGE sql STABLE AS 'SELECT 42'; CREATE TABLE reconciler.newest AS SELECT 43 AS n")
	require.Equal(t, []string{"reconciler.newer()"}, db.lines(t, public))
	require.Equal(t, "permission denied for table newest", refusal(t, viewer, "SELECT * FROM reconciler.newest"))
	db.Exec(t, "INSERT INTO reconciler.grants (role_name, kind) VALUES ('dropped since', 'runtime'); SELECT reconciler.regrant()")
	require.Empty(t, db.lines(t, public))
	require.Equal(t, []string{"43 | 42"}, lines(t, viewer, "SELECT n, reconciler.newer() FROM reconciler.newest"))
}

func TestPsqlGrantAndRevoke(t *testing.T) {
	t.Parallel()
	db := newPsqlDB(t)
	role, conn := db.roleOf(t, "")

	require.Regexp(t, `^`+role+` is viewer of reconciler: [1-9]\d+ rights given$`, db.line(t, "SELECT reconciler.grant('"+role+"', 'viewer')"))
	require.Equal(t, role+" is viewer of reconciler: 0 rights given", db.line(t, "SELECT reconciler.grant(role_name => '"+role+"', kind => 'viewer')"))
	require.Equal(t, role+" is operator of reconciler: 15 rights given", db.line(t, "SELECT reconciler.grant('"+role+"', 'operator')"))
	lines(t, conn, "SELECT reconciler.pause('eu')")

	require.Equal(t, role+" is no operator of reconciler any more", db.line(t, "SELECT reconciler.revoke('"+role+"', 'operator')"))
	require.Equal(t, "permission denied for function pause", refusal(t, conn, "SELECT reconciler.pause('eu')"))
	lines(t, conn, "SELECT target, key, running FROM reconciler.desired_deployments")
	require.Equal(t, "viewer", db.line(t, "SELECT kind FROM reconciler.grants"))

	db.line(t, "SELECT reconciler.revoke('"+role+"', 'viewer')")
	require.Equal(t, "permission denied for schema reconciler", refusal(t, conn, "SELECT * FROM reconciler.status"))
	require.Equal(t, "0", db.line(t, "SELECT count(*) FROM pg_class c, aclexplode(c.relacl) AS a WHERE c.relnamespace = 'reconciler'::regnamespace AND a.grantee = '"+role+"'::regrole"))
}

func TestPsqlGrantRefuses(t *testing.T) {
	t.Parallel()
	db := newPsqlDB(t)
	require.Equal(t, "no role is named 'nobody here'\nCREATE ROLE makes one.", refusal(t, db.Pool, "SELECT reconciler.grant('nobody here', 'viewer')"))
	require.Equal(t, "no role is named NULL\nCREATE ROLE makes one.", refusal(t, db.Pool, "SELECT reconciler.grant(NULL, 'viewer')"))
	require.Equal(t, "no kind of role is called 'admin'\nKinds: viewer (reads), operator (pause, retry, approve, ...), writer (begin_apply), runtime (the daemon), definer (track)", refusal(t, db.Pool, "SELECT reconciler.grant('postgres', 'admin')"))
	require.Equal(t, "no kind of role is called NULL\nKinds: viewer (reads), operator (pause, retry, approve, ...), writer (begin_apply), runtime (the daemon), definer (track)", refusal(t, db.Pool, "SELECT reconciler.revoke('postgres', NULL)"))
	require.Empty(t, db.lines(t, "SELECT * FROM reconciler.grants"))

	role, conn := db.roleOf(t, "viewer")
	db.Exec(t, "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA reconciler TO "+role)
	require.Equal(t, "role "+role+" may not grant rights on reconciler\nOnly postgres, the owner of the schema, may.", refusal(t, conn, "SELECT reconciler.grant('"+role+"', 'runtime')"))
}

func TestPsqlGrantToAHostileName(t *testing.T) {
	t.Parallel()
	db := newPsqlDB(t)
	role := db.Role(t, `x"; DROP TABLE reconciler.ledger; --' `, "")
	var said string
	require.NoError(t, db.Pool.QueryRow(t.Context(), "SELECT reconciler.grant($1, 'operator')", role).Scan(&said))
	require.Contains(t, said, " is operator of reconciler: ")
	require.Equal(t, "1", db.line(t, "SELECT count(*) FROM pg_class c, aclexplode(c.relacl) AS a WHERE c.oid = 'reconciler.ledger'::regclass AND a.grantee <> c.relowner"))
	require.NoError(t, db.Pool.QueryRow(t.Context(), "SELECT reconciler.revoke($1, 'operator')", role).Scan(&said))
	require.Equal(t, "0", db.line(t, "SELECT count(*) FROM pg_class c, aclexplode(c.relacl) AS a WHERE c.oid = 'reconciler.ledger'::regclass AND a.grantee <> c.relowner"))
}
