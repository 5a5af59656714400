package server_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/server/servertest"
)

// Row security that hides rows from whoever a definition reads as looks like deleted rows. Such a read fails: nothing is
// deleted, everybody is told why, and what was changed meanwhile is applied when it ends.
func TestF2_RowSecurityThatComesLaterDeletesNothing(t *testing.T) {
	t.Parallel()
	const joined = `CREATE VIEW fleet AS SELECT id, n FROM apps`
	cases := []struct{ name, schema, track, on, off string }{
		{"Forced", ``, `SELECT reconciler.track('app', 'apps', '{id}', '''eu''')`, `ALTER TABLE apps ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY`, `ALTER TABLE apps NO FORCE ROW LEVEL SECURITY`},
		{"OfAnOwnerThatIsAnother", `ALTER TABLE apps OWNER TO postgres; GRANT ALL ON apps TO %s`, `SELECT reconciler.track('app', 'apps', '{id}', '''eu''')`, `ALTER TABLE apps ENABLE ROW LEVEL SECURITY`, `ALTER TABLE apps DISABLE ROW LEVEL SECURITY`},
		{"BelowAView", joined + `; ALTER VIEW fleet OWNER TO %s`, `SELECT reconciler.track('app', 'fleet', '{id}', '''eu''', depends_on => '{"apps": {"id": "id"}}')`,
			`ALTER TABLE apps ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY`, `ALTER TABLE apps DISABLE ROW LEVEL SECURITY`},
		{"InASubquery", `CREATE TABLE live (id int); INSERT INTO live SELECT generate_series(1, 3); ALTER TABLE live OWNER TO %s`, `SELECT reconciler.track('app', 'apps', '{id}', '''eu''', 'EXISTS (SELECT FROM live l WHERE l.id = apps.id)')`,
			`ALTER TABLE live ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY`, `ALTER TABLE live DISABLE ROW LEVEL SECURITY`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w, eu := servertest.New(t), servertest.NewPlace()
			ann := w.DB.Role(t, "ann", "")
			w.DB.Exec(t, fmt.Sprintf(`SELECT reconciler.grant('%[1]s', 'definer'); CREATE TABLE apps (id int PRIMARY KEY, n int); ALTER TABLE apps OWNER TO %[1]s`, ann))
			if c.schema != "" {
				w.DB.Exec(t, strings.ReplaceAll(c.schema, "%s", ann))
			}
			_, err := w.DB.ConnAs(t, ann).Exec(t.Context(), c.track)
			require.NoError(t, err)
			w.DB.Exec(t, `INSERT INTO apps SELECT g, 0 FROM generate_series(1, 3) AS g`)
			w.Start(servertest.Named("eu", eu))
			w.Wait()
			w.DB.Exec(t, c.on)
			w.DB.Exec(t, `UPDATE apps SET n = 1`)
			w.Eventually("a sync says why it fails", func() bool {
				return len(w.Lines(`SELECT error FROM reconciler.syncs WHERE error LIKE '%row security hides rows of a tracked table%policy for table%'`)) > 0
			})
			require.Equal(t, []string{ann}, w.Lines(`SELECT substring(finding FROM 'row security of public\.[a-z]+ applies to ([^,]+), as which it is read') FROM reconciler.doctor() WHERE check_name = 'capture'`))
			_, calls, _ := eu.Snapshot()
			require.Len(t, calls, 3)
			w.DB.Exec(t, c.off)
			eu.Eventually(t, map[string]string{"app/1": `{"n": 1, "id": 1}`, "app/2": `{"n": 1, "id": 2}`, "app/3": `{"n": 1, "id": 3}`})
			_, calls, _ = eu.Snapshot()
			for _, made := range calls {
				require.Equal(t, "apply", made.Action)
			}
		})
	}
}

