package outbox_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

const appColumns = `id, region, on_, n, j, f, t, maybe, "Odd Name"`

// C13, C68: every wrong argument is refused in one sentence, and nothing is left behind.
func TestTrackRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TABLE apps (id int PRIMARY KEY, region text, on_ boolean, n int NOT NULL, j jsonb NOT NULL, f float8 NOT NULL, t timestamptz, maybe int UNIQUE, "Odd Name" int NOT NULL);
		CREATE VIEW v AS SELECT id, region, n FROM apps; CREATE VIEW twice AS SELECT 1 AS id FROM generate_series(1, 2); CREATE SEQUENCE s; CREATE INDEX an_index ON apps (n); CREATE TYPE pair AS (a int);
		CREATE TABLE parent (id int PRIMARY KEY); CREATE TABLE child () INHERITS (parent); CREATE UNIQUE INDEX ON apps (n) WHERE n > 0;
		CREATE FUNCTION roll() RETURNS int LANGUAGE plpgsql AS $$ BEGIN RETURN 1; END $$`)
	over := `It is an SQL expression over one row of public.apps; its columns are ` + appColumns + `.`
	columns := `Its columns are ` + appColumns + `.`
	name := ` is not usable: letters, digits, "_", "." and "-", starting with a letter or "_", without "..", at most 48`
	keyTypes := `Use integers, numeric, uuid, text, enums, booleans, dates, timestamps or network addresses as key.`
	cases := []struct{ arguments, message, hint string }{
		{`NULL, 'apps', '{id}', 'region'`, `resource name NULL` + name, ""},
		{`'', 'apps', '{id}', 'region'`, `resource name ''` + name, ""},
		{`'../../etc/passwd', 'apps', '{id}', 'region'`, `resource name '../../etc/passwd'` + name, ""},
		{`'a..b', 'apps', '{id}', 'region'`, `resource name 'a..b'` + name, ""},
		{`'''; DROP TABLE apps; --', 'apps', '{id}', 'region'`, `resource name '''; DROP TABLE apps; --'` + name, ""},
		{`'-rf', 'apps', '{id}', 'region'`, `resource name '-rf'` + name, ""},
		{`repeat('a', 49), 'apps', '{id}', 'region'`, `resource name 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'` + name, ""},
		{`E'a\n', 'apps', '{id}', 'region'`, "resource name 'a\n'" + name, ""},

		{`'app', 'nothing', '{id}', 'region'`, `relation "nothing" does not exist`, ""},
		{`'app', NULL, '{id}', 'region'`, `relation is NULL: name the table or view that resource app is made from`, ""},
		{`'app', 4294967295, '{id}', 'region'`, `relation with oid 4294967295 does not exist`, ""},
		{`'app', 's', '{id}', 'region'`, `public.s is not a table or view`, ""},
		{`'app', 'an_index', '{id}', 'region'`, `public.an_index is not a table or view`, ""},
		{`'app', 'pair', '{a}', '''eu'''`, `public.pair is not a table or view`, ""},
		{`'app', 'pg_class', '{oid}', 'relname'`, `pg_class belongs to PostgreSQL itself, which fires no triggers on it`, ""},
		{`'app', 'information_schema.tables', '{table_name}', 'table_schema'`, `information_schema.tables belongs to PostgreSQL itself, which fires no triggers on it`, ""},
		{`'app', 'reconciler.outbox', '{seq}', 'target'`, `reconciler.outbox belongs to reconciler itself: each of its changes would make another`, `Of its tables only reconciler.apply_events can be tracked.`},
		{`'app', 'reconciler.ledger', '{key}', '''eu'''`, `reconciler.ledger belongs to reconciler itself: each of its changes would make another`, `Of its tables only reconciler.apply_events can be tracked.`},
		{`'app', 'parent', '{id}', '''eu'''`, `public.parent has child tables (INHERITS), and triggers on it do not see changes in those`, `Track the children one by one, or a view over all of them with each child in depends_on.`},

		{`'app', 'apps', NULL, 'region'`, `key must name 1 to 8 columns of public.apps`, columns},
		{`'app', 'apps', '{}', 'region'`, `key must name 1 to 8 columns of public.apps`, columns},
		{`'app', 'apps', '{{id,n}}', 'region'`, `key must name 1 to 8 columns of public.apps`, columns},
		{`'app', 'apps', '{id,id,id,id,id,id,id,id,id}', 'region'`, `key must name 1 to 8 columns of public.apps`, columns},
		{`'app', 'apps', '{name}', 'region'`, `key: public.apps has no column name`, columns},
		{`'app', 'apps', '{ID}', 'region'`, `key: public.apps has no column "ID"`, columns},
		{`'app', 'apps', '{NULL}', 'region'`, `key: public.apps has no column NULL`, columns},
		{`'app', 'apps', '{ctid}', 'region'`, `key: public.apps has no column ctid`, columns},
		{`'app', 'apps', '{id,id}', 'region'`, `key: column id is named twice`, ""},
		{`'app', 'apps', '{maybe}', 'region'`, `key: column maybe of public.apps may be null`, `ALTER TABLE public.apps ALTER COLUMN maybe SET NOT NULL;`},
		{`'app', 'apps', '{j}', 'region'`, `key: column j has type jsonb, which cannot be a key`, keyTypes},
		{`'app', 'apps', '{f}', 'region'`, `key: column f has type double precision, which cannot be a key`, keyTypes},
		{`'app', 'apps', '{n}', 'region'`, `key: (n) is not unique in public.apps`, `Name the columns of its primary key, or: CREATE UNIQUE INDEX CONCURRENTLY ON public.apps (n);`},
		{`'app', 'apps', '{"Odd Name",n}', 'region'`, `key: (Odd Name, n) is not unique in public.apps`, `Name the columns of its primary key, or: CREATE UNIQUE INDEX CONCURRENTLY ON public.apps ("Odd Name", n);`},
		{`'app', 'twice', '{id}', '''eu''', depends_on => '{}'`, `key: (id) is not unique in public.twice`, ""},

		{`'app', 'apps', '{id}', NULL`, `target is empty: give an SQL expression over a row of public.apps`, ""},
		{`'app', 'apps', '{id}', '  '`, `target is empty: give an SQL expression over a row of public.apps`, ""},
		{`'app', 'apps', '{id}', 'regio'`, `target does not work on public.apps: column "regio" does not exist`, over},
		{`'app', 'apps', '{id}', 'eu-west'`, `target does not work on public.apps: column "eu" does not exist`, over},
		{`'app', 'apps', '{id}', 'region ||'`, `target does not work on public.apps: syntax error at or near ")"`, over},
		{`'app', 'apps', '{id}', 'region; DROP TABLE apps'`, `target does not work on public.apps: syntax error at or near ";"`, over},
		{`'app', 'apps', '{id}', 'region, id'`, `target does not work on public.apps: it must be one expression, not several`, over},
		{`'app', 'apps', '{id}', 'region) AS a, (id'`, `target must be one expression, not several: region) AS a, (id`, ""},
		{`'app', 'apps', '{id}', 'region) AS a FROM apps UNION SELECT (region'`, `target must be one expression, not several: region) AS a FROM apps UNION SELECT (region`, ""},
		{`'app', 'apps', '{id}', 'j'`, `target must be text (the name of a target), not jsonb: j`, ""},
		{`'app', 'apps', '{id}', 'apps'`, `target must be text (the name of a target), not public.apps: apps`, ""},
		{`'app', 'apps', '{id}', 'max(region)'`, `target must give one value for one row: aggregates, window functions and set-returning functions cannot be used in it: max(region)`, ""},
		{`'app', 'apps', '{id}', 'first_value(region) OVER ()'`, `target must give one value for one row: aggregates, window functions and set-returning functions cannot be used in it: first_value(region) OVER ()`, ""},
		{`'app', 'apps', '{id}', 'unnest(ARRAY[region])'`, `target must give one value for one row: aggregates, window functions and set-returning functions cannot be used in it: unnest(ARRAY[region])`, ""},
		{`'app', 'apps', '{id}', '(SELECT region FROM apps)', 'random() > 0.5'`, `running uses random (volatile): it must give the same value for the same row: random() > 0.5`, ""},
		{`'app', 'apps', '{id}', 'region', 'roll() > 0 OR nextval(''s'') > 0'`, `running uses nextval, roll (volatile): it must give the same value for the same row: roll() > 0 OR nextval('s') > 0`, ""},
		{`'app', 'apps', '{id}', 'region', '(SELECT random() > 0)'`, `running uses random (volatile): it must give the same value for the same row: (SELECT random() > 0)`, ""},
		{`'app', 'apps', '{id}', 'current_user'`, `target uses current_user, which differs between the sessions of writers and of the reconciler: current_user`, ""},
		{`'app', 'apps', '{id}', 'current_setting(''app.region'') || session_user'`, `target uses current_setting, session_user, which differs between the sessions of writers and of the reconciler: current_setting('app.region') || session_user`, ""},
		{`'app', 'apps', '{id}', 'region', NULL`, `running is empty: give an SQL expression over a row of public.apps`, ""},
		{`'app', 'apps', '{id}', 'region', 'id'`, `running must be boolean, not integer: id`, ""},
		{`'app', 'apps', '{id}', 'region', '''yes'''`, `running must be boolean, not text: 'yes'`, ""},
		{`'app', 'apps', '{id}', 'region', 'on_ = 1'`, `running does not work on public.apps: operator does not exist: boolean = integer`, over},
		{`'app', 'apps', '{id}', 'region', spec => ''`, `spec is empty: give an SQL expression over a row of public.apps`, ""},
		{`'app', 'apps', '{id}', 'region', spec => 'to_json(x)'`, `spec does not work on public.apps: column "x" does not exist`, over},
		{`'app', 'apps', '{id}', 'region', spec => 'jsonb_agg(id)'`, `spec must give one value for one row: aggregates, window functions and set-returning functions cannot be used in it: jsonb_agg(id)`, ""},

		{`'app', 'apps', '{id}', 'region', protect => ''`, `protect is empty: give an SQL expression over a row of public.apps`, ""},
		{`'app', 'apps', '{id}', 'region', protect => 'id'`, `protect must be boolean, not integer: id`, ""},
		{`'app', 'apps', '{id}', 'region', protect => 'keep'`, `protect does not work on public.apps: column "keep" does not exist`, over},
		{`'app', 'apps', '{id}', 'region', protect => 'bool_or(on_)'`, `protect must give one value for one row: aggregates, window functions and set-returning functions cannot be used in it: bool_or(on_)`, ""},
		{`'app', 'apps', '{id}', 'region', protect => '(SELECT random() > 0)'`, `protect uses random (volatile): it must give the same value for the same row: (SELECT random() > 0)`, ""},

		{`'app', 'apps', '{id}', 'region', ignore => '{seen}'`, `ignore: public.apps has no column seen`, columns},
		{`'app', 'apps', '{id}', 'region', ignore => '{NULL}'`, `ignore: public.apps has no column NULL`, columns},
		{`'app', 'apps', '{id}', 'region', ignore => '{n,id}'`, `ignore: column id is part of the key`, ""},

		{`'app', 'v', '{id}', 'region'`, `public.v is a view: say in depends_on which tables its rows come from`, `For example depends_on => '{"workspaces": {"id": "workspace_id"}}': when a row of workspaces changes, the rows of the view with that workspace_id are looked at. '{}' leaves everything to the sync.`},
	}
	for _, c := range cases {
		w.refused(t, `SELECT reconciler.track(`+c.arguments+`)`, c.message, c.hint)
	}
	w.refused(t, `CREATE TEMP TABLE mine (id int PRIMARY KEY); SELECT reconciler.track('app', 'mine', '{id}', '''eu''')`, `mine is temporary: it is gone, or another table, for every other session`, "")
	w.refused(t, `SELECT reconciler.set_notify(NULL)`, `enabled must be true or false, not NULL`, "")
	require.Empty(t, w.marks(t))
	require.Empty(t, w.lines(t, `SELECT name FROM reconciler.resources UNION SELECT tgname::text FROM pg_trigger WHERE tgname LIKE 'reconciler%'
		UNION SELECT relname::text FROM pg_class WHERE relname ~ '^(bind|desired)_' UNION SELECT proname::text FROM pg_proc WHERE proname ~ '^capture_[0-9]'`))
}

