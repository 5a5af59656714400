package outbox_test

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// C10, I8: a writer needs rights on his table and none on ours.
func TestCaptureOfWriterWithoutRights(t *testing.T) {
	t.Parallel()
	w := newWorld(t, apps, `CREATE TABLE parents (id int PRIMARY KEY); CREATE VIEW joined AS SELECT id FROM parents;
		SELECT reconciler.track('joined', 'joined', '{id}', '''eu''', depends_on => '{"parents": {"id": "id"}}')`)
	role := w.Role(t, "writer", "")
	w.Exec(t, "GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON apps, parents TO "+role)
	conn := w.ConnAs(t, role)
	refused(t, conn, `SELECT FROM reconciler.outbox`, `permission denied for schema reconciler`, "")
	for _, statement := range []string{
		`INSERT INTO apps VALUES (1, 'eu')`, `UPDATE apps SET region = 'us'`, `DELETE FROM apps`, `TRUNCATE apps`, `INSERT INTO parents VALUES (1)`, `TRUNCATE parents`,
	} {
		_, err := conn.Exec(t.Context(), statement)
		require.NoError(t, err, statement)
	}
	require.Equal(t, []string{`app "eu" "1"`, `app "eu" "1"`, `app "us" "1"`, `app "us" "1"`, `app everywhere whole`, `joined {"id": 1}`, `joined everywhere whole`}, w.marks(t))
}

// C10: whoever may create functions cannot have ours called in their place, nor ours with a table of his own.
func TestCaptureUnderHostileSearchPath(t *testing.T) {
	t.Parallel()
	w := newWorld(t, apps, `CREATE SCHEMA evil; CREATE TABLE evil.outbox (resource_id int, target text, key text); CREATE TABLE evil.calls (name text)`,
		`CREATE FUNCTION evil.called(name text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN INSERT INTO evil.calls VALUES (name || ' as ' || current_user); END $$`,
		`CREATE FUNCTION evil.pg_try_advisory_lock_shared(bigint) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.called('lock'); RETURN true; END $$`,
		`CREATE FUNCTION evil.replace(text, text, text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.called('replace'); RETURN 'evil'; END $$`,
		`CREATE FUNCTION evil.eq(text, text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.called('eq'); RETURN false; END $$`,
		`CREATE OPERATOR evil.= (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.eq)`,
		`CREATE OPERATOR evil.<> (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.eq)`,
		`CREATE FUNCTION evil.nextval(regclass) RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.called('nextval'); RETURN 1; END $$`,
		`CREATE FUNCTION evil.eqs(text[], text[]) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.called('eqs'); RETURN false; END $$`,
		`CREATE OPERATOR evil.= (LEFTARG = text[], RIGHTARG = text[], FUNCTION = evil.eqs)`,
		`CREATE FUNCTION evil.record_image_eq(record, record) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.called('image'); RETURN true; END $$`,
		`CREATE FUNCTION evil.lower(text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.called('lower'); RETURN 'evil'; END $$`,
		`CREATE TABLE pairs (a text, b text, region text, PRIMARY KEY (a, b)); SELECT reconciler.track('pair', 'pairs', '{a,b}', 'region', 'a <> ''off''')`,
		// A function of the user's is run under a path that is not the writer's.
		`CREATE FUNCTION lowered(text) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT lower($1)'; SELECT reconciler.track('twin', 'pairs', '{a,b}', 'lowered(region)')`,
		`CREATE DOMAIN evil.text AS integer; CREATE DOMAIN evil._text AS integer`)
	_, err := w.Conn(t).Exec(t.Context(), `SET search_path = evil, pg_temp, pg_catalog, public;
		CREATE TEMP TABLE outbox (resource_id int, target text, key text); CREATE TEMP TABLE settings (notify boolean);
		INSERT INTO public.apps VALUES (1, 'eu'); INSERT INTO public.pairs VALUES ('a/', 'b', 'eu'); UPDATE public.pairs SET region = 'us'; TRUNCATE public.apps`)
	require.NoError(t, err)
	require.Equal(t, []string{`app "eu" "1"`, `pair "eu" "a\\//b"`, `twin "eu" "a\\//b"`, `pair "eu" "a\\//b"`, `pair "us" "a\\//b"`, `twin "eu" "a\\//b"`, `twin "us" "a\\//b"`, `app everywhere whole`}, w.marks(t))
	require.Empty(t, w.lines(t, `SELECT name FROM evil.calls`))

	// Nobody but those who may track can put a capture function on his own table.
	role := w.Role(t, "writer", "")
	refused(t, w.ConnAs(t, role), `CREATE TEMP TABLE mine (id int); CREATE TRIGGER t AFTER INSERT ON mine EXECUTE FUNCTION reconciler.capture_1()`, `permission denied for schema reconciler`, "")
	w.Exec(t, `GRANT USAGE ON SCHEMA reconciler TO `+role)
	refused(t, w.ConnAs(t, role), `CREATE TEMP TABLE mine (id int); CREATE TRIGGER t AFTER INSERT ON mine EXECUTE FUNCTION reconciler.capture_1()`, `permission denied for function reconciler.capture_1`, "")
}

