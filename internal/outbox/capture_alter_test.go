package outbox_test

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// definition is how a table named apps is tracked.
type definition struct {
	name, relation, key, target, running, spec, ignore, dependsOn string
}

func (d definition) track(resource string) string {
	return fmt.Sprintf(`SELECT reconciler.track('%s', '%s', '%s', '%s', '%s', %s, '%s', %s)`,
		resource, d.relation, d.key, d.target, d.running, cmp.Or(d.spec, "NULL"), cmp.Or(d.ignore, "{}"), cmp.Or(d.dependsOn, "NULL"))
}

var definitions = []definition{
	{name: "whole", relation: "apps", key: "{id}", target: "region", running: "on_"},
	{name: "lean", relation: "apps", key: "{id}", target: "region", running: "on_", spec: `'jsonb_build_object(''image'', image)'`},
	{name: "quiet", relation: "apps", key: "{id}", target: "region", running: "on_", ignore: "{seen}"},
	{name: "joined", relation: "fleet", key: "{id}", target: "region", running: "on_", dependsOn: `'{"apps": {"id": "id"}, "other": {"id": "seen"}}'`},
}

const (
	appsColumns = `id int CONSTRAINT apps_pkey PRIMARY KEY, region text NOT NULL, on_ boolean NOT NULL DEFAULT true, image text, note text DEFAULT 'n' CONSTRAINT apps_note CHECK (note <> ''),
		seen int, code text NOT NULL`
	appsTable = `CREATE TABLE apps (` + appsColumns + `, CONSTRAINT apps_code UNIQUE (code))`
	appsView  = `CREATE VIEW fleet AS SELECT a.id, a.region, a.on_, a.image, a.seen, o.name FROM apps a LEFT JOIN other o ON o.id = a.seen`
)

// shapes are what apps may be, and the definitions that it is tracked with then. late happens when it is tracked already.
var shapes = []struct{ name, create, late, tracked string }{
	{"plain", appsTable, "", "quiet whole lean joined"},
	{"partitioned", `CREATE TABLE apps (` + appsColumns + `, CONSTRAINT apps_code UNIQUE (code, id)) PARTITION BY RANGE (id);
		CREATE TABLE apps_1 PARTITION OF apps FOR VALUES FROM (0) TO (100); CREATE TABLE apps_2 PARTITION OF apps FOR VALUES FROM (100) TO (200)`, "", "quiet"},
	{"child", `CREATE TABLE base (id int, region text, note text DEFAULT 'n'); ` + appsTable + ` INHERITS (base)`, "", "whole"},
	{"parent", appsTable, `CREATE TABLE apps_kid () INHERITS (apps)`, "lean"},
}

// alteration is what a user does to apps.
type alteration struct {
	name, sql string
	needs     func(*definition) // what must change in a definition that names the column
	disables  bool              // capture misses changes until it is mended; a sync finds them
}

func noTarget(d *definition)  { d.target = `''eu''` }
func noRunning(d *definition) { d.running = "true" }
func noKey(d *definition)     { d.key = "{code}" }
func newImage(d *definition) {
	if d.spec != "" {
		d.spec = `'jsonb_build_object(''code'', code)'`
	}
}

