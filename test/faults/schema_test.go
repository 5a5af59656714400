package faults_test

import (
	"fmt"
	"strings"
)

// memory is the tester's own record of what was committed: its triggers fire also where the product's are switched off.
// Within a transaction rows are in order of seq; transactions are in the order of their commit timestamps.
const memory = `
CREATE SCHEMA test;
CREATE SEQUENCE test.versions;
CREATE SEQUENCE test.events;
CREATE FUNCTION test.spec(resource text, key text, state jsonb) RETURNS jsonb IMMUTABLE LANGUAGE sql AS 'SELECT state';
CREATE TABLE test.history (
    seq bigint NOT NULL DEFAULT nextval('test.events'), xid xid8 NOT NULL DEFAULT pg_current_xact_id(), tab text NOT NULL, old jsonb, new jsonb,
    silent boolean NOT NULL DEFAULT current_setting('session_replication_role') = 'replica'); -- the product is not told which object changed
CREATE FUNCTION test.remember() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'TRUNCATE' THEN
        EXECUTE format('INSERT INTO test.history (tab, old, silent) SELECT %L, to_jsonb(r), true FROM %s AS r', TG_ARGV[0], TG_RELID::regclass);
    ELSIF TG_OP = 'INSERT' THEN
        INSERT INTO test.history (tab, new) VALUES (TG_ARGV[0], to_jsonb(NEW));
    ELSIF TG_OP = 'DELETE' THEN
        INSERT INTO test.history (tab, old) VALUES (TG_ARGV[0], to_jsonb(OLD));
    ELSE
        INSERT INTO test.history (tab, old, new) VALUES (TG_ARGV[0], to_jsonb(OLD), to_jsonb(NEW));
    END IF;
    RETURN NULL;
END
$$;
CREATE FUNCTION test.watch(relation text, tab text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('CREATE TRIGGER remember_rows AFTER INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW EXECUTE FUNCTION test.remember(%L)', relation, tab);
    EXECUTE format('CREATE TRIGGER remember_truncate BEFORE TRUNCATE ON %s FOR EACH STATEMENT EXECUTE FUNCTION test.remember(%L)', relation, tab);
    EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER remember_rows, ENABLE ALWAYS TRIGGER remember_truncate', relation);
END
$$;
-- Who writes a target's cursor, or in the functions of owners its ledger, is the target's owner: fence() has locked the
-- target's row. Sessions have their process's name.
CREATE TABLE test.deposed (
    at timestamptz NOT NULL DEFAULT clock_timestamp(), what text NOT NULL, target text NOT NULL, writer text NOT NULL, owner text NOT NULL, term bigint NOT NULL);
CREATE FUNCTION test.see_writer(target_id integer, what text) RETURNS void LANGUAGE sql SECURITY DEFINER AS $$
    INSERT INTO test.deposed (what, target, writer, owner, term)
    SELECT see_writer.what, t.name, current_setting('application_name'), i.name, t.term
    FROM reconciler.targets t JOIN reconciler.instances i ON i.id = t.owner
    WHERE t.id = see_writer.target_id AND starts_with(current_setting('application_name'), 'reconciler ')
      AND NOT starts_with(current_setting('application_name') || ' ', 'reconciler ' || i.name || ' ')
$$;
CREATE FUNCTION test.see_cursor() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM test.see_writer(NEW.consumer, 'cursor');
    RETURN NULL;
END
$$;
CREATE TRIGGER see_cursor AFTER INSERT ON reconciler.cursors FOR EACH ROW EXECUTE FUNCTION test.see_cursor();
-- Who owned a target from when on: a Kubernetes API server does not get the terms of calls.
CREATE TABLE test.terms (at timestamptz NOT NULL DEFAULT clock_timestamp(), target text NOT NULL, term bigint NOT NULL, owner text NOT NULL);
CREATE FUNCTION test.see_term() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO test.terms (target, term, owner) SELECT NEW.name, NEW.term, i.name FROM reconciler.instances AS i WHERE i.id = NEW.owner;
    RETURN NULL;
END
$$;
CREATE TRIGGER see_term AFTER UPDATE ON reconciler.targets FOR EACH ROW WHEN (NEW.term <> OLD.term) EXECUTE FUNCTION test.see_term();
CREATE FUNCTION test.see_ledger() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    stack text;
    caller text;
BEGIN
    GET DIAGNOSTICS stack = PG_CONTEXT;
    caller := substring(stack FROM 'function reconciler\.(settle|record_in_hand|decide_parked)\(');
    IF caller IS NOT NULL THEN
        PERFORM test.see_writer(r.target_id, caller) FROM (SELECT DISTINCT target_id FROM rows) AS r;
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER see_insert AFTER INSERT ON reconciler.ledger REFERENCING NEW TABLE AS rows FOR EACH STATEMENT EXECUTE FUNCTION test.see_ledger();
CREATE TRIGGER see_update AFTER UPDATE ON reconciler.ledger REFERENCING NEW TABLE AS rows FOR EACH STATEMENT EXECUTE FUNCTION test.see_ledger();
-- What was published: each version of each object of each stream, by the transaction that published it.
CREATE TABLE test.published (
    xid xid8 NOT NULL DEFAULT pg_current_xact_id(), target text NOT NULL, term bigint NOT NULL, resource text NOT NULL, key text NOT NULL,
    version bigint NOT NULL, revision bigint NOT NULL, spec jsonb);
CREATE FUNCTION test.see_published() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO test.published (target, term, resource, key, version, revision, spec)
    SELECT t.name, t.term, r.resource, r.key, r.version, r.revision, r.spec FROM rows AS r JOIN reconciler.targets AS t ON t.id = r.target_id;
    RETURN NULL;
END
$$;
CREATE TRIGGER see_insert AFTER INSERT ON reconciler.published
    REFERENCING NEW TABLE AS rows FOR EACH STATEMENT EXECUTE FUNCTION test.see_published();
CREATE TRIGGER see_update AFTER UPDATE ON reconciler.published
    REFERENCING NEW TABLE AS rows FOR EACH STATEMENT EXECUTE FUNCTION test.see_published();
-- Ends of applies that the outbox told of; its rows go.
CREATE TABLE test.ends (apply bigint NOT NULL, event bigint NOT NULL);
CREATE INDEX ON test.ends (apply);
CREATE FUNCTION test.see_end() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO test.ends VALUES ((NEW.image ->> 'apply')::bigint, (NEW.image ->> 'event')::bigint);
    RETURN NULL;
END
$$;
CREATE TRIGGER see_end AFTER INSERT ON reconciler.outbox FOR EACH ROW WHEN (NEW.resource_id = 0 AND NEW.image ? 'apply') EXECUTE FUNCTION test.see_end();
CREATE TRIGGER see_delete AFTER DELETE ON reconciler.ledger REFERENCING OLD TABLE AS rows FOR EACH STATEMENT EXECUTE FUNCTION test.see_ledger();
`