// What gives the same under any setting pins the search path only: the other settings would cost as much as everything else that
// it does.
func TestCapturePinsSettingsWhereTheyMatter(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TYPE mood AS ENUM ('ok', 'bad'); CREATE DOMAIN short AS text CHECK (length(VALUE) < 9); CREATE FUNCTION mine(text) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT true';
		CREATE TABLE apps (id bigint PRIMARY KEY, u uuid UNIQUE NOT NULL, d date UNIQUE NOT NULL, region text, code varchar(9), mood mood, short short, on_ boolean, config jsonb, seen timestamptz, tags text[], rel regclass, f float8)`)
	pinned := func(c [3]string) bool {
		t.Helper()
		w.lines(t, `SELECT reconciler.track('app', 'apps', $1::text[], $2, $3)`, c[0], c[1], c[2])
		return w.lines(t, `SELECT (cardinality(proconfig) > 1)::text FROM pg_proc WHERE proname = 'capture_1'`)[0] == "true"
	}
	for _, c := range [][3]string{
		{"{id}", "region", "true"}, {"{id}", "region", "on_"}, {"{u}", "code", "on_ AND seen IS NULL"}, {"{id,u}", "region", "mood = 'ok'"},
		{"{id}", "'eu'", "config->>'on' = 'yes' OR config ? 'always'"}, {"{id}", "lower(region)", "region IN ('eu', 'us') AND code LIKE 'a%'"},
		{"{id}", "CASE WHEN on_ THEN NULL ELSE coalesce(region, 'eu') END", "id > 5 AND 'x' = ANY (tags)"}, {"{d}", "region", "true"}, {"{id}", "short", "true"},
		{"{id}", "mood", "code IN ('a', 'b') AND id BETWEEN -5 AND 5"}, {"{id}", "coalesce(code, 'x::y')", "seen IS DISTINCT FROM '2026-01-01'::timestamptz"},
	} {
		require.False(t, pinned(c), "%v", c)
	}
	for _, c := range [][3]string{
		{"{id}", "region", "mine(region)"}, {"{id}", "rel::text", "true"}, {"{id}", "region", "to_regclass(region) IS NOT NULL"},
		{"{id}", "region", "EXISTS (SELECT FROM pg_class c WHERE c.relname = region)"}, {"{id}", "region::short", "true"}, {"{id}", "region", "seen > now()"},
		{"{id}", "region", "seen > d"}, {"{id}", "f::text", "true"}, {"{id}", "coalesce(region, (seen - seen)::text)", "true"}, {"{id}", "region || id", "true"},
	} {
		require.True(t, pinned(c), "%v", c)
	}
}

// A superuser who calls track() with somebody else's schema in his path runs none of its code.
func TestTrackUnderHostileSearchPath(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE SCHEMA evil; CREATE TABLE evil.calls (name text); CREATE TABLE apps (id int PRIMARY KEY, region text)`,
		`CREATE FUNCTION evil.format(text, text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN INSERT INTO evil.calls VALUES ('format'); RETURN $1; END $$`,
		`CREATE FUNCTION evil.quote_ident(name) RETURNS text LANGUAGE plpgsql AS $$ BEGIN INSERT INTO evil.calls VALUES ('quote_ident'); RETURN $1; END $$`,
		`CREATE FUNCTION evil.unnest(text[]) RETURNS SETOF text LANGUAGE plpgsql AS $$ BEGIN INSERT INTO evil.calls VALUES ('unnest'); END $$`,
		`CREATE FUNCTION evil.current_setting(text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN INSERT INTO evil.calls VALUES ('current_setting'); END $$`,
		`CREATE FUNCTION evil.always() RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT true'`)
	_, err := w.Conn(t).Exec(t.Context(), `SET search_path = evil, public, pg_catalog;
		SELECT reconciler.track('app', 'apps', '{id}', 'region', 'always()', ignore => '{}'); SELECT reconciler.untrack('app'); SELECT reconciler.track('app', 'apps', '{id}', 'region', 'always()')`)
	require.NoError(t, err)
	require.Empty(t, w.lines(t, `SELECT name FROM evil.calls`))
	// But the caller's path is the one under which his own names were looked up.
	require.Equal(t, []string{"evil.always()"}, w.lines(t, `SELECT running_bound FROM reconciler.resources`))
}

