package apply_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// psqlDB is a database as a person finds it in psql: the resource deployments over public.deployments, a process
// host-1 that leads and owns the targets eu and us, and everything up to revision 10 recorded.
type psqlDB struct{ *pgtest.DB }

const psqlFixture = `
CREATE TABLE public.deployments (id bigint PRIMARY KEY, region text, running boolean NOT NULL DEFAULT true, image text NOT NULL DEFAULT 'app:1');
CREATE INDEX ON public.deployments (region, id) WHERE running;
SELECT reconciler.track('deployments', 'public.deployments', '{id}', 'region', 'running');
INSERT INTO reconciler.instances (id, name, version, targets) VALUES ('00000000-0000-0000-0000-000000000001', 'host-1', 'v1', '{eu,us}');
INSERT INTO reconciler.heartbeats (instance, beat) VALUES ('00000000-0000-0000-0000-000000000001', 1);
UPDATE reconciler.leases SET owner = '00000000-0000-0000-0000-000000000001', term = 1, lease_ttl = '1 hour';
INSERT INTO reconciler.targets (name, configured, driver, owner, term, lease_ttl)
SELECT n, true, 'file', '00000000-0000-0000-0000-000000000001', 1, '1 hour' FROM unnest('{eu,us}'::text[]) AS n;`

func newPsqlDB(t *testing.T) psqlDB {
	t.Helper()
	db := psqlDB{pgtest.New(t)}
	db.Exec(t, psqlFixture)
	db.tick(t, 10)
	db.record(t, "eu", 10)
	db.record(t, "us", 10)
	return db
}

// tick makes a revision, as the leader does. Revision n is dated 2026-01-02 03:04:00 plus n seconds.
func (d psqlDB) tick(t *testing.T, revision int) {
	t.Helper()
	d.Exec(t, `INSERT INTO reconciler.ticks (revision, snapshot, at) VALUES ($1::integer, pg_current_snapshot(), '2026-01-02 03:04:00+00'::timestamptz + $1::integer * interval '1 second')`, revision)
}

// record moves the cursor of a target, as its owner does.
func (d psqlDB) record(t *testing.T, target string, revision int) {
	t.Helper()
	d.Exec(t, `SELECT reconciler.write_cursor(t.id, k.revision, k.snapshot) FROM reconciler.targets t, reconciler.ticks k WHERE k.revision = $2 AND t.name = $1`, target, revision)
}

// ledger writes an object of deployments into the ledger. more is what else to SET in its row.
func (d psqlDB) ledger(t *testing.T, target, key, state, more string) {
	t.Helper()
	d.Exec(t, `
		INSERT INTO reconciler.ledger (target_id, resource_id, key, state, wanted, present, desired_revision, applied_revision, applied_hash, attempts, last_error, held_by, next_attempt_at, applied_at)
		SELECT t.id, r.id, $2, $3::text::reconciler.object_state, true, true, 9, 9, '\x00112233445566778899aabbccddeeff', 0, NULL, CASE $3 WHEN 'held' THEN 'pause' END,
			CASE WHEN $3 IN ('pending', 'failing') THEN '2026-01-02 03:04:05+00'::timestamptz END, '2026-01-02 03:04:09+00'
		FROM reconciler.targets t, reconciler.resources r WHERE t.name = $1 AND r.name = 'deployments'`, target, key, state)
	if more != "" {
		d.Exec(t, `UPDATE reconciler.ledger l SET `+more+` FROM reconciler.targets t WHERE t.id = l.target_id AND t.name = '`+target+`' AND l.key = '`+strings.ReplaceAll(key, "'", "''")+`'`)
	}
}

type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// lines runs a query and returns each row as psql shows it: columns joined by " | ", NULL empty.
func lines(t *testing.T, db querier, sql string) []string {
	t.Helper()
	out, err := tryLines(t, db, sql)
	require.NoError(t, err, sql)
	return out
}

