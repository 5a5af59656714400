package desired_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// served are the types that may be keys: each base type of PostgreSQL, what can be made from one, and values of it. Some
// values are equal and differently written.
var served = []struct {
	base   string // in pg_catalog, as pg_type names it; "" for types made from one that is here
	typ    string
	values []string
	equal  string // the type that has its operators, if it has none
	keys   bool   // cannot link rows
	loose  bool   // equal values have different keys
}{
	{base: "int2", typ: "smallint", values: []string{"-32768", "0", "-0", "7", "007", "32767"}},
	{base: "int4", typ: "int", values: []string{"-2147483648", "0", "9", "10", "2147483647"}},
	{base: "int8", typ: "bigint", values: []string{"-9223372036854775808", "0", "9", "10", "9223372036854775807"}},
	{base: "numeric", typ: "numeric", values: []string{"0", "-0.00", "1", "1.0", "1.00", "10", "1e1", "9", "1e-20", "-7.50", "1e40", "NaN", "nan", "Infinity", "-inf"}},
	{typ: "numeric(10,2)", values: []string{"0", "1", "1.00", "1.004", "100", "-2.5"}},
	{base: "uuid", typ: "uuid", values: []string{"A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "{a0eebc999c0b4ef8bb6d6bb9bd380a11}", "00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"}},
	{base: "bool", typ: "boolean", values: []string{"t", "yes", "off"}},
	{base: "oid", typ: "oid", values: []string{"0", "9", "10", "4294967295", "-1"}},
	{base: "inet", typ: "inet", values: []string{"10.0.0.1", "10.0.0.1/32", "10.0.0.1/8", "9.255.0.0/16", "::1", "0:0:0::1/128", "::ffff:1.2.3.4", "::ffff:102:304"}},
	{base: "cidr", typ: "cidr", values: []string{"10", "10.0.0.0/8", "10.0.0.0/16", "9.0.0.0/32", "::/0", "2001:db8::/32"}},
	{base: "macaddr", typ: "macaddr", values: []string{"08:00:2b:01:02:03", "08-00-2B-01-02-03", "0800.2b01.0204", "ff:ff:ff:ff:ff:ff"}},
	{base: "macaddr8", typ: "macaddr8", values: []string{"08:00:2b:01:02:03", "08-00-2b-ff-fe-01-02-03", "00:00:00:00:00:00:00:00"}},
	{base: "date", typ: "date", values: []string{"2024-02-29", "29 February 2024", "0044-03-15 BC", "infinity", "-infinity", "4714-11-24 BC", "5874897-12-31"}},
	{base: "timestamp", typ: "timestamp", values: []string{"2024-02-01 10:00", "2024-02-01T10:00:00.000", "2024-02-01 10:00:00.000001", "0044-03-15 12:00 BC", "infinity", "-infinity", "294276-12-31"}},
	{base: "timestamptz", typ: "timestamptz", values: []string{"2024-02-01 10:00Z", "2024-02-01 12:00+02", "0044-03-15 12:00Z BC", "infinity", "-infinity", "294276-12-31Z"}, keys: true},
	{base: "text", typ: "text", values: []string{"a", "A", "a ", "B", "b", "ä", "a\u0308", "Z", "10", "9", "-x"}},
	{typ: `text COLLATE "C"`, values: []string{"a", "A", "a ", "B", "b", "ä"}},
	{typ: "text COLLATE numbers", values: []string{"n10", "n9", "N9", "n09"}},
	{typ: "text COLLATE nocase", values: []string{"a", "A", "b", "B", "ä", "Ä", "c"}, keys: true, loose: true},
	{base: "varchar", typ: "varchar(5)", values: []string{"a", "A", "a ", "b"}},
	{base: "bpchar", typ: "char(5)", values: []string{"a", "a  ", "A", " a", "ab", "b"}},
	{typ: "bpchar", values: []string{"a", "a  ", "A", "b"}},
	{typ: "char(5) COLLATE nocase", values: []string{"a", "a  ", "A", "b"}, keys: true, loose: true},
	{base: "name", typ: "name", values: []string{"a", "A", "b", "a "}},
	{typ: "mood", values: []string{"z", "a", "M", "m"}},
	{typ: "moody", equal: "mood", values: []string{"z", "a", "m"}},
	{typ: "code", values: []string{"a", "A", "b"}},
	{typ: "amount", values: []string{"1", "1.0", "10", "2.50"}},
	{typ: "plate", values: []string{"a", "a ", "b"}},
}

const servedTypes = `CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false); CREATE COLLATION numbers (provider = icu, locale = 'en-u-kn-true');
	CREATE TYPE mood AS ENUM ('z', 'a', 'M', 'm'); CREATE DOMAIN moody AS mood NOT NULL; CREATE DOMAIN code AS varchar(9) COLLATE "C" CHECK (VALUE <> '');
	CREATE DOMAIN number AS numeric; CREATE DOMAIN amount AS number CHECK (VALUE > 0); CREATE DOMAIN plate AS char(4)`

// foreign are types whose operators are not PostgreSQL's: of the extensions that come with it, and two that are made as those
// of other packages are (semver and debversion are strings, ip4r is not).
const foreign = `CREATE EXTENSION citext; CREATE EXTENSION hstore; CREATE EXTENSION ltree; CREATE EXTENSION isn; CREATE EXTENSION cube; CREATE EXTENSION seg; CREATE EXTENSION intarray; CREATE EXTENSION lo;
	CREATE DOMAIN host AS citext CHECK (VALUE <> ''); CREATE SCHEMA ext;
	CREATE TYPE ext.version; CREATE FUNCTION ext.version_in(cstring) RETURNS ext.version LANGUAGE internal IMMUTABLE STRICT AS 'textin';
	CREATE FUNCTION ext.version_out(ext.version) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'textout';
	CREATE TYPE ext.version (INPUT = ext.version_in, OUTPUT = ext.version_out, LIKE = text, CATEGORY = 'S');
	CREATE TYPE ext.serial; CREATE FUNCTION ext.serial_in(cstring) RETURNS ext.serial LANGUAGE internal IMMUTABLE STRICT AS 'int8in';
	CREATE FUNCTION ext.serial_out(ext.serial) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'int8out';
	CREATE TYPE ext.serial (INPUT = ext.serial_in, OUTPUT = ext.serial_out, LIKE = int8); CREATE DOMAIN ext.part AS ext.serial;
	CREATE TYPE ext.size AS ENUM ('s', 'm'); CREATE FUNCTION ext.size_cmp(ext.size, ext.size) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT 0';
	CREATE OPERATOR CLASS ext.size_ops DEFAULT FOR TYPE ext.size USING btree AS FUNCTION 1 ext.size_cmp(ext.size, ext.size)`

// F125: a type whose text, order, comparison and index are not one and the same lost rows, in silence. Of all types of
// PostgreSQL and its extensions those that are tested below may be keys and links. Every other is refused, with what to do.
func TestF125_EveryTypeIsServedOrRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, servedTypes, foreign, `CREATE TABLE types (id int PRIMARY KEY);
		CREATE FUNCTION refusal(statement text, OUT message text, OUT hint text) LANGUAGE plpgsql AS $$
		BEGIN EXECUTE statement; EXCEPTION WHEN OTHERS THEN GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, hint = PG_EXCEPTION_HINT; END $$`)
	w.Exec(t, `DO $$ DECLARE t oid; BEGIN
		FOR t IN SELECT oid FROM pg_type WHERE typtype <> 'p' AND typisdefined LOOP
			BEGIN EXECUTE format('ALTER TABLE types ADD COLUMN c%s %s NOT NULL', t, t::regtype);
			EXCEPTION WHEN invalid_table_definition THEN END; -- rows of pg_statistic: no table can have them
		END LOOP; END $$`)
	type verdict struct {
		Type, Column, Base, Key, Link string
		Own                           bool
		KeyHint, LinkHint             string
	}
	rows, err := w.Pool.Query(t.Context(), `WITH RECURSIVE base AS (
			SELECT a.attname, a.atttypid AS column_type, a.atttypid AS oid FROM pg_attribute a WHERE a.attrelid = 'types'::regclass AND a.attname ~ '^c[0-9]+$'
			UNION ALL SELECT b.attname, b.column_type, t.typbasetype FROM base b JOIN pg_type t ON t.oid = b.oid WHERE t.typtype = 'd')
		SELECT format_type(b.column_type, NULL) AS type, b.attname AS column, CASE WHEN t.typtype = 'e' AND t.typname <> 'size' THEN 'enum' ELSE t.typname END AS base,
			coalesce(k.message, '') AS key, coalesce(l.message, '') AS link, t.typnamespace = 'pg_catalog'::regnamespace AS own, coalesce(k.hint, '') AS key_hint, coalesce(l.hint, '') AS link_hint
		FROM base b JOIN pg_type t ON t.oid = b.oid AND t.typtype <> 'd',
			refusal(format('SELECT reconciler.check_key(''types'', ''{%s}'')', attname)) AS k, refusal(format('SELECT reconciler.check_link(''types'', %1$L, ''types'', %1$L)', attname)) AS l
		ORDER BY 1`)
	require.NoError(t, err)
	verdicts, err := pgx.CollectRows(rows, pgx.RowToStructByPos[verdict])
	require.NoError(t, err)
	require.Greater(t, len(verdicts), 500)

	keys, links := map[string]bool{"enum": true}, map[string]bool{"enum": true}
	for _, s := range served {
		if s.base != "" {
			keys[s.base], links[s.base] = true, !s.keys
		}
	}
	ways := 0
	for _, v := range verdicts {
		isKey, isLink := keys[v.Base] && (v.Own || v.Base == "enum"), links[v.Base] && (v.Own || v.Base == "enum")
		instead, isWay := strings.CutPrefix(v.KeyHint, "Name a column with its text in its place: ")
		switch {
		case isKey:
			require.Equal(t, fmt.Sprintf("key: (%s) is not unique in public.types", v.Column), v.Key, v.Type)
		default:
			require.Regexp(t, fmt.Sprintf("^key: column %s has type .*, which cannot be a key$", v.Column), v.Key, v.Type)
			require.True(t, isWay || v.KeyHint == "Use integers, numeric, uuid, text, enums, booleans, dates, timestamps or network addresses as key.", v.KeyHint)
		}
		if isLink {
			require.Empty(t, v.Link, v.Type)
			continue
		}
		require.Regexp(t, fmt.Sprintf("^depends_on: column %s of public.types has type .*, whose values cannot link rows$", v.Column), v.Link, v.Type)
		if !isWay {
			require.Equal(t, "Use integers, numeric, uuid, text, enums, booleans, dates, timestamps without time zone or network addresses.", v.LinkHint)
			continue
		}
		require.Equal(t, v.KeyHint, v.LinkHint)
		w.Exec(t, instead)
		require.Equal(t, []string{fmt.Sprintf("key: (%s_text) is not unique in public.types", v.Column), "linked"}, w.lines(t, fmt.Sprintf(
			`SELECT coalesce(message, 'linked') FROM refusal('SELECT reconciler.check_key(''types'', ''{%[1]s_text}'')') UNION ALL
			SELECT coalesce(message, 'linked') FROM refusal('SELECT reconciler.check_link(''types'', ''%[1]s_text'', ''types'', ''%[1]s_text'')')`, v.Column)))
		ways++
	}
	require.GreaterOrEqual(t, ways, 15) // citext, host, ltree, lquery, hstore, isbn, cube, seg, version, ...
}