// C12, C13
func TestTrackRefusesDependencies(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TABLE bases (id bigint PRIMARY KEY, code text, f float8, at timestamptz, day date); CREATE TABLE "Odd" (id int PRIMARY KEY); CREATE VIEW v AS SELECT id::int AS id, code, f, at, day FROM bases;
		CREATE TABLE parent (id int PRIMARY KEY); CREATE TABLE child () INHERITS (parent)`)
	named := `Name it as in SQL, with its schema if that is not in the search path, and with double quotes if it has capitals or spaces.`
	form := ` is not of the form {"table": "workspaces", "match": {"id": "workspace_id"}}`
	links := `Use integers, numeric, uuid, text, enums, booleans, dates, timestamps without time zone or network addresses.`
	cases := []struct{ dependsOn, message, hint string }{
		{`"bases"`, `depends_on must be an object such as {"workspaces": {"id": "workspace_id"}}, not "bases"`, ""},
		{`null`, `depends_on must be an object such as {"workspaces": {"id": "workspace_id"}}, not null`, ""},
		{`{"bases": "id"}`, `depends_on: {"match": "id", "table": "bases"}` + form, ""},
		{`{"bases": {}}`, `depends_on: {"match": {}, "table": "bases"}` + form, ""},
		{`[{"table": "bases"}]`, `depends_on: {"table": "bases"}` + form, ""},
		{`[{"table": 5, "match": {"id": "id"}}]`, `depends_on: {"match": {"id": "id"}, "table": 5}` + form, ""},
		{`[{"table": "bases", "match": {"id": "id"}, "on": 1}]`, `depends_on: {"on": 1, "match": {"id": "id"}, "table": "bases"}` + form, ""},
		{`["bases"]`, `depends_on: "bases"` + form, ""},
		{`{"nothing": {"id": "id"}}`, `depends_on: table "nothing" does not exist`, named},
		{`{"Odd": {"id": "id"}}`, `depends_on: table "Odd" does not exist`, named},
		{`{"a b": {"id": "id"}}`, `depends_on: table "a b" does not exist`, named},
		{`{"a.b.c.d": {"id": "id"}}`, `depends_on: table "a.b.c.d" does not exist`, named},
		{`{"": {"id": "id"}}`, `depends_on: table "" does not exist`, named},
		{`{"v": {"id": "id"}}`, `depends_on: public.v is not a table: name the tables that its rows come from`, ""},
		{`{"pg_class": {"oid": "id"}}`, `pg_class belongs to PostgreSQL itself, which fires no triggers on it`, ""},
		{`{"reconciler.ledger": {"resource_id": "id"}}`, `reconciler.ledger belongs to reconciler itself: each of its changes would make another`, `Of its tables only reconciler.apply_events can be tracked.`},
		{`{"parent": {"id": "id"}}`, `public.parent has child tables (INHERITS), and triggers on it do not see changes in those`, `Track the children one by one, or a view over all of them with each child in depends_on.`},
		{`{"bases": {"name": "id"}}`, `depends_on: public.bases has no column name`, `Its columns are id, code, f, at, day.`},
		{`{"bases": {"id": "base_id"}}`, `depends_on: public.v has no column base_id`, `Its columns are id, code, f, at, day.`},
		{`{"bases": {"id": 5}}`, `depends_on: public.bases: 5 is not the name of a column`, ""},
		{`{"bases": {"id": "code"}}`, `depends_on: id of public.bases is bigint, but code of public.v is text: give them one type`, ""},
		{`{"bases": {"day": "code"}}`, `depends_on: day of public.bases is date, but code of public.v is text: give them one type`, ""},
		{`{"bases": {"f": "f"}}`, `depends_on: column f of public.bases has type double precision, whose values cannot link rows`, links},
		{`{"bases": {"at": "at"}}`, `depends_on: column at of public.bases has type timestamp with time zone, whose values cannot link rows`, links},
	}
	for _, c := range cases {
		w.refused(t, fmt.Sprintf(`SELECT reconciler.track('app', 'v', '{id}', 'code', depends_on => '%s')`, c.dependsOn), c.message, c.hint)
	}
	require.Equal(t, []string{"created"}, w.lines(t, `SELECT reconciler.track('app', 'v', '{id}', 'code', depends_on => '{"bases": {"id": "id", "code": "code", "day": "day"}, "\"Odd\"": {"id": "id"}, "public.bases": {"id": "id"}}')`))
}

// C13, C66
func TestTrackSaysWhichRightsAreMissing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TABLE apps (id int PRIMARY KEY, region text); CREATE TABLE bases (id int PRIMARY KEY); CREATE VIEW v AS SELECT id FROM bases; CREATE TABLE guarded (id int PRIMARY KEY, region text);
		ALTER TABLE guarded ENABLE ROW LEVEL SECURITY; CREATE POLICY eu ON guarded USING (region = 'eu')`)
	role := w.Role(t, "definer", "")
	conn := w.ConnAs(t, role)
	denied := func(arguments, message, hint string) {
		t.Helper()
		require.Equal(t, "42501", refused(t, conn, `SELECT reconciler.track(`+arguments+`)`, message, hint))
	}
	apps := `'app', 'apps', '{id}', 'region'`
	joined := `'v', 'v', '{id}', '''eu''', depends_on => '{"bases": {"id": "id"}}'`
	denied(apps, `permission denied for schema reconciler`, "")
	w.Exec(t, `GRANT USAGE ON SCHEMA reconciler TO `+role)
	denied(apps, `permission denied for function track`, "")
	w.Exec(t, `GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA reconciler TO `+role)
	denied(apps, `role `+role+` may not track: it needs to define resources in schema reconciler`, `As the owner of schema reconciler: SELECT reconciler.grant('`+role+`', 'definer');`)
	w.Exec(t, `SELECT reconciler.grant('`+role+`', 'definer')`)
	denied(apps, `role `+role+` may not track public.apps: it needs SELECT and TRIGGER on it`, `GRANT SELECT, TRIGGER ON public.apps TO `+role+`;`)
	w.Exec(t, `GRANT SELECT ON apps, guarded TO `+role)
	denied(apps, `role `+role+` may not track public.apps: it needs SELECT and TRIGGER on it`, `GRANT SELECT, TRIGGER ON public.apps TO `+role+`;`)
	w.Exec(t, `GRANT TRIGGER ON apps, guarded TO `+role)
	denied(apps+`, always => true`, `role `+role+` may not track public.apps with always => true: only its owner may enable a trigger ALWAYS`, "")
	denied(`'g', 'guarded', '{id}', 'region'`, `row security of public.guarded applies to role `+role+`: rows that it hides would be taken for deleted`, `Let the owner of the table call track(), or a role with BYPASSRLS.`)
	denied(joined, `role `+role+` may not track public.v: it needs SELECT on it`, `GRANT SELECT ON public.v TO `+role+`;`)
	w.Exec(t, `GRANT SELECT ON v TO `+role)
	guarded := `row security of public.guarded applies to role ` + role + `: rows that it hides would be taken for deleted`
	w.Exec(t, `CREATE VIEW below AS SELECT * FROM guarded; CREATE VIEW above AS SELECT * FROM below; ALTER VIEW below OWNER TO `+role+`; GRANT SELECT ON above TO `+role)
	denied(`'a', 'above', '{id}', 'region', depends_on => '{}'`, guarded, `Let the owner of the table call track(), or a role with BYPASSRLS.`)
	denied(`'a', 'v', '{id}', '''eu''', '(SELECT bool_or(true) FROM guarded)', depends_on => '{}'`, guarded, `Let the owner of the table call track(), or a role with BYPASSRLS.`)
	denied(joined, `role `+role+` may not track public.v: it needs TRIGGER on public.bases`, `GRANT TRIGGER ON public.bases TO `+role+`;`)
	w.Exec(t, `GRANT TRIGGER ON bases TO `+role)
	denied(joined+`, always => true`, `role `+role+` may not track public.v with always => true: only the owner of public.bases may enable a trigger ALWAYS`, "")
	refused(t, conn, `SELECT reconciler.set_notify(false)`, `role `+role+` may not switch NOTIFY`, `Only postgres, the owner of schema reconciler, may.`)

	// With these rights and no more it can do everything, twice, and undo it.
	require.Empty(t, w.marks(t))
	for _, statement := range []string{
		`SELECT reconciler.track(` + apps + `), reconciler.track(` + joined + `)`, `SELECT reconciler.track('app', 'apps', '{id}', 'lower(region)', ignore => '{region}')`, `SELECT reconciler.regenerate('app')`,
	} {
		_, err := conn.Exec(t.Context(), statement)
		require.NoError(t, err, statement)
	}
	w.marks(t)
	w.marked(t, `INSERT INTO apps VALUES (1, 'EU'); INSERT INTO bases VALUES (1)`, `app "eu" "1"`, `v {"id": 1}`)
	_, err := conn.Exec(t.Context(), `SELECT reconciler.untrack('app'), reconciler.untrack('v')`)
	require.NoError(t, err)
	w.marked(t, `INSERT INTO apps VALUES (2, 'EU'); INSERT INTO bases VALUES (2)`)

	// Without its role's rights the triggers capture nothing: that is said, with what mends it.
	_, err = conn.Exec(t.Context(), `SELECT reconciler.track(`+apps+`)`)
	require.NoError(t, err)
	require.Equal(t, "2BP01", refused(t, w.Pool, `SELECT reconciler.revoke('`+role+`', 'definer')`,
		"role "+role+" must stay definer: triggers of app run as it, and would capture nothing", `Nothing was taken. First untrack() them, and let another definer track() them.`))
	w.marked(t, `INSERT INTO apps VALUES (3, 'EU')`, `app everywhere whole`, `app "EU" "3"`)
	w.Exec(t, `REVOKE INSERT ON reconciler.outbox FROM `+role)
	require.Equal(t, []string{`app: nothing of it is captured: its triggers run as ` + role + `, which may not write the outbox; a sync every half minute finds what changes | SELECT reconciler.grant('` + role + `', 'definer'); | a person must`}, w.problems(t))
	w.Exec(t, `SELECT reconciler.grant('`+role+`', 'definer')`)
	require.Empty(t, w.problems(t))
	require.Equal(t, []string{`app everywhere whole`}, w.marks(t)) // a sync finds what was not captured

	// Row security that comes later keeps the rows from being read; it is reported.
	w.Exec(t, `ALTER TABLE apps ENABLE ROW LEVEL SECURITY`)
	require.Equal(t, []string{`app: row security of public.apps applies to ` + role + `, as which it is read: it cannot be read, and nothing of it is applied or deleted | ALTER ROLE ` + role + ` BYPASSRLS; or let the owner of the table call reconciler.track() | a person must`}, w.problems(t))
	w.Exec(t, `SELECT reconciler.untrack('app')`)
	w.Exec(t, `SELECT reconciler.revoke('`+role+`', 'definer')`)
}