// columnAlterations are tried with every definition.
var columnAlterations = []alteration{
	{name: "AddColumn", sql: `ALTER TABLE apps ADD COLUMN added text`},
	{name: "AddColumnConstant", sql: `ALTER TABLE apps ADD COLUMN added text NOT NULL DEFAULT 'x'`},
	{name: "AddColumnNow", sql: `ALTER TABLE apps ADD COLUMN added timestamptz NOT NULL DEFAULT now()`},
	{name: "AddColumnVolatile", sql: `ALTER TABLE apps ADD COLUMN added_uuid uuid NOT NULL DEFAULT gen_random_uuid()`},
	{name: "AddColumnGenerated", sql: `ALTER TABLE apps ADD COLUMN added int GENERATED ALWAYS AS (id + 1) STORED`},
	{name: "AddColumnIdentity", sql: `ALTER TABLE apps ADD COLUMN added int GENERATED ALWAYS AS IDENTITY`},
	{name: "AddColumnSerial", sql: `ALTER TABLE apps ADD COLUMN added bigserial`},
	{name: "AddColumnDomain", sql: `CREATE DOMAIN positive AS int CHECK (VALUE > 0); ALTER TABLE apps ADD COLUMN added positive DEFAULT 1`},
	{name: "DropUnused", sql: `ALTER TABLE apps DROP COLUMN note`},
	{name: "DropIgnored", sql: `ALTER TABLE apps DROP COLUMN seen`, needs: func(d *definition) { d.ignore = "" }},
	{name: "DropSpec", sql: `ALTER TABLE apps DROP COLUMN image`, needs: newImage},
	{name: "DropTarget", sql: `ALTER TABLE apps DROP COLUMN region`, needs: noTarget},
	{name: "DropRunning", sql: `ALTER TABLE apps DROP COLUMN on_`, needs: noRunning},
	{name: "DropKey", sql: `ALTER TABLE apps DROP COLUMN id`, needs: noKey},
	{name: "DropUnusedCascade", sql: `ALTER TABLE apps DROP COLUMN note CASCADE`, disables: true},
	{name: "DropSpecCascade", sql: `ALTER TABLE apps DROP COLUMN image CASCADE`, needs: newImage, disables: true},
	{name: "DropTargetCascade", sql: `ALTER TABLE apps DROP COLUMN region CASCADE`, needs: noTarget, disables: true},
	{name: "DropRunningCascade", sql: `ALTER TABLE apps DROP COLUMN on_ CASCADE`, needs: noRunning, disables: true},
	{name: "DropKeyCascade", sql: `ALTER TABLE apps DROP COLUMN id CASCADE`, needs: noKey, disables: true},
	{name: "RetypeUnused", sql: `ALTER TABLE apps ALTER COLUMN note TYPE varchar(20)`},
	{name: "RetypeUnusedUsing", sql: `ALTER TABLE apps ALTER COLUMN note DROP DEFAULT, DROP CONSTRAINT apps_note, ALTER COLUMN note TYPE int USING length(note)`},
	{name: "RetypeIgnored", sql: `ALTER TABLE apps ALTER COLUMN seen TYPE bigint`},
	{name: "RetypeSpec", sql: `ALTER TABLE apps ALTER COLUMN image TYPE varchar(100)`},
	{name: "RetypeTarget", sql: `ALTER TABLE apps ALTER COLUMN region TYPE varchar(100)`},
	{name: "RetypeRunning", sql: `ALTER TABLE apps ALTER COLUMN on_ DROP DEFAULT, ALTER COLUMN on_ TYPE int USING on_::int`, needs: func(d *definition) { d.running = "on_ = 1" }},
	{name: "RetypeKey", sql: `ALTER TABLE apps ALTER COLUMN id TYPE bigint`},
	{name: "RenameUnused", sql: `ALTER TABLE apps RENAME COLUMN note TO remark`},
	{name: "RenameIgnored", sql: `ALTER TABLE apps RENAME COLUMN seen TO noticed`},
	{name: "RenameSpec", sql: `ALTER TABLE apps RENAME COLUMN image TO picture`},
	{name: "RenameTarget", sql: `ALTER TABLE apps RENAME COLUMN region TO place`},
	{name: "RenameRunning", sql: `ALTER TABLE apps RENAME COLUMN on_ TO running`},
	{name: "RenameKey", sql: `ALTER TABLE apps RENAME COLUMN id TO number`},
	{name: "SwapUnused", sql: `ALTER TABLE apps RENAME COLUMN note TO x; ALTER TABLE apps RENAME COLUMN code TO note; ALTER TABLE apps RENAME COLUMN x TO code`},
	{name: "SwapTarget", sql: `ALTER TABLE apps RENAME COLUMN region TO x; ALTER TABLE apps RENAME COLUMN code TO region; ALTER TABLE apps RENAME COLUMN x TO code`},
}

