package outbox_test

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/desired"
)

var hostileTexts = []string{
	"", " ", "plain", `it's "quoted"`, `a/b`, `a\b`, `a\/b`, `\`, `/`, `//`, "line\nbreak\r\n\ttab", "ünïcødé ✓ 🐘 \u202eright-to-left", "../../etc/passwd", `'; DROP TABLE apps; --`,
	"-rf", "%s %d %[1]I", `$capture$ $1 ${HOME}`, "NULL", "\x01\x7f", strings.Repeat("k", 900), strings.Repeat("/", 300),
}

// C9, C68
func TestCaptureOfHostileTexts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TABLE one (k text PRIMARY KEY, region text); SELECT reconciler.track('one', 'one', '{k}', 'region')`,
		`CREATE TABLE two (k text, l text, region text, PRIMARY KEY (k, l)); SELECT reconciler.track('two', 'two', '{k,l}', 'region')`)
	for _, text := range hostileTexts {
		w.Exec(t, `INSERT INTO one VALUES ($1, $1)`, text)
		w.Exec(t, `INSERT INTO two VALUES ($1, $2, $1)`, text, "x"+text)
	}
	type mark struct{ Resource, Target, Key string }
	rows, err := w.Pool.Query(t.Context(), `SELECT r.name, o.target, o.key FROM reconciler.outbox o JOIN reconciler.resources r ON r.id = o.resource_id WHERE o.seq > $1 ORDER BY o.seq`, w.seen)
	require.NoError(t, err)
	marks, err := pgx.CollectRows(rows, pgx.RowToStructByPos[mark])
	require.NoError(t, err)
	var want []mark
	for _, text := range hostileTexts {
		target := text
		if len(text) > 63 { // longer than any config can hold
			target = fmt.Sprintf("%s... (sha256 %x)", text[:100], sha256.Sum256([]byte(text)))
		}
		want = append(want, mark{"one", target, text}, mark{"two", target, desired.JoinKey([]string{text, "x" + text})})
	}
	require.Equal(t, want, marks)
	require.Equal(t, w.lines(t, `SELECT key FROM reconciler.desired_two ORDER BY key COLLATE "C"`),
		w.lines(t, `SELECT o.key FROM reconciler.outbox o JOIN reconciler.resources r ON r.id = o.resource_id WHERE r.name = 'two' AND o.key IS NOT NULL ORDER BY o.key COLLATE "C"`))
}

// C9: the key of a row is the same whatever the settings of the session that writes it.
func TestCaptureOfEveryTypeOfKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TYPE mood AS ENUM ('sad', 'it''s /ok\'); CREATE DOMAIN code AS varchar(10) CHECK (VALUE <> 'bad'); CREATE DOMAIN day AS date; CREATE DOMAIN inner_day AS day;
		CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false)`)
	types := []struct{ typ, value, key string }{
		{"smallint", "-3", "-3"}, {"int", "2147483647", "2147483647"}, {"bigint", "'-9223372036854775808'", "-9223372036854775808"},
		{"numeric", "1.00", "1"}, {"numeric(20,3)", "12345.6", "12345.6"}, {"numeric", "'NaN'", "NaN"}, {"oid", "4294967295", "4294967295"},
		{"uuid", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"},
		{"text", "'Ab c'", "Ab c"}, {"varchar(5)", "'Ab c'", "Ab c"}, {"char(6)", "'Ab'", "Ab"}, {"name", "'Ab'", "Ab"}, {"text COLLATE nocase", "'Ab'", "Ab"},
		{"mood", `'it''s /ok\'`, `it's /ok\`}, {"code", "'c-1'", "c-1"}, {"boolean", "true", "true"}, {"boolean", "'no'", "false"},
		{"date", "'2024-02-01'", "2024-02-01"}, {"date", "'infinity'", "infinity"}, {"date", "'0044-03-15 BC'", "0044-03-15 BC"}, {"day", "'2024-02-01'", "2024-02-01"}, {"inner_day", "'2024-02-01'", "2024-02-01"},
		{"timestamp", "'2024-02-01 10:11:12.5'", "2024-02-01T10:11:12.5"}, {"timestamptz", "'2024-02-01 10:11:12.123456+02'", "2024-02-01T08:11:12.123456"}, {"timestamptz", "'-infinity'", "-infinity"},
		{"timestamptz(0)", "'2024-07-01 23:30:00-05:30'", "2024-07-02T05:00:00"},
		{"inet", "'10.0.0.1'", "10.0.0.1/32"}, {"inet", "'10.0.0.1/8'", "10.0.0.1/8"}, {"cidr", "'10.0.0.0/8'", "10.0.0.0/8"}, {"inet", "'::ffff:1.2.3.4'", "::ffff:1.2.3.4/128"},
		{"macaddr", "'08-00-2B-01-02-03'", "08:00:2b:01:02:03"},
	}
	sessions := []string{
		"SELECT 1", `SET TimeZone = 'Asia/Kathmandu'; SET DateStyle = 'SQL, DMY'; SET IntervalStyle = 'sql_standard'; SET extra_float_digits = -5; SET lc_numeric = 'C'`,
		`SET TimeZone = 'America/St_Johns'; SET DateStyle = 'German'; SET bytea_output = 'escape'; SET standard_conforming_strings = off; SET escape_string_warning = off`,
		`SET TimeZone = 'UTC'; SET DateStyle = 'Postgres, YMD'; SET quote_all_identifiers = on; SET transform_null_equals = on; SET default_transaction_isolation = 'serializable'`,
	}
	for n, typ := range types {
		w.Exec(t, fmt.Sprintf(`CREATE TABLE t%d (k %s PRIMARY KEY, region text DEFAULT 'eu'); SELECT reconciler.track('t%d', 't%d', '{k}', 'region')`, n, typ.typ, n, n))
	}
	w.marks(t)
	for at, session := range sessions {
		t.Run(fmt.Sprintf("Session%d", at), func(t *testing.T) {
			conn := w.Conn(t)
			for n, typ := range types {
				// The literal is read under the default settings, everything else happens under the session's.
				_, err := conn.Exec(t.Context(), "RESET ALL") // by itself: a text is parsed as a whole
				require.NoError(t, err)
				_, err = conn.Exec(t.Context(), fmt.Sprintf(`CREATE TEMP TABLE v AS SELECT %s::%s AS k; %s; BEGIN; INSERT INTO t%d (k) SELECT k FROM v`,
					typ.value, strings.TrimSuffix(typ.typ, " COLLATE nocase"), session, n))
				require.NoError(t, err, typ.typ)
				_, err = conn.Exec(t.Context(), fmt.Sprintf("UPDATE t%d SET region = 'us'; DELETE FROM t%d; COMMIT; DROP TABLE v", n, n))
				require.NoError(t, err, typ.typ)
				mark := func(target string) string {
					return fmt.Sprintf(`t%d "%s" %s`, n, target, w.lines(t, `SELECT to_json($1::text)::text`, typ.key)[0])
				}
				require.Equal(t, []string{mark("eu"), mark("eu"), mark("us"), mark("us")}, w.marks(t), "key of type %s", typ.typ)
			}
		})
	}
}

// C9
func TestCaptureOfOddNames(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE SCHEMA "My Schema"; CREATE TABLE "My Schema"."My ""Table""" ("user" int, "Select" text, "with space" text, "it's" text, "%s" boolean, "$capture$" int, "My ""Table""" int,
			"naïve ✓" text, PRIMARY KEY ("user", "Select"));
		SELECT reconciler.track('odd', '"My Schema"."My ""Table"""', '{user,Select}', '"with space" || "it''s"', '"%s" AND "$capture$" > 0 AND "My ""Table""" > 0', ignore => '{"naïve ✓"}')`)
	w.marked(t, `INSERT INTO "My Schema"."My ""Table""" VALUES (1, 'a', 'e', 'u', true, 1, 1), (2, 'a', 'e', 'u', true, 1, 0)`, `odd "eu" "1/a"`)
	w.marked(t, `UPDATE "My Schema"."My ""Table""" SET "naïve ✓" = 'x'`)
	w.marked(t, `UPDATE "My Schema"."My ""Table""" SET "Select" = 'b/c' WHERE "user" = 1`, `odd "eu" "1/a"`, `odd "eu" "1/b\\/c"`)
	require.Equal(t, []string{`eu 1/b\/c {"%s": true, "it's": "u", "user": 1, "Select": "b/c", "$capture$": 1, "My \"Table\"": 1, "with space": "e"}`},
		w.lines(t, `SELECT format('%s %s %s', target, key, spec) FROM reconciler.desired_odd WHERE running`))
}

// Names of tables that mean something to PL/pgSQL, or to the code that is generated.
func TestCaptureOfTablesNamedLikeVariables(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	names := []string{
		"old", "new", "old_key_", "new_key_", "old_live__", "new_target", "tg_op", "loop", "execute", "begin", "strict", "by", "while", "foreach", "if", "declare", "end", "region", "id", "r", "o", "d", "capture_1",
		"outbox", "reconciler", "public", "pg_class", "user", "Order", `quo"te`, "per%cent", "dollar$capture$", "_", "__", "naïve",
	}
	for n, name := range names {
		table := pgx.Identifier{name}.Sanitize()
		// A column named like its table, too.
		w.Exec(t, fmt.Sprintf(`CREATE TABLE public.%[1]s (id int PRIMARY KEY, region text, new text, old_key_ text, k text, %[3]s);
			SELECT reconciler.track('r%[2]d', 'public.%[1]s', '{id}', 'region', format('%%I.id > 0 AND (SELECT count(*) > 0 FROM pg_catalog.pg_class)', %[4]s::text))`,
			table, n, map[bool]string{true: "extra int", false: table + " int"}[name == "region" || name == "id" || name == "new" || name == "old_key_"], "'"+name+"'"))
		w.marks(t)
		mark := func(target string) string { return fmt.Sprintf(`r%d "%s" "1"`, n, target) }
		w.marked(t, fmt.Sprintf(`INSERT INTO public.%[1]s VALUES (1, 'eu'); UPDATE public.%[1]s SET region = 'us'; UPDATE public.%[1]s SET k = 'x'; DELETE FROM public.%[1]s`, table),
			mark("eu"), mark("eu"), mark("us"), mark("us"), mark("us"))
	}
}

func TestCaptureOfColumnsNamedLikeWords(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TABLE words ("begin" int, "loop" text, "if" boolean, "end" int, "case" int, tg_op text, "OLD" int, "new" int, "while" text, PRIMARY KEY ("begin", "while"));
		SELECT reconciler.track('word', 'words', '{begin,while}', 'loop', '"if" AND "end" = 1 AND tg_op = ''while loop'' AND "OLD" = 1 AND words."new" = 1', ignore => '{case}')`,
		`CREATE TABLE bases ("by" int PRIMARY KEY, "strict" int); CREATE VIEW loops AS SELECT "by" AS "foreach", "strict" FROM bases;
		SELECT reconciler.track('loop', 'loops', '{foreach}', '''eu''', depends_on => '{"bases": {"by": "foreach"}}')`)
	w.marked(t, `INSERT INTO words VALUES (1, 'eu', true, 1, 1, 'while loop', 1, 1, 'w'), (2, 'eu', true, 1, 1, 'while', 1, 1, 'w')`, `word "eu" "1/w"`)
	w.marked(t, `UPDATE words SET "loop" = 'us' WHERE "begin" = 1`, `word "eu" "1/w"`, `word "us" "1/w"`)
	w.marked(t, `INSERT INTO bases VALUES (7, 1)`, `loop {"foreach": 7}`)
}

// A number that is written in two ways is one object. Texts that a collation finds equal are two.
func TestCaptureOfEqualKeysWithTwoTexts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
		CREATE TABLE n (k numeric PRIMARY KEY); SELECT reconciler.track('n', 'n', '{k}', '''eu''');
		CREATE TABLE c (k text COLLATE nocase, l text COLLATE "C", m text, PRIMARY KEY (k, l, m)); SELECT reconciler.track('c', 'c', '{k,l,m}', '''eu''')`)
	w.marked(t, `INSERT INTO n VALUES (1.0)`, `n "eu" "1"`)
	w.refused(t, `INSERT INTO n VALUES (1.00)`, `duplicate key value violates unique constraint "n_pkey"`, "")
	w.marked(t, `UPDATE n SET k = 1.00`, `n "eu" "1"`)
	w.marked(t, `INSERT INTO c VALUES ('Ab', 'Ab', 'a/b')`, `c "eu" "Ab/Ab/a\\/b"`)
	w.marked(t, `UPDATE c SET k = 'aB'`, `c "eu" "Ab/Ab/a\\/b"`, `c "eu" "aB/Ab/a\\/b"`)
}