// C10: through functions with other rights, other protocols, other isolation levels.
func TestCaptureOfEveryWayToWrite(t *testing.T) {
	t.Parallel()
	w := newWorld(t, apps, `CREATE FUNCTION add(id int) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$ BEGIN INSERT INTO public.apps VALUES (id, 'eu'); END $$`)
	role := w.Role(t, "writer", "")
	conn := w.ConnAs(t, role)
	_, err := conn.Exec(t.Context(), `SELECT add(1)`)
	require.NoError(t, err)
	require.Equal(t, []string{`app "eu" "1"`}, w.marks(t))

	for n, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		_, err := w.Pool.Exec(t.Context(), `INSERT INTO apps VALUES ($1, $2)`, mode, 10+n, "eu")
		require.NoError(t, err, mode)
		require.Equal(t, []string{fmt.Sprintf(`app "eu" "%d"`, 10+n)}, w.marks(t), mode)
	}
	for n, level := range []pgx.TxIsoLevel{pgx.Serializable, pgx.RepeatableRead, pgx.ReadCommitted} {
		err := pgx.BeginTxFunc(t.Context(), w.Pool, pgx.TxOptions{IsoLevel: level}, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), `INSERT INTO apps VALUES ($1, 'eu')`, 20+n)
			return err
		})
		require.NoError(t, err, level)
		require.Equal(t, []string{fmt.Sprintf(`app "eu" "%d"`, 20+n)}, w.marks(t), level)
	}
	w.marked(t, `SET LOCAL row_security = off; SET LOCAL check_function_bodies = off; SET LOCAL lock_timeout = '9s'; SET LOCAL jit = off; SET LOCAL plan_cache_mode = force_generic_plan;
		INSERT INTO apps VALUES (30, 'eu')`, `app "eu" "30"`)
}