// Types and schemas may be renamed: what is tracked goes on, in a process that runs and in one that starts.
func TestF20_RenamedTypesAndSchemasStopNothing(t *testing.T) {
	t.Parallel()
	w, eu := servertest.New(t), servertest.NewPlace()
	w.DB.Exec(t, `CREATE SCHEMA s; CREATE TYPE s.env AS ENUM ('dev', 'live'); CREATE TABLE s.apps (env s.env, id int, n int, PRIMARY KEY (env, id)); CREATE TABLE s.bases (env s.env PRIMARY KEY, on_ boolean);
		CREATE VIEW s.fleet AS SELECT b.env, b.on_ FROM s.bases b; CREATE TABLE other (id int PRIMARY KEY);
		SELECT reconciler.track('app', 's.apps', '{env,id}', '''eu''', spec => 'to_jsonb(n)'), reconciler.track('other', 'other', '{id}', '''eu''', spec => '1'),
			reconciler.track('base', 's.fleet', '{env}', '''eu''', 'on_', spec => '1', depends_on => '{"s.bases": {"env": "env"}}');
		INSERT INTO s.apps VALUES ('dev', 1, 0); INSERT INTO s.bases VALUES ('dev', true)`)
	p := w.Start(servertest.Named("eu", eu))
	eu.Eventually(t, map[string]string{"app/dev/1": "0", "base/dev": "1"})
	w.DB.Exec(t, `ALTER TYPE s.env RENAME TO "an Environment"; ALTER SCHEMA s RENAME TO "Other"`)
	w.DB.Exec(t, `UPDATE "Other".apps SET n = 1; INSERT INTO "Other".bases VALUES ('live', true); INSERT INTO other VALUES (1)`)
	eu.Eventually(t, map[string]string{"app/dev/1": "1", "base/dev": "1", "base/live": "1", "other/1": "1"})
	p.Stop(t)
	w.Start(servertest.Named("eu", eu))
	w.DB.Exec(t, `UPDATE "Other".apps SET n = 2; DELETE FROM "Other".bases`)
	eu.Eventually(t, map[string]string{"app/dev/1": "2", "other/1": "1"})
	w.Wait()
	require.NotContains(t, strings.Join(w.Lines(`SELECT s FROM reconciler.explain('eu', 'app', 'dev/1') AS s`), "\n"), "cannot")
}

// A definition whose type and view are gone fails alone, by name.
func TestF20_BrokenDefinitionFailsAlone(t *testing.T) {
	t.Parallel()
	w, eu := servertest.New(t), servertest.NewPlace()
	w.DB.Exec(t, `CREATE TYPE env AS ENUM ('dev'); CREATE TABLE apps (env env PRIMARY KEY, id int); CREATE TABLE other (id int PRIMARY KEY);
		SELECT reconciler.track('app', 'apps', '{env}', '''eu''', spec => '1'), reconciler.track('other', 'other', '{id}', '''eu''', spec => '1'); INSERT INTO apps VALUES ('dev', 1)`)
	p := w.Start(servertest.Named("eu", eu))
	eu.Eventually(t, map[string]string{"app/dev": "1"})
	p.Stop(t)
	w.DB.Exec(t, `DROP TYPE env CASCADE`)
	w.Start(servertest.Named("eu", eu))
	w.DB.Exec(t, `INSERT INTO other VALUES (1)`)
	eu.Eventually(t, map[string]string{"app/dev": "1", "other/1": "1"})
	w.Eventually("the sync says what is broken", func() bool {
		return len(w.Lines(`SELECT error FROM reconciler.syncs WHERE error LIKE 'the definition of a resource is broken: see SELECT * FROM reconciler.doctor(); (relation "reconciler.desired_app" does not exist)%'`)) > 0
	})
	require.Contains(t, strings.Join(w.Lines(`SELECT finding FROM reconciler.doctor() WHERE NOT ok`), "\n"), `resource app: key column env of public.apps is gone or was renamed`)
}