func tryLines(t *testing.T, db querier, sql string) ([]string, error) {
	t.Helper()
	rows, err := db.Query(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := []string{}
	for rows.Next() {
		columns := make([]string, 0, len(rows.RawValues()))
		for _, raw := range rows.RawValues() {
			columns = append(columns, string(raw))
		}
		out = append(out, strings.Join(columns, " | "))
	}
	return out, rows.Err()
}

func (d psqlDB) lines(t *testing.T, sql string) []string {
	t.Helper()
	return lines(t, d.Pool, sql)
}

// line is lines for a query that gives one row.
func (d psqlDB) line(t *testing.T, sql string) string {
	t.Helper()
	all := d.lines(t, sql)
	require.Len(t, all, 1, sql)
	return all[0]
}

// refusal is what PostgreSQL says about a statement that it refuses: message, and hint in a second line.
func refusal(t *testing.T, db querier, sql string) string {
	t.Helper()
	_, err := tryLines(t, db, sql)
	var refused *pgconn.PgError
	require.ErrorAs(t, err, &refused, sql)
	return strings.TrimSuffix(refused.Message+"\n"+refused.Hint, "\n")
}

// hears runs a statement and fails unless it told the processes to look at what was ordered.
func (d psqlDB) hears(t *testing.T, sql string) []string {
	t.Helper()
	return d.hearsOn(t, "reconciler_control", sql)
}

// hearsOn does so for another channel.
func (d psqlDB) hearsOn(t *testing.T, channel, sql string) []string {
	t.Helper()
	listener := d.Conn(t)
	_, err := listener.Exec(t.Context(), "LISTEN "+channel)
	require.NoError(t, err)
	out := d.lines(t, sql)
	ctx, cancel := context.WithTimeout(t.Context(), pgtest.Patience)
	defer cancel()
	_, err = listener.WaitForNotification(ctx)
	require.NoError(t, err, "nothing was sent on %s by: %s", channel, sql)
	return out
}

func TestPsqlEverythingHasAComment(t *testing.T) {
	t.Parallel()
	db := newPsqlDB(t)
	require.Empty(t, db.lines(t, `
		SELECT p.oid::regprocedure FROM pg_proc p WHERE p.pronamespace = 'reconciler'::regnamespace AND p.prorettype <> 'trigger'::regtype AND obj_description(p.oid, 'pg_proc') IS NULL`))
	require.Empty(t, db.lines(t, `
		SELECT c.oid::regclass FROM pg_class c WHERE c.relnamespace = 'reconciler'::regnamespace AND c.relkind IN ('r', 'p', 'v') AND NOT c.relispartition
			AND c.relname <> 'goose_db_version' AND obj_description(c.oid, 'pg_class') IS NULL`))
}

// A scan that cannot be avoided where scans are off has a cost for which PostgreSQL compiles the statement, which takes a second.
func TestPsqlWhoWalksIndexesCompilesNothing(t *testing.T) {
	t.Parallel()
	db := newPsqlDB(t)
	const walkers = `SELECT p.proname FROM pg_proc p WHERE p.pronamespace = 'reconciler'::regnamespace AND 'enable_seqscan=off' = ANY (p.proconfig)`
	require.NotEmpty(t, db.lines(t, walkers))
	require.Empty(t, db.lines(t, walkers+` AND NOT 'jit=off' = ANY (p.proconfig)`))
}

func TestPsqlEveryFunctionPinsItsSearchPath(t *testing.T) {
	t.Parallel()
	db := newPsqlDB(t)
	// track hands the caller's path over; the one-liners of constants have nothing to look up.
	require.Equal(t, []string{"capture_template", "sleep_lock", "track"}, db.lines(t, `
		SELECT p.proname FROM pg_proc p WHERE p.pronamespace = 'reconciler'::regnamespace AND p.prosqlbody IS NULL
			AND NOT coalesce('search_path=pg_catalog, pg_temp' = ANY (p.proconfig), false) ORDER BY p.proname COLLATE "C"`))
}

func TestPsqlSignaturesAreThoseOfTheContract(t *testing.T) {
	t.Parallel()
	db := newPsqlDB(t)
	require.Equal(t, []string{
		"approve(target text)",
		"doctor()",
		"explain(target text, resource text, key text)",
		"grant(role_name name, kind text)",
		"pause(target text, reason text DEFAULT NULL::text)",
		"release(target text, objects text DEFAULT 'keep'::text)",
		"resume(target text)",
		"resync(target text, resource text DEFAULT NULL::text)",
		"retry(target text, resource text DEFAULT NULL::text, key text DEFAULT NULL::text)",
		"revoke(role_name name, kind text)",
		"wait(timeout interval DEFAULT '00:00:30'::interval, target text DEFAULT NULL::text)",
	}, db.lines(t, `
		SELECT format('%s(%s)', p.proname, pg_get_function_arguments(p.oid)) FROM pg_proc p
		WHERE p.pronamespace = 'reconciler'::regnamespace
			AND p.proname IN ('approve', 'doctor', 'explain', 'grant', 'revoke', 'pause', 'release', 'resume', 'resync', 'retry', 'wait')
		ORDER BY p.proname COLLATE "C"`))
}