// tableAlterations are tried in every shape.
var tableAlterations = []alteration{
	{name: "SetNotNull", sql: `ALTER TABLE apps ALTER COLUMN image SET NOT NULL`},
	{name: "DropNotNull", sql: `ALTER TABLE apps ALTER COLUMN region DROP NOT NULL`},
	{name: "SetDefault", sql: `ALTER TABLE apps ALTER COLUMN image SET DEFAULT 'y'`},
	{name: "DropDefault", sql: `ALTER TABLE apps ALTER COLUMN note DROP DEFAULT`},
	{name: "DropExpression", sql: `ALTER TABLE apps ADD COLUMN added int GENERATED ALWAYS AS (id + 1) STORED; ALTER TABLE apps ALTER COLUMN added DROP EXPRESSION`},
	{name: "AddCheck", sql: `ALTER TABLE apps ADD CONSTRAINT c CHECK (image <> '')`},
	{name: "AddCheckNotValid", sql: `ALTER TABLE apps ADD CONSTRAINT c CHECK (image <> '') NOT VALID; ALTER TABLE apps VALIDATE CONSTRAINT c`},
	{name: "DropCheck", sql: `ALTER TABLE apps DROP CONSTRAINT apps_note`},
	{name: "RenameConstraint", sql: `ALTER TABLE apps RENAME CONSTRAINT apps_note TO n`},
	{name: "AddUnique", sql: `ALTER TABLE apps ADD CONSTRAINT u UNIQUE (id, image)`},
	{name: "DropUnique", sql: `ALTER TABLE apps DROP CONSTRAINT apps_code`},
	{name: "DropPrimaryKey", sql: `ALTER TABLE apps DROP CONSTRAINT apps_pkey`},
	{name: "ReplacePrimaryKey", sql: `ALTER TABLE apps DROP CONSTRAINT apps_pkey, ADD CONSTRAINT p PRIMARY KEY (id, region)`},
	{name: "AddExclude", sql: `ALTER TABLE apps ADD CONSTRAINT e EXCLUDE (code WITH =)`},
	{name: "AddForeignKey", sql: `ALTER TABLE apps ADD CONSTRAINT f FOREIGN KEY (seen) REFERENCES other`},
	{name: "DropForeignKey", sql: `ALTER TABLE apps ADD CONSTRAINT f FOREIGN KEY (seen) REFERENCES other; ALTER TABLE apps DROP CONSTRAINT f`},
	{name: "AddIdentity", sql: `ALTER TABLE apps ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY`},
	{name: "DropIdentity", sql: `ALTER TABLE apps ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY; ALTER TABLE apps ALTER COLUMN id DROP IDENTITY`},
	{name: "Inherit", sql: `CREATE TABLE mother (id int NOT NULL); ALTER TABLE apps INHERIT mother`},
	{name: "NoInherit", sql: `ALTER TABLE apps NO INHERIT base`},
	{name: "GetChild", sql: `CREATE TABLE kid (LIKE apps INCLUDING ALL); ALTER TABLE kid INHERIT apps`},
	{name: "LoseChild", sql: `ALTER TABLE apps_kid NO INHERIT apps`},
	{name: "Attach", sql: `CREATE TABLE apps_3 (LIKE apps INCLUDING ALL); ALTER TABLE apps ATTACH PARTITION apps_3 FOR VALUES FROM (200) TO (300)`},
	{name: "AttachInAnotherOrder", sql: `CREATE TABLE apps_3 (code text NOT NULL, seen int, note text CONSTRAINT apps_note CHECK (note <> ''), x int, image text, on_ boolean NOT NULL, region text NOT NULL, id int NOT NULL);
		ALTER TABLE apps_3 DROP COLUMN x; ALTER TABLE apps ATTACH PARTITION apps_3 FOR VALUES FROM (200) TO (300)`},
	{name: "CreatePartition", sql: `CREATE TABLE apps_3 PARTITION OF apps FOR VALUES FROM (200) TO (300)`},
	{name: "CreateDefaultPartition", sql: `CREATE TABLE apps_3 PARTITION OF apps DEFAULT`},
	{name: "Detach", sql: `ALTER TABLE apps DETACH PARTITION apps_2`},
	{name: "DropPartition", sql: `DROP TABLE apps_2`},
	{name: "BecomePartition", sql: `CREATE TABLE all_ (LIKE apps) PARTITION BY LIST (region); ALTER TABLE all_ ATTACH PARTITION apps FOR VALUES IN ('eu')`},
}

