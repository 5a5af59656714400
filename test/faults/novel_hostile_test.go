package faults_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// hostileSettings are what somebody may have set for a database: sessions of the product must not care.
var hostileSettings = []string{
	"row_security = off", "TimeZone = 'Pacific/Kiritimati'", "TimeZone = 'Etc/GMT+12'", "DateStyle = 'SQL, DMY'", "DateStyle = 'German'",
	"IntervalStyle = 'sql_standard'", "extra_float_digits = -15", "bytea_output = 'escape'", "synchronous_commit = off",
	"default_transaction_isolation = 'serializable'", "default_transaction_isolation = 'repeatable read'", "default_transaction_deferrable = on",
	"lock_timeout = '5ms'", "idle_session_timeout = '3s'", "idle_in_transaction_session_timeout = '1s'", "statement_timeout = '3s'",
	"standard_conforming_strings = off", "quote_all_identifiers = on", "transform_null_equals = on", "array_nulls = off",
	"search_path = 'reconciler'", "client_min_messages = 'error'", "check_function_bodies = off", "work_mem = '64kB'",
	"plan_cache_mode = 'force_generic_plan'", "plan_cache_mode = 'force_custom_plan'", "enable_indexscan = off", "enable_nestloop = off",
	"jit_above_cost = 0", "constraint_exclusion = on", "xmlbinary = 'hex'", "backslash_quote = 'off'", "lo_compat_privileges = on",
	"gin_pending_list_limit = '64kB'", "vacuum_cost_delay = '100ms'", "enable_hashjoin = off", "cursor_tuple_fraction = 0.9",
}

// hostileSettings sets some of them for the database, and has all sessions of the product begin anew.
func (w *world) hostileSettings(f fault) (end func()) {
	some := slices.Clone(hostileSettings)
	if w.pooler != nil {
		some = slices.DeleteFunc(some, func(setting string) bool { return refusedThroughAPooler.MatchString(setting) })
	}
	w.hostile.Shuffle(len(some), func(i, j int) { some[i], some[j] = some[j], some[i] })
	some = some[:3+f.Choice%6]
	for _, setting := range some {
		w.must(fmt.Sprintf(`ALTER DATABASE %s SET %s`, w.db.Name, setting))
	}
	w.note("set: %s", strings.Join(some, "; "))
	w.terminate("application_name LIKE 'reconciler%'")
	return func() {}
}

// refusedThroughAPooler are settings with which no process works through a pooler. It says so.
var refusedThroughAPooler = regexp.MustCompile("^(default_transaction_isolation|default_transaction_read_only|standard_conforming_strings) ")

// mild are settings of the tester's own sessions, which are about other things than settings.
var mild = map[string]string{
	"standard_conforming_strings": "on", "statement_timeout": "0", "idle_session_timeout": "0", "idle_in_transaction_session_timeout": "0",
	"default_transaction_isolation": "read committed", "default_transaction_deferrable": "off", "search_path": `"$user", public`,
	"row_security": "on", "transform_null_equals": "off", "plan_cache_mode": "auto", "array_nulls": "on",
	"jit": "off", // who compiles every statement waits for each, also without us
}

// zones are those of writers.
var zones = []string{"UTC", "Pacific/Kiritimati", "Etc/GMT+12", "America/New_York"}

// hostileRow is a row that comes and goes.
type hostileRow struct {
	what        string
	resource    string // where it is written; every world has num
	comes, goes string
}

// odd is what texts may have that few programs expect: no character, joined ones, from right to left, beyond the first plane,
// no characters at all, the last of all.
const odd = `'e'||chr(8203)||chr(8238)||'txet'||chr(65279)||'x'||chr(769)||chr(128169)||chr(65534)||chr(1114111)||chr(1)||chr(127)||chr(8232)`

const noise = `(SELECT string_agg(md5(random()::text || i), '') FROM generate_series(1, %d) AS i)`