// I8: an expression that fails on a row fails nobody's write. The row is marked for every target.
func TestCaptureOfRowThatCannotBeEvaluated(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TABLE jobs (id int PRIMARY KEY, region text, labels jsonb);
		SELECT reconciler.track('job', 'jobs', '{id}', 'region', '(labels->>''n'')::int > 0')`)
	w.marked(t, `INSERT INTO jobs VALUES (1, 'eu', '{"n": 1}'), (2, 'eu', '{"n": "x"}'), (3, 'eu', '{"n": 1}'), (4, 'eu', '{"n": 0}')`, `job "eu" "1"`, `job everywhere "2"`, `job "eu" "3"`)
	w.marked(t, `UPDATE jobs SET labels = '{"n": "y"}' WHERE id = 2`, `job everywhere "2"`)
	w.marked(t, `UPDATE jobs SET labels = '{"n": "y"}', id = 5 WHERE id = 1`, `job everywhere "1"`, `job everywhere "5"`)
	w.marked(t, `UPDATE jobs SET labels = '{"n": 2}' WHERE id = 5`, `job everywhere "5"`)
	w.marked(t, `DELETE FROM jobs`, `job "eu" "3"`, `job everywhere "2"`, `job "eu" "5"`)
	// A guard that failed has used no transaction id of its own, however many rows there were.
	w.Exec(t, `BEGIN; INSERT INTO jobs SELECT n, 'eu', '{"n": "x"}' FROM generate_series(1, 2000) AS n; COMMIT`)
	require.Len(t, w.marks(t), 2000)
	before := w.lines(t, `SELECT pg_current_xact_id()::text`)[0]
	w.Exec(t, `UPDATE jobs SET region = 'us'`)
	// Other tests use ids of the same server meanwhile, but not as many as there are rows.
	require.Equal(t, []string{"true"}, w.lines(t, `SELECT (pg_current_xact_id()::text::bigint - $1::text::bigint < 1500)::text`, before))

	for name, body := range map[string]string{
		"division": `BEGIN RETURN 1 / (id - id) > 0; END`, "assertion": `BEGIN ASSERT false; RETURN true; END`, "raised": `BEGIN RAISE EXCEPTION 'no' USING ERRCODE = 'ZZ999'; END`,
		"serialization": `BEGIN RAISE EXCEPTION 'no' USING ERRCODE = 'serialization_failure'; END`, "missing": `BEGIN RETURN (SELECT count(*) FROM nowhere) > 0; END`,
	} {
		w.Exec(t, fmt.Sprintf(`CREATE FUNCTION %[1]s(id int) RETURNS boolean STABLE LANGUAGE plpgsql AS $$ %[2]s $$; CREATE TABLE t_%[1]s (id int PRIMARY KEY); SELECT reconciler.track('%[1]s', 't_%[1]s', '{id}', '''eu''', '%[1]s(id)')`, name, body))
		w.marks(t)
		w.marked(t, fmt.Sprintf(`INSERT INTO t_%s VALUES (1)`, name), name+` everywhere "1"`)
	}
}

// Triggers of the user run before ours, and may change the row, or the table again.
func TestCaptureBesideTriggersOfTheUser(t *testing.T) {
	t.Parallel()
	w := newWorld(t, apps,
		`CREATE FUNCTION upper_region() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.region := upper(NEW.region); RETURN NEW; END $$;
		CREATE TRIGGER a BEFORE INSERT OR UPDATE ON apps FOR EACH ROW EXECUTE FUNCTION upper_region()`,
		`CREATE FUNCTION twin() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO apps VALUES (NEW.id + 100, NEW.region); UPDATE apps SET region = 'jp' WHERE id = NEW.id; RETURN NULL; END $$;
		CREATE TRIGGER zz AFTER INSERT ON apps FOR EACH ROW WHEN (NEW.id < 100) EXECUTE FUNCTION twin()`,
		`CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
		CREATE TRIGGER b BEFORE DELETE ON apps FOR EACH ROW WHEN (OLD.id = 1) EXECUTE FUNCTION keep()`)
	w.marked(t, `INSERT INTO apps VALUES (1, 'eu')`, `app "EU" "1"`, `app "EU" "101"`, `app "EU" "1"`, `app "JP" "1"`)
	w.marked(t, `UPDATE apps SET region = 'jp' WHERE id = 1`)
	w.marked(t, `DELETE FROM apps`, `app "EU" "101"`)
}