// storageAlterations are the same in every shape.
var storageAlterations = []alteration{
	{name: "SetUnlogged", sql: `ALTER TABLE apps SET UNLOGGED`},
	{name: "SetLogged", sql: `ALTER TABLE apps SET UNLOGGED; ALTER TABLE apps SET LOGGED`},
	{name: "SetSchema", sql: `ALTER TABLE apps SET SCHEMA public`},
	{name: "Rename", sql: `ALTER TABLE apps RENAME TO programs`},
	{name: "RenameAndReplace", sql: `ALTER TABLE apps RENAME TO programs; CREATE TABLE apps (LIKE programs)`},
	{name: "ReplicaIdentity", sql: `ALTER TABLE apps REPLICA IDENTITY FULL`},
	{name: "Cluster", sql: `ALTER TABLE apps CLUSTER ON apps_pkey; CLUSTER apps`},
	{name: "SetTablespace", sql: `ALTER TABLE apps SET TABLESPACE pg_default`},
	{name: "DisableTriggers", sql: `ALTER TABLE apps DISABLE TRIGGER USER`, disables: true},
	{name: "EnableTriggers", sql: `ALTER TABLE apps DISABLE TRIGGER ALL; ALTER TABLE apps ENABLE TRIGGER ALL`},
	{name: "Owner", sql: `ALTER TABLE apps OWNER TO pg_database_owner`},
	{name: "SetStorage", sql: `ALTER TABLE apps ALTER COLUMN image SET STORAGE EXTERNAL`},
	{name: "SetCompression", sql: `ALTER TABLE apps ALTER COLUMN image SET COMPRESSION pglz`},
	{name: "SetStatistics", sql: `ALTER TABLE apps ALTER COLUMN image SET STATISTICS 200`},
	{name: "SetColumnOption", sql: `ALTER TABLE apps ALTER COLUMN image SET (n_distinct = 5)`},
	{name: "SetOption", sql: `ALTER TABLE apps SET (fillfactor = 70)`},
	{name: "RowSecurity", sql: `ALTER TABLE apps ENABLE ROW LEVEL SECURITY`},
	{name: "OfType", sql: `CREATE TYPE shape AS (id int, region text, on_ boolean, image text, note text, seen int, code text); ALTER TABLE apps OF shape`},
	{name: "Several", sql: `ALTER TABLE apps ADD COLUMN added int DEFAULT 5, DROP CONSTRAINT apps_note, ALTER COLUMN image SET DEFAULT 'z'`},
	{name: "Reindex", sql: `CREATE INDEX ON apps (image); REINDEX TABLE apps`},
}