// Whoever the capture code belongs to, and whatever that role may not: no write fails, and what is not captured is found by syncs.
func TestF28_ReassignedCaptureFailsNoWrite(t *testing.T) {
	t.Parallel()
	w, eu := servertest.New(t), servertest.NewPlace()
	ann, ben := w.DB.Role(t, "ann", ""), w.DB.Role(t, "ben", "")
	w.DB.Exec(t, fmt.Sprintf(`SELECT reconciler.grant('%[1]s', 'definer'); CREATE TABLE apps (id int PRIMARY KEY, n int); CREATE TABLE bases (id int PRIMARY KEY); CREATE VIEW v AS SELECT id FROM bases;
		GRANT SELECT, TRIGGER ON apps, bases, v TO %[1]s, %[2]s; INSERT INTO apps VALUES (1, 0)`, ann, ben))
	_, err := w.DB.ConnAs(t, ann).Exec(t.Context(), `SELECT reconciler.track('app', 'apps', '{id}', '''eu''', spec => 'to_jsonb(n)'), reconciler.track('base', 'v', '{id}', '''eu''', spec => '1', depends_on => '{"bases": {"id": "id"}}')`)
	require.NoError(t, err)
	w.Start(servertest.Named("eu", eu))
	w.Wait()
	for _, rights := range []string{``, `GRANT USAGE ON SCHEMA reconciler TO %s`, `SELECT reconciler.grant('%s', 'viewer')`} {
		if rights != "" {
			w.DB.Exec(t, fmt.Sprintf(rights, ben))
		}
		w.DB.Exec(t, fmt.Sprintf(`REASSIGN OWNED BY %s TO %s`, ann, ben))
		w.DB.Exec(t, `UPDATE apps SET n = n + 1; INSERT INTO bases VALUES (1); DELETE FROM bases; TRUNCATE bases`)
		w.DB.Exec(t, fmt.Sprintf(`REASSIGN OWNED BY %s TO %s`, ben, ann))
	}
	w.DB.Exec(t, fmt.Sprintf(`REASSIGN OWNED BY %s TO %s`, ann, ben))
	require.Contains(t, w.Lines(`SELECT finding FROM reconciler.doctor() WHERE check_name = 'capture'`),
		`resource app: nothing of it is captured: its triggers run as `+ben+`, which may not write the outbox; a sync every half minute finds what changes`)
	w.DB.Exec(t, `UPDATE apps SET n = 10; INSERT INTO bases VALUES (2)`)
	eu.Eventually(t, map[string]string{"app/1": "10", "base/2": "1"})
	w.DB.Exec(t, `UPDATE apps SET n = 11`)
	w.DB.Exec(t, fmt.Sprintf(`SELECT reconciler.grant('%s', 'definer')`, ben))
	eu.Eventually(t, map[string]string{"app/1": "11", "base/2": "1"})
	require.Empty(t, w.Lines(`SELECT finding FROM reconciler.doctor() WHERE check_name = 'capture' AND NOT ok`))
	w.DB.Exec(t, `UPDATE apps SET n = 12`)
	eu.Eventually(t, map[string]string{"app/1": "12", "base/2": "1"})
}

// hostile are settings that change what is read, promised or done, where nobody pins them.
const hostile = `TimeZone = 'Asia/Tokyo'; DateStyle = German, DMY; IntervalStyle = 'sql_standard'; extra_float_digits = -10; bytea_output = 'escape'; row_security = on;
	default_transaction_isolation = 'serializable'; default_transaction_read_only = on; default_transaction_deferrable = on; synchronous_commit = off; statement_timeout = '1ms'; lock_timeout = '1ms';
	idle_in_transaction_session_timeout = '1ms'; standard_conforming_strings = off; backslash_quote = on; escape_string_warning = off; transform_null_equals = on; xmlbinary = 'hex'; xmloption = 'document';
	quote_all_identifiers = on; jit = on; jit_above_cost = 0; plan_cache_mode = 'force_generic_plan'; force_parallel_mode = on; enable_indexscan = off; enable_nestloop = off; enable_sort = off;
	search_path = evil, pg_temp; check_function_bodies = off; client_min_messages = 'error'; array_nulls = off; lc_monetary = 'POSIX'; default_text_search_config = 'simple'; timezone_abbreviations = 'India';
	idle_session_timeout = '2s'; vacuum_cost_delay = 100; work_mem = '64kB'; from_collapse_limit = 1; join_collapse_limit = 1; geqo_threshold = 2; default_statistics_target = 1; gin_fuzzy_search_limit = 1`