// hostileRows are rows as no world has them otherwise. What they have in their places goes again: wait() would wait for it.
var hostileRows = []hostileRow{
	{"a target of 2,800 random bytes", "num", `INSERT INTO nums (id, place) VALUES (600000, substr(` + fmt.Sprintf(noise, 88) + `, 1, 2800)) ON CONFLICT DO NOTHING`, `DELETE FROM nums WHERE id = 600000`},
	{"20 targets of a megabyte", "loose", `INSERT INTO loose (id, place) SELECT 'far' || j, j || repeat('x', 1000000) FROM generate_series(1, 20) AS j`, `DELETE FROM loose WHERE id LIKE 'far%'`},
	{"a target of odd characters", "num", `INSERT INTO nums (id, place) VALUES (600200, ` + odd + `) ON CONFLICT DO NOTHING`, `DELETE FROM nums WHERE id = 600200`},
	{"an empty target", "num", `INSERT INTO nums (id, place) VALUES (600201, '') ON CONFLICT DO NOTHING`, `DELETE FROM nums WHERE id = 600201`},
	{"a key of 3,000 bytes", "txt", `INSERT INTO "Odd One"."Sites" (a, "B c", place) VALUES (repeat('k', 3000), 'hostile', 't0') ON CONFLICT DO NOTHING`, `DELETE FROM "Odd One"."Sites" WHERE "B c" = 'hostile'`},
	{"a key of 1,990 bytes", "txt", `INSERT INTO "Odd One"."Sites" (a, "B c", place) VALUES (repeat('k', 1980), 'hostile', 't0') ON CONFLICT DO NOTHING`, `DELETE FROM "Odd One"."Sites" WHERE "B c" = 'hostile'`},
	{"a key of odd characters", "txt", `INSERT INTO "Odd One"."Sites" (a, "B c", place) VALUES (` + odd + `, 'hostile', 't0') ON CONFLICT DO NOTHING`, `DELETE FROM "Odd One"."Sites" WHERE "B c" = 'hostile'`},
	{"three specs of 5 MB", "loose", `INSERT INTO loose (id, place, pad) SELECT 'big' || i, 't0', repeat(md5(random()::text), 160000) FROM generate_series(1, 3) AS i`, `DELETE FROM loose WHERE id LIKE 'big%'`},
	{"a NULL key", "loose", `INSERT INTO loose (id, place) VALUES (NULL, 't0')`, `DELETE FROM loose WHERE id IS NULL`},
	{"NULL keys among others", "loose", `INSERT INTO loose (id, place) SELECT CASE WHEN i % 7 > 0 THEN 'n' || i END, 't0' FROM generate_series(1, 50) AS i`, `DELETE FROM loose WHERE id IS NULL OR id LIKE 'n%'`},
	{"a key twice", "loose", `INSERT INTO loose (id, place) SELECT 'twice', 't0' FROM generate_series(1, 2)`, `DELETE FROM loose WHERE id = 'twice'`},
	{"a NULL spec", "loose", `INSERT INTO loose (id, place, pad) VALUES ('hollow', 't0', NULL)`, `DELETE FROM loose WHERE id = 'hollow'`},
}

// loose is a table without a key, behind a view: rows in it may be no objects.
const loose = `CREATE TABLE loose (id text, place text, pad text DEFAULT '');
	CREATE VIEW loose_specs AS SELECT id, place, jsonb_build_object('version', 1, 'pad', pad) AS spec FROM loose WHERE pad IS NOT NULL
		UNION ALL SELECT id, place, NULL FROM loose WHERE pad IS NULL;
	SELECT reconciler.track('loose', 'loose_specs', '{id}', 'place', spec => 'spec', depends_on => '{"loose": {"id": "id"}}');`

// hostileRows writes some such rows, and deletes them in the end.
func (w *world) hostileRows(f fault) (end func()) {
	var gone []string
	for range 1 + f.Choice%3 {
		row := hostileRows[w.hostile.IntN(len(hostileRows))]
		if row.resource != "loose" && !slices.Contains(w.plan.Resources, row.resource) {
			continue
		}
		if w.act(row.comes) {
			w.note("%s", row.what)
			w.count("hostile rows: "+row.what, 1)
			gone = append(gone, row.goes)
			w.mu.Lock()
			w.hostileGone = append(w.hostileGone, row.goes)
			w.mu.Unlock()
		}
	}
	if len(gone) == 0 {
		return nil
	}
	return func() {
		for _, sql := range gone {
			w.must(sql)
		}
	}
}

// rowSecurity hides all rows of a table from everybody but superusers, and has some of them change meanwhile. Targets have
// had them for a while.
func (w *world) rowSecurity() (end func()) {
	if !w.fillExtra() {
		return nil
	}
	pass(2*fuzz, w.t.Context().Done())
	if !w.act(`UPDATE extras SET version = nextval('test.versions') WHERE id % 10 = 0`) {
		return nil
	}
	pass(fuzz, w.t.Context().Done())
	if !w.act(`BEGIN; ALTER TABLE extras ENABLE ROW LEVEL SECURITY; ALTER TABLE extras FORCE ROW LEVEL SECURITY; COMMIT`) {
		return nil
	}
	w.act(`UPDATE extras SET version = nextval('test.versions') WHERE id % 20 = 0`)
	return func() {
		w.must(`BEGIN; ALTER TABLE extras DISABLE ROW LEVEL SECURITY; ALTER TABLE extras NO FORCE ROW LEVEL SECURITY; COMMIT`)
	}
}