// alterFunctions make one round trip of what a case does.
const alterFunctions = `
-- attempt executes statements under a search path. '' is success, otherwise it is the error.
CREATE FUNCTION attempt(path text, statements text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    message text; detail text;
BEGIN
    PERFORM set_config('search_path', path, true);
    EXECUTE statements;
    PERFORM set_config('search_path', 'public', true);
    RETURN '';
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL;
    RETURN concat_ws(E'\n', message, nullif(detail, ''));
END
$$;

-- writes inserts, updates and deletes rows of a table, whatever its columns are called now. It returns an error or a count for each
-- statement, then the statements whose change reached no object of the resource.
CREATE FUNCTION writes(relation oid, resource text, OUT results text[], OUT missed text[]) LANGUAGE plpgsql AS $$
DECLARE
    number int; operation text; statement text; columns text; given text; key text; other text; seen bigint; result text; n int;
BEGIN
    missed := '{}';
    SELECT string_agg(quote_ident(attname), ', ' ORDER BY attname), string_agg(CASE
            WHEN attname IN ('id', 'number') THEN '%1$s' WHEN attname IN ('on_', 'running') THEN '''1''' WHEN attname IN ('seen', 'noticed') THEN '1'
            WHEN attname = 'code' THEN '''c%1$s''' WHEN attname IN ('region', 'place') THEN '''eu''' ELSE '''3''' END, ', ' ORDER BY attname),
        min(quote_ident(attname)) FILTER (WHERE attname IN ('id', 'number')), min(quote_ident(attname)) FILTER (WHERE attname IN ('image', 'picture'))
    INTO columns, given, key, other FROM pg_attribute WHERE attrelid = relation AND attnum > 0 AND NOT attisdropped AND attname !~ '^added';
    FOR number, operation IN SELECT * FROM unnest('{7,207}'::int[]) AS i, unnest('{insert,update,delete}'::text[]) LOOP
        statement := format(CASE operation WHEN 'insert' THEN format('INSERT INTO %s (%s) VALUES (%s)', relation::regclass, columns, given)
            WHEN 'update' THEN format('UPDATE %s SET %s = ''4'' WHERE %s = %%1$s', relation::regclass, coalesce(other, 'note'), coalesce(key, 'right(code, -1)::int'))
            ELSE format('DELETE FROM %s WHERE %s = %%1$s', relation::regclass, coalesce(key, 'right(code, -1)::int')) END, number);
        seen := (SELECT coalesce(max(o.seq), 0) FROM reconciler.outbox o);
        n := 0;
        BEGIN
            EXECUTE statement;
            GET DIAGNOSTICS n = ROW_COUNT;
            result := n;
        EXCEPTION WHEN OTHERS THEN
            result := SQLERRM;
        END;
        results := results || replace(result, '_twin', '');
        IF n > 0 AND NOT EXISTS (SELECT FROM reconciler.outbox o JOIN reconciler.resources r ON r.id = o.resource_id
                WHERE r.name = resource AND o.seq > seen AND coalesce(o.key, o.image ->> 'id', number::text) IN (number::text, 'c' || number)) THEN
            missed := missed || statement;
        END IF;
    END LOOP;
END
$$;

-- content is what a table has, without what differs by chance.
CREATE FUNCTION content(relation oid) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    found_ jsonb;
BEGIN
    EXECUTE format('SELECT jsonb_agg(to_jsonb(t) - ''added_uuid'' ORDER BY t::text) FROM %s AS t', relation::regclass) INTO found_;
    RETURN found_;
END
$$;

-- desired reads the rows of a resource as the daemon does.
CREATE FUNCTION desired(resource text) RETURNS text LANGUAGE sql AS $$
    SELECT attempt('pg_catalog', format('SELECT count(target || key || running || spec || protect) FROM reconciler.%I', 'desired_' || resource))
$$;

-- remedies are the statements that mend what is wrong with the capture of a resource.
CREATE FUNCTION remedies(resource text) RETURNS text[] LANGUAGE sql AS $$
    SELECT array_agg(DISTINCT p.remedy) FROM reconciler.capture_problems((SELECT r.id FROM reconciler.resources r WHERE r.name = resource)) AS p WHERE p.remedy LIKE 'SELECT %'
$$`