// The role of the process has every setting turned the wrong way. What it reads, applies and deletes is what it would be
// without. Through a pooler, which keeps none of ours, likewise, with what can be pinned there.
func TestHostileSettings(t *testing.T) {
	t.Parallel()
	for name, pooled := range map[string]bool{"Direct": false, "Pooled": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, eu := servertest.New(t), servertest.NewPlace()
			w.DB.Exec(t, `CREATE TABLE apps (id int PRIMARY KEY, starts timestamptz, ends date, span interval, raw bytea, f float8, price money, note text); CREATE TABLE bases (at timestamp PRIMARY KEY, note text);
				CREATE VIEW v AS SELECT at, note FROM bases;
				SELECT reconciler.track('app', 'apps', '{id}', '''eu''', 'starts::date <= ends AND (note = ''x'') IS NOT TRUE'), reconciler.track('v', 'v', '{at}', '''eu''', depends_on => '{"bases": {"at": "at"}}')`)
			role := w.DB.Role(t, "hostile", "SUPERUSER")
			work := w.DB.URL
			for setting := range strings.SplitSeq(hostile, ";") {
				setting = strings.TrimSpace(setting)
				if w.DB.Version >= 16 {
					setting = strings.Replace(setting, "force_parallel_mode", "debug_parallel_query", 1) // its name since
				}
				w.DB.Exec(t, fmt.Sprintf(`ALTER ROLE %s IN DATABASE %s SET %s`, role, w.DB.Name, setting))
				if pooled && slices.ContainsFunc([]string{"TimeZone", "DateStyle", "IntervalStyle", "extra_", "bytea", "row_", "xmlbinary", "quote_", "plan_", "lc_", "synchronous", "jit =", "transform", "array_"},
					func(prefix string) bool { return strings.HasPrefix(setting, prefix) }) {
					w.DB.Exec(t, fmt.Sprintf(`ALTER DATABASE %s SET %s`, w.DB.Name, setting)) // the pooler's own role is another
				}
			}
			if pooled {
				work = w.DB.Pooler(t, "").URL
			}
			w.StartWith(func(cfg *config.Config) {
				cfg.DirectURL, cfg.DatabaseURL = config.NewURL(w.DB.URLFor(role)), config.NewURL(w.DB.URLFor(role))
				if pooled {
					cfg.DatabaseURL = config.NewURL(work)
				}
			}, servertest.Named("eu", eu))
			w.DB.Exec(t, `SET LOCAL TimeZone = 'UTC'; SET LOCAL DateStyle = 'ISO'; INSERT INTO bases VALUES ('2026-02-01 10:00', 'a'), ('2026-02-02 10:00', 'b');
				INSERT INTO apps VALUES (1, '2026-01-01 20:00+00', '2026-01-01', '1 day 02:03:04', '\xff', 0.1::float8 + 0.2, 1, NULL), (2, '2026-01-03 00:00+00', '2026-01-01', NULL, NULL, NULL, NULL, NULL), (3, '2026-01-01 00:00+00', '2026-01-02', NULL, NULL, NULL, NULL, NULL)`)
			one := `{"f": 0.30000000000000004, "id": 1, "raw": "\\xff", "ends": "2026-01-01", "note": %s, "span": "P1DT2H3M4S", "price": "$1.00", "starts": "2026-01-01T20:00:00+00:00"}`
			three := `{"f": null, "id": 3, "raw": null, "ends": "2026-01-02", "note": null, "span": null, "price": null, "starts": "2026-01-01T00:00:00+00:00"}`
			base := func(at, note string) string {
				return fmt.Sprintf(`{"at": "2026-02-%sT10:00:00", "note": "%s"}`, at, note)
			}
			eu.Eventually(t, map[string]string{"app/1": fmt.Sprintf(one, "null"), "app/3": three, "v/2026-02-01T10:00:00": base("01", "a"), "v/2026-02-02T10:00:00": base("02", "b")})
			w.DB.Exec(t, `UPDATE apps SET note = 'y' WHERE id = 1; DELETE FROM apps WHERE id = 3; UPDATE bases SET note = 'c'`)
			w.DB.Exec(t, `DELETE FROM bases WHERE note = 'c' AND extract(day FROM at) = 2`)
			eu.Eventually(t, map[string]string{"app/1": fmt.Sprintf(one, `"y"`), "v/2026-02-01T10:00:00": base("01", "c")})
			w.DB.Exec(t, `SELECT reconciler.resync('eu')`)
			w.Wait()
			eu.Eventually(t, map[string]string{"app/1": fmt.Sprintf(one, `"y"`), "v/2026-02-01T10:00:00": base("01", "c")})
		})
	}
}