// F125: pages of two rows have each row once, each row is found by its key through the index, and a row has one key however
// its value is written.
func TestF125_KeysOfEveryServedType(t *testing.T) {
	t.Parallel()
	w := newWorld(t, servedTypes)
	conn := w.Conn(t)
	_, err := conn.Exec(t.Context(), `SET enable_seqscan = off; SET enable_bitmapscan = off`)
	require.NoError(t, err)
	for n, s := range served {
		t.Run(s.typ, func(t *testing.T) {
			name := fmt.Sprintf("keys%d", n)
			w.Exec(t, fmt.Sprintf(`CREATE TABLE %[1]s (k %[2]s PRIMARY KEY); SELECT reconciler.track('%[1]s', '%[1]s', '{k}', '''eu''')`, name, s.typ))
			for _, value := range s.values {
				w.Exec(t, fmt.Sprintf(`INSERT INTO %s VALUES ($1::text::%s) ON CONFLICT DO NOTHING`, name, typeOf(s.typ)), value)
			}
			r := w.resource(t, name)
			want := w.lines(t, fmt.Sprintf(`SELECT key FROM reconciler.desired_%s`, name))
			require.GreaterOrEqual(t, len(want), 2)
			require.Len(t, slices.Compact(slices.Sorted(slices.Values(want))), len(want))
			require.ElementsMatch(t, want, w.lines(t, `SELECT DISTINCT key FROM reconciler.outbox WHERE resource_id = $1 AND key IS NOT NULL`, r.ID), "keys that the trigger wrote")
			got, _ := w.pages(t, r, 2)
			require.ElementsMatch(t, want, got)
			rows, err := r.Read(t.Context(), w.Pool, "eu", targetEU, want)
			require.NoError(t, err)
			for i, row := range rows {
				require.True(t, row.Wanted && row.Err == nil && row.Key == want[i], "key %q leads to %+v", want[i], row)
			}
			p := &planner{t: t, conn: conn}
			_, err = r.Read(t.Context(), p, "eu", targetEU, want[:1])
			require.ErrorIs(t, err, errExplained)
			require.Len(t, indexed.FindAllString(p.plan, -1), 2, p.plan)
			_, err = r.Page(t.Context(), p, "eu", targetEU, want[:1], 2, true)
			require.ErrorIs(t, err, errExplained)
			require.Len(t, indexed.FindAllString(p.plan, -1), 2, p.plan)
			require.NotRegexp(t, `Sort Key: \(?keys`, p.plan)

			for _, value := range s.values {
				w.Exec(t, fmt.Sprintf(`UPDATE %[1]s SET k = $1::text::%[2]s WHERE k::%[3]s = $1::text::%[3]s`, name, typeOf(s.typ), cmp.Or(s.equal, typeOf(s.typ))), value)
			}
			if !s.loose {
				require.ElementsMatch(t, want, w.lines(t, fmt.Sprintf(`SELECT key FROM reconciler.desired_%s`, name)))
			}
		})
	}
}