// C11, I8: what a user does to a tracked table has the same effect as on one that is not tracked, or PostgreSQL refuses it and names
// what stands in the way; then what the view's comment says allows it. Each write afterwards succeeds as on the other table, and
// its object is looked at.
func TestF188_AlteredTablesBehaveAsUntrackedOnesAndAreCaptured(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, alterFunctions)
	conn := db.Conn(t)
	exec := func(sql string) {
		_, err := conn.Exec(t.Context(), sql)
		require.NoError(t, err, sql)
	}
	for _, shape := range shapes {
		for n, name := range strings.Fields(shape.tracked) {
			d := definitions[slices.IndexFunc(definitions, func(d definition) bool { return d.name == name })]
			tried := columnAlterations
			if n == 0 {
				tried = slices.Concat(tried, tableAlterations)
			}
			if n == 0 && shape.name == "plain" {
				tried = slices.Concat(tried, storageAlterations)
			}
			resource := shape.name + "_" + d.name
			for _, schema := range []string{resource, resource + "_twin"} {
				exec(fmt.Sprintf(`CREATE SCHEMA %s; SET search_path = %[1]s; CREATE TABLE other (id int PRIMARY KEY, name text); INSERT INTO other VALUES (1, 'one'); %s; %s;
					INSERT INTO apps (id, region, image, seen, code) SELECT n, 'eu', n, 1, 'c' || n FROM unnest('{1,2,101}'::int[]) AS n`,
					schema, shape.create, map[bool]string{true: appsView}[d.relation == "fleet"]))
				if schema == resource {
					exec(d.track(resource))
				}
				exec(shape.late)
			}
			exec(`SET search_path = public`)
			for _, a := range tried {
				t.Run(shape.name+"/"+d.name+"/"+a.name, func(t *testing.T) {
					tx, err := conn.Begin(t.Context())
					require.NoError(t, err)
					defer func() { require.NoError(t, tx.Rollback(t.Context())) }()
					alterTwins(t, tx, resource, d, a)
				})
			}
			exec(fmt.Sprintf(`SELECT reconciler.untrack('%s'); DROP SCHEMA %[1]s, %[1]s_twin CASCADE`, resource))
		}
	}
}

// outcome is what an alteration and the writes after it came to.
type outcome struct {
	refused         string
	results, missed []string
	content         string
}

func alterTwins(t *testing.T, tx pgx.Tx, resource string, d definition, a alteration) {
	t.Helper()
	attempt := func(path, statements string) (failure string) {
		require.NoError(t, tx.QueryRow(t.Context(), `SELECT attempt($1, $2)`, path, statements).Scan(&failure))
		return failure
	}
	write := func(table uint32) (o outcome) {
		require.NoError(t, tx.QueryRow(t.Context(), `SELECT w.*, coalesce(content($1)::text, '') FROM writes($1, $2) AS w`, table, resource).Scan(&o.results, &o.missed, &o.content))
		return o
	}
	var own, twin uint32
	require.NoError(t, tx.QueryRow(t.Context(), `SELECT format('%s.apps', $1::text)::regclass::oid, format('%s_twin.apps', $1::text)::regclass::oid`, resource).Scan(&own, &twin))

	untracked := func() (o outcome) {
		nested, err := tx.Begin(t.Context())
		require.NoError(t, err)
		refused := attempt(resource+"_twin, pg_catalog", a.sql)
		if refused == "" {
			o = write(twin)
		}
		o.refused = refused
		require.NoError(t, nested.Rollback(t.Context()))
		return o
	}()
	refused := attempt(resource+", pg_catalog", a.sql)
	if untracked.refused != "" {
		require.NotEmpty(t, refused)
		return
	}
	// The comment of the view: drop what the error names, alter the table, and track it again, in one transaction.
	drop := ""
	for known := refused; refused != ""; known = refused {
		require.Regexp(t, `view reconciler\.desired_`+resource+` |trigger reconciler_capture_\d+_update on table apps `, refused)
		for _, named := range regexp.MustCompile(`(?m)(view reconciler\.desired_\w+|trigger reconciler_capture_\w+ on) (?:depends|table apps)`).FindAllStringSubmatch(refused, -1) {
			drop += "DROP " + named[1] + map[bool]string{true: " apps"}[strings.HasPrefix(named[1], "trigger")] + "; "
		}
		refused = attempt(resource+", pg_catalog", drop+a.sql)
		require.NotEqual(t, known, refused)
	}
	var gone bool // and with it the resource's own view
	require.NoError(t, tx.QueryRow(t.Context(), `SELECT NOT EXISTS (SELECT FROM pg_class c JOIN reconciler.resources r ON r.relation = c.oid WHERE r.name = $1)`, resource).Scan(&gone))
	if drop == "" {
		tracked := write(own)
		require.Equal(t, untracked.results, tracked.results)
		require.Equal(t, untracked.content, tracked.content)
		require.True(t, a.disables || len(tracked.missed) == 0, "nothing has captured %v", tracked.missed)
	}
	remedies := remediesOf(t, tx, resource)
	for _, remedy := range remedies {
		require.Empty(t, attempt("pg_catalog", remedy), remedy)
	}
	if a.needs != nil {
		a.needs(&d)
	}
	switch {
	case drop != "" || a.needs != nil && a.disables && !gone:
		if failure := attempt(resource+", pg_catalog", d.track(resource)); failure != "" {
			require.Contains(t, resource, "parent")
			require.Equal(t, resource+".apps has child tables (INHERITS), and triggers on it do not see changes in those", failure)
			return
		}
	case remedies == nil:
		return
	}
	require.Empty(t, remediesOf(t, tx, resource))
	mended := write(own)
	require.Equal(t, untracked.results, mended.results)
	require.Equal(t, untracked.content, mended.content)
	if !gone {
		require.Empty(t, mended.missed)
		var failure string
		require.NoError(t, tx.QueryRow(t.Context(), `SELECT desired($1)`, resource).Scan(&failure))
		require.Empty(t, failure)
	}
}