// resource is a kind of object that worlds have.
type resource struct {
	name  string
	setup string // SQL: tables, triggers of the tester, track()
	main  string // its table, as SQL writes it
	keys  string // key columns, as SQL writes them
	// key returns the values of the key columns of the row with a number, as SQL writes them.
	key func(number int) string
	// rows gives what is wanted: place (NULL for every target), parts of the key, spec.
	rows string
	// everywhere says that place may be NULL.
	everywhere bool
	// target, running and spec are what track() is called with, where that may be called again with something else.
	target, running, spec string
}

const columns = `running boolean NOT NULL DEFAULT true, size int NOT NULL DEFAULT 0, seen int NOT NULL DEFAULT 0,
    version bigint NOT NULL DEFAULT nextval('test.versions')`

var resources = map[string]*resource{
	extra.name: extra,
	"num": {
		name: "num", main: "nums", keys: "id",
		setup: `CREATE TABLE nums (id bigint PRIMARY KEY, place text NOT NULL, ` + columns + `);
			CREATE INDEX ON nums (place, id) WHERE running;
			SELECT test.watch('nums', 'num');`,
		target: "place", running: "running", spec: "test.spec('num', id::text, jsonb_build_object('size', size, 'version', version))",
		key:  func(number int) string { return fmt.Sprint(number) },
		rows: `SELECT place, ARRAY[id::text], test.spec('num', id::text, jsonb_build_object('size', size, 'version', version))::text FROM nums WHERE running`,
	},
	"uid": {
		name: "uid", main: "uids", keys: "id", everywhere: true,
		setup: `CREATE TABLE uids (id uuid PRIMARY KEY, place text, ` + columns + `);
			SELECT test.watch('uids', 'uid');
			SELECT reconciler.track('uid', 'uids', '{id}', 'place', running => 'running', ignore => '{place,running,seen}');`,
		key:  func(number int) string { return fmt.Sprintf("'%08x-0000-4000-8000-00000000abcd'", number) },
		rows: `SELECT place, ARRAY[id::text], jsonb_build_object('id', id, 'size', size, 'version', version)::text FROM uids WHERE running`,
	},
	"txt": {
		name: "txt", main: `"Odd One"."Sites"`, keys: `a, "B c"`, everywhere: true,
		setup: `CREATE SCHEMA "Odd One";
			CREATE TABLE "Odd One"."Sites" (a text, "B c" text, place text, ` + columns + `, PRIMARY KEY (a, "B c"));
			SELECT test.watch('"Odd One"."Sites"', 'txt');`,
		target: "lower(place)", running: "running AND size >= 0", spec: `test.spec('txt', a || '/' || "B c", jsonb_build_object('text', a || "B c", 'version', version))`,
		key: func(number int) string {
			return fmt.Sprintf("'%s', 'n%d'", oddTexts[number%len(oddTexts)], number/len(oddTexts))
		},
		rows: `SELECT lower(place), ARRAY[a, "B c"], test.spec('txt', a || '/' || "B c", jsonb_build_object('text', a || "B c", 'version', version))::text FROM "Odd One"."Sites" WHERE running AND size >= 0`,
	},
	"svc": {
		name: "svc", main: "services", keys: "id",
		setup: `CREATE TABLE services (id bigint PRIMARY KEY, workspace bigint NOT NULL DEFAULT 0, place text NOT NULL, ` + columns + `);
			CREATE INDEX ON services (workspace);
			CREATE TABLE workspaces (id bigint PRIMARY KEY, suspended boolean NOT NULL DEFAULT false, seen int NOT NULL DEFAULT 0, version bigint NOT NULL DEFAULT nextval('test.versions'));
			SELECT test.watch('services', 'svc'), test.watch('workspaces', 'workspace');
			INSERT INTO workspaces (id) SELECT generate_series(0, 7);
			CREATE VIEW service_specs AS
				SELECT s.id, s.workspace, s.place, s.running AND NOT w.suspended AS running,
					test.spec('svc', s.id::text, jsonb_build_object('version', s.version, 'workspace', w.id, 'workspace_version', w.version)) AS spec
				FROM services AS s JOIN workspaces AS w ON w.id = s.workspace;
			SELECT reconciler.track('svc', 'service_specs', '{id}', 'place', running => 'running', spec => 'spec',
				depends_on => '{"services": {"id": "id"}, "workspaces": {"id": "workspace"}}');`,
		key: func(number int) string { return fmt.Sprint(number) },
		rows: `SELECT s.place, ARRAY[s.id::text], test.spec('svc', s.id::text, jsonb_build_object('version', s.version, 'workspace', w.id, 'workspace_version', w.version))::text
			FROM services s, workspaces w WHERE w.id = s.workspace AND s.running AND NOT w.suspended`,
	},
	// A day runs until a date, and whether that is over depends on the time zone in which it is asked. It is UTC.
	"day": {
		name: "day", main: "days", keys: "id",
		setup: `CREATE TABLE days (id bigint PRIMARY KEY, place text NOT NULL, ` + columns + `,
				at timestamptz GENERATED ALWAYS AS (timezone('UTC', timestamp '2026-01-19 08:00' + size * interval '2 minutes')) STORED,
				until date NOT NULL DEFAULT '2026-01-19');
			SELECT test.watch('days', 'day');
			SELECT reconciler.track('day', 'days', '{id}', 'place', running => 'running AND at::date <= until',
				spec => $$test.spec('day', id::text, jsonb_build_object('version', version, 'at', at::text))$$);`,
		key: func(number int) string { return fmt.Sprint(number) },
		rows: `SELECT place, ARRAY[id::text], test.spec('day', id::text, jsonb_build_object('version', version, 'at', to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS+00')))::text
			FROM days WHERE running AND (at AT TIME ZONE 'UTC')::date <= until`,
	},
}

// dayEnds is the size from which on a day is over.
const dayEnds = (24 - 8) * 60 / 2

// oddTexts are parts of keys that some layer may take for something else. They stand between quotes in SQL.
var oddTexts = []string{
	"plain", "", "a/b", `back\\slash`, `it''s`, "two words", "line\nbreak", "../../etc/passwd", "%2F", "ünïcødé", ".hidden", "-rf", `"quoted"`, "*", "x;--", "TAB\there",
}

// keyText joins the parts of a key as docs/concepts.md says.
func keyText(parts []string) string {
	if len(parts) == 1 {
		return parts[0]
	}
	escaped := make([]string, len(parts))
	for i, part := range parts {
		escaped[i] = strings.NewReplacer(`\`, `\\`, `/`, `\/`).Replace(part)
	}
	return strings.Join(escaped, "/")
}

// fileName returns the path of an object's file in the directory of its target, as docs/drivers.md says. Keys of
// worlds are too short to be cut.
func fileName(resource, key string) string {
	if key == "" {
		return resource + "/%.json"
	}
	var b strings.Builder
	for i := range len(key) {
		c := key[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', i > 0 && (c == '.' || c == '-'):
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return resource + "/" + b.String() + ".json"
}