// indexed finds where a plan looks up or walks keys by their index.
var indexed = regexp.MustCompile(`Index Cond: \((\(k\)::\w+|k) [=>] `)

// typeOf is a type without its collation, for casts.
func typeOf(column string) string {
	typ, _, _ := strings.Cut(column, " COLLATE")
	return typ
}

// F125: a change of a base table reaches the objects whose columns are equal to its own, as their type finds them equal:
// those that rows name, and those that only the ledger knows.
func TestF125_LinksOfEveryServedType(t *testing.T) {
	t.Parallel()
	w := newWorld(t, servedTypes)
	for n, s := range served {
		if s.keys {
			continue
		}
		t.Run(s.typ, func(t *testing.T) {
			l := links{world: w, name: fmt.Sprintf("links%d", n), typ: typeOf(s.typ)}
			w.Exec(t, fmt.Sprintf(`CREATE TABLE %[1]s_base (k %[2]s); CREATE TABLE %[1]s_child (id int PRIMARY KEY, k %[2]s);
				CREATE VIEW %[1]s AS SELECT c.id, c.k FROM %[1]s_child c JOIN %[1]s_base b ON b.k::%[3]s = c.k::%[3]s;
				SELECT reconciler.track('%[1]s', '%[1]s', '{id}', '''eu''', depends_on => '{"%[1]s_base": {"k": "k"}, "%[1]s_child": {"id": "id"}}')`, l.name, s.typ, cmp.Or(s.equal, l.typ)))
			for id, value := range s.values {
				w.Exec(t, fmt.Sprintf(`INSERT INTO %s_child VALUES (%d, $1::text::%s)`, l.name, id, l.typ), value)
			}
			for _, value := range s.values {
				equal := w.lines(t, fmt.Sprintf(`SELECT id::text FROM %[1]s_child WHERE k::%[2]s = $1::text::%[2]s`, l.name, cmp.Or(s.equal, l.typ)), value)
				require.NotEmpty(t, equal)
				require.ElementsMatch(t, equal, l.marked(t, fmt.Sprintf(`INSERT INTO %s_base VALUES ($1::text::%s)`, l.name, l.typ), value), "rows equal to %s", value)
				w.Exec(t, fmt.Sprintf(`INSERT INTO reconciler.ledger (target_id, resource_id, key, state, wanted, present, applied_hash, match)
					SELECT 1, r.id, d.key, 'applied', true, true, substr(sha256('x'), 1, 16), d.match FROM reconciler.desired_%[1]s d, reconciler.resources r WHERE r.name = '%[1]s'`, l.name))
				require.ElementsMatch(t, equal, l.marked(t, fmt.Sprintf(`DELETE FROM %s_base WHERE $1 <> ''`, l.name), value), "ledger rows equal to %s", value)
				w.Exec(t, `DELETE FROM reconciler.ledger`)
			}
		})
	}
}

// links is a resource over a view that joins a base table to children.
type links struct {
	*world
	name, typ string
}

// marked executes a statement on the base table and returns the keys of the objects that it concerns.
func (l *links) marked(t *testing.T, statement string, args ...any) []string {
	t.Helper()
	seen := l.text(t, `SELECT last_value::text FROM reconciler.outbox_seq`)
	l.Exec(t, statement, args...)
	images := l.lines(t, `SELECT image::text FROM reconciler.outbox WHERE image IS NOT NULL AND seq > $1::text::bigint`, seen)
	raw := make([]json.RawMessage, len(images))
	for i, image := range images {
		raw[i] = json.RawMessage(image)
	}
	require.NotEmpty(t, raw, "images of %s", statement)
	_, err := l.resource(t, l.name).Expand(t.Context(), l.Pool, raw...)
	require.NoError(t, err)
	return l.lines(t, `SELECT DISTINCT key FROM reconciler.outbox WHERE key IS NOT NULL AND seq > $1::text::bigint`, seen)
}