func remediesOf(t *testing.T, tx pgx.Tx, resource string) (remedies []string) {
	t.Helper()
	require.NoError(t, tx.QueryRow(t.Context(), `SELECT remedies($1)`, resource).Scan(&remedies))
	return remedies
}

// The comment of a desired view holds for a role that is no superuser.
func TestF188_CommentOfADesiredViewAllowsAnOwnerToRetypeAColumn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	owner := w.Role(t, "owner", "")
	w.Exec(t, fmt.Sprintf(`SELECT reconciler.grant('%[1]s', 'definer'); GRANT CREATE ON SCHEMA public TO %[1]s`, owner))
	conn := w.ConnAs(t, owner)
	exec := func(sql string) {
		t.Helper()
		_, err := conn.Exec(t.Context(), sql)
		require.NoError(t, err, sql)
	}
	track := `SELECT reconciler.track('app', 'apps', '{id}', 'region', ignore => '{seen}')`
	exec(`CREATE TABLE apps (id int PRIMARY KEY, region text, note text, seen int); ` + track)
	comment := w.lines(t, `SELECT obj_description('reconciler.desired_app'::regclass)`)[0]
	const recipe = `DROP VIEW reconciler.desired_app; ALTER TABLE ...; SELECT reconciler.track('app', ...);`
	require.Equal(t, `What the rows of resource app ask for. Generated, with triggers named reconciler_capture_1... To drop or retype a column that it reads, in one transaction: `+recipe+
		` If the error names such a trigger, drop that first as well.`, comment)

	alter := `ALTER TABLE apps ALTER COLUMN id TYPE bigint`
	refused(t, conn, alter, `cannot alter type of a column used by a view or rule`, "")
	w.marks(t)
	exec(strings.NewReplacer("ALTER TABLE ...", `DROP TRIGGER reconciler_capture_1_update ON apps; `+alter, `SELECT reconciler.track('app', ...)`, track).Replace(recipe))
	require.Equal(t, []string{`app everywhere whole`}, w.marks(t))
	require.Empty(t, w.problems(t))
	exec(`INSERT INTO apps VALUES (5000000000, 'eu')`)
	exec(`UPDATE apps SET note = 'n'; UPDATE apps SET seen = 1`)
	require.Equal(t, []string{`app "eu" "5000000000"`, `app "eu" "5000000000"`}, w.marks(t))
}
