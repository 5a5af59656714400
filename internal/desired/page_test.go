package desired_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// C46: every row exactly once, whatever the keys, their order, and the size of the pages.
func TestPagesHaveEveryRowOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false); CREATE COLLATION swedish (provider = icu, locale = 'sv');
		CREATE COLLATION numbers (provider = icu, locale = 'en-u-kn-true'); CREATE TYPE mood AS ENUM ('z', 'a', 'm'); CREATE DOMAIN moody AS mood; CREATE DOMAIN amount AS numeric; CREATE DOMAIN plate AS char(4); CREATE DOMAIN code AS text COLLATE "C" CHECK (VALUE <> '')`,
		`CREATE TABLE texts (k text); INSERT INTO texts VALUES (''), (' '), ('a'), ('A'), ('b'), ('B'), ('ä'), ('z'), ('å'), ('Z'), ('ö'), ('10'), ('9'), ('a/b'), ('a\b'), ('a\/b'), ('/'), ('\'), ('-x'), ('_x'), (E'a\nb'), ('''q'''), ('"q"'), ('%s'), ('é'), (U&'e\0301'), ('ß'), ('ss'), ('👍'), (repeat('long', 256))`)
	tables := []struct{ name, columns, key, rows string }{
		{"Bigint", `k bigint PRIMARY KEY`, `k`, `SELECT n::bigint * (n % 3 - 1) * 1000000007 FROM generate_series(1, 100) AS n WHERE n % 3 <> 1 OR n = 1`},
		{"Numeric", `k numeric PRIMARY KEY`, `k`, `SELECT n::numeric / 8 FROM generate_series(-20, 20) AS n UNION ALL VALUES ('NaN'::numeric), ('Infinity'), ('-Infinity')`},
		{"Uuid", `k uuid PRIMARY KEY`, `k`, `SELECT md5(n::text)::uuid FROM generate_series(1, 40) AS n`},
		{"Text", `k text PRIMARY KEY`, `k`, `SELECT k FROM texts`},
		{"TextC", `k text COLLATE "C" PRIMARY KEY`, `k`, `SELECT k FROM texts`},
		{"TextSwedish", `k text COLLATE swedish PRIMARY KEY`, `k`, `SELECT k FROM texts`},
		{"TextByNumber", `k text COLLATE numbers PRIMARY KEY`, `k`, `SELECT k FROM texts UNION SELECT 'n' || n FROM generate_series(1, 30) AS n`},
		{"TextNoCase", `k text COLLATE nocase PRIMARY KEY`, `k`, `SELECT DISTINCT k COLLATE nocase FROM texts`},
		{"Domain", `k code PRIMARY KEY`, `k`, `SELECT k FROM texts WHERE k <> ''`},
		{"Char", `k char(5) PRIMARY KEY`, `k`, `SELECT chr(97 + n) || repeat('x', n % 3) FROM generate_series(0, 25) AS n`},
		{"Enum", `k mood PRIMARY KEY`, `k`, `VALUES ('z'::mood), ('a'), ('m')`},
		{"Bool", `k boolean PRIMARY KEY`, `k`, `VALUES (true), (false)`},
		{"Date", `k date PRIMARY KEY`, `k`, `SELECT '2024-02-20'::date + n FROM generate_series(1, 40) AS n UNION ALL VALUES ('infinity'::date), ('-infinity'), ('0044-03-15 BC')`},
		{"Timestamptz", `k timestamptz PRIMARY KEY`, `k`, `SELECT '2024-10-27 00:00+02'::timestamptz + n * interval '10 minutes 0.123456 seconds' FROM generate_series(1, 40) AS n UNION ALL VALUES ('infinity'::timestamptz)`},
		{"Inet", `k inet PRIMARY KEY`, `k`, `SELECT ('10.0.' || n || '.0/' || 24 + n % 8)::inet FROM generate_series(1, 30) AS n UNION ALL VALUES ('::1'::inet)`},
		{"Composite", `k int, l text, PRIMARY KEY (k, l)`, `k,l`, `SELECT n, k FROM texts, generate_series(1, 2) AS n`},
		{"CompositeOtherOrder", `l text COLLATE swedish, k int, PRIMARY KEY (k, l)`, `l,k`, `SELECT k, n FROM texts, generate_series(1, 2) AS n`},
		{"CompositeOfThree", `a mood, b text COLLATE nocase, c date, PRIMARY KEY (a, b, c)`, `a,b,c`, `SELECT DISTINCT a, k COLLATE nocase, '2024-01-01'::date + n FROM texts, generate_series(1, 2) AS n, unnest(ARRAY['z', 'a']::mood[]) AS a`},
		{"CompositeOfDomains", `a moody, b amount, c plate, PRIMARY KEY (a, b, c)`, `a,b,c`, `SELECT a::mood, n / 2.0, chr(97 + n) FROM generate_series(1, 9) AS n, unnest(ARRAY['z', 'a', 'm']) AS a`},
		{"KeyWithMoreThanItNeeds", `k int PRIMARY KEY, l text NOT NULL`, `l,k`, `SELECT n, 'same' FROM generate_series(1, 50) AS n`},
	}
	for _, table := range tables {
		w.Exec(t, fmt.Sprintf(`CREATE TABLE "%[1]s" (%[2]s); INSERT INTO "%[1]s" %[4]s; SELECT reconciler.track('%[1]s', '"%[1]s"', '{%[3]s}', '''eu'''), reconciler.track('%[1]s-null', '"%[1]s"', '{%[3]s}', 'NULL')`,
			table.name, table.columns, table.key, table.rows))
	}
	for _, table := range tables {
		t.Run(table.name, func(t *testing.T) {
			want := w.lines(t, fmt.Sprintf(`SELECT key FROM reconciler."desired_%s"`, table.name))
			require.Equal(t, []string{fmt.Sprint(len(want))}, w.lines(t, fmt.Sprintf(`SELECT count(*)::text FROM "%s"`, table.name)))
			slices.Sort(want)
			require.Len(t, slices.Compact(slices.Clone(want)), len(want), "keys differ")
			for _, resource := range []string{table.name, table.name + "-null"} {
				for _, size := range map[string][]int{table.name: {2, 7, len(want), len(want) + 1}, table.name + "-null": {7}}[resource] {
					got, pages := w.pages(t, w.resource(t, resource), size)
					require.Equal(t, (len(want)+size-1)/size, pages)
					slices.Sort(got)
					require.Equal(t, want, got, "%s in pages of %d", resource, size)
				}
				// Every key leads back to its row.
				rows, err := w.resource(t, resource).Read(t.Context(), w.Pool, "eu", targetEU, want)
				require.NoError(t, err)
				for n, row := range rows {
					require.True(t, row.Wanted && row.Err == nil && row.Key == want[n], "%s: key %q leads to %+v", resource, want[n], row)
				}
				others := slices.DeleteFunc([]string{"no such/key", `\`, "", "0"}, func(key string) bool { return slices.Contains(want, key) })
				missing, err := w.resource(t, resource).Missing(t.Context(), w.Pool, "eu", append(others, want...))
				require.NoError(t, err)
				require.ElementsMatch(t, others, missing)
			}
		})
	}
}

// Rows of one target and rows of every target come in one order; what does not run, or stands elsewhere, does not come.
func TestPagesOfATarget(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TABLE apps (id int PRIMARY KEY, region text, on_ boolean); SELECT reconciler.track('app', 'apps', '{id}', 'region', 'on_')`,
		`INSERT INTO apps SELECT n, (ARRAY['eu', 'us', NULL])[1 + n % 3], n % 5 > 0 FROM generate_series(1, 60) AS n; INSERT INTO apps VALUES (99, 'eu', NULL)`)
	want := w.lines(t, `SELECT id::text FROM apps WHERE (region = 'eu' OR region IS NULL) AND on_ ORDER BY apps.id`)
	for size := range 7 {
		got, pages := w.pages(t, w.resource(t, "app"), size+1)
		require.ElementsMatch(t, want, got)
		require.Equal(t, (len(want)+size)/(size+1), pages)
	}
	w.Exec(t, `DELETE FROM apps`)
	got, pages := w.pages(t, w.resource(t, "app"), 10)
	require.Empty(t, got)
	require.Zero(t, pages)
}

// C50: a page tells of what the ledger does not know to be as wanted, and of nothing else.
func TestPagesCompareWithTheLedger(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TABLE apps (id text PRIMARY KEY, image text); SELECT reconciler.track('app', 'apps', '{id}', '''eu''', spec => 'to_jsonb(image)')`)
	states := []struct {
		key, columns string
		differs      bool
	}{
		{"unknown", ``, true},
		{"applied", `'applied', true, true, hash, NULL, NULL, NULL`, false},
		{"applied differently", `'applied', true, true, substr(sha256('x'), 1, 16), NULL, NULL, NULL`, true},
		{"pending", `'pending', true, true, NULL, NULL, NULL, now()`, false},
		{"failing", `'failing', true, true, NULL, NULL, NULL, now()`, false},
		{"blocked on this", `'blocked', true, true, NULL, hash, NULL, NULL`, false},
		{"blocked on another", `'blocked', true, true, NULL, substr(sha256('x'), 1, 16), NULL, NULL`, true},
		{"blocked on nothing", `'blocked', true, true, NULL, NULL, NULL, NULL`, true},
		{"held", `'held', true, true, NULL, NULL, 'pause', NULL`, false},
		{"not wanted until now", `'pending', false, true, NULL, NULL, NULL, now()`, true},
	}
	var want []string
	for _, state := range states {
		w.Exec(t, `INSERT INTO apps VALUES ($1, 'a:1')`, state.key)
		if state.columns != "" {
			w.Exec(t, `INSERT INTO reconciler.ledger (target_id, resource_id, key, state, wanted, present, applied_hash, failed_hash, held_by, next_attempt_at)
				SELECT 1, 1, $1, `+state.columns+` FROM substr(sha256(convert_to('"a:1"', 'UTF8')), 1, 16) AS hash`, state.key)
		}
		if state.differs {
			want = append(want, state.key)
		}
	}
	page, err := w.resource(t, "app").Page(t.Context(), w.Pool, "eu", targetEU, nil, 100, false)
	require.NoError(t, err)
	require.Equal(t, int64(len(states)), page.Rows)
	require.ElementsMatch(t, want, page.Differ)
	page, err = w.resource(t, "app").Page(t.Context(), w.Pool, "us", 2, nil, 100, false)
	require.NoError(t, err)
	require.Zero(t, page.Rows)
}

// C43: rows that cannot be evaluated hide no other and end no page; pages go on after them, wherever they stand. With statistics,
// PostgreSQL reads a table that is as small as this one whole for each key, and evaluates what it likes of each row first.
func TestPagesOverRowsThatCannotBeEvaluated(t *testing.T) {
	t.Parallel()
	definitions := map[string]string{
		"spec": `'region', 'on_', spec => 'to_jsonb(1 / (id % 7))'`, "running": `'region', 'on_ AND 1 / (id % 7) > -1'`, "target": `'CASE WHEN 1 / (id % 7) > -1 THEN region END', 'on_'`,
		"raised": `'region', 'on_ AND bad(id)'`,
	}
	w := newWorld(t, `CREATE TABLE apps (id int PRIMARY KEY, region text, on_ boolean); INSERT INTO apps SELECT n, CASE WHEN n % 4 > 0 THEN 'eu' ELSE 'us' END, n % 3 > 0 FROM generate_series(1, 100) AS n;
		CREATE FUNCTION bad(id int) RETURNS boolean STABLE LANGUAGE plpgsql AS $$ BEGIN IF id % 7 = 0 THEN RAISE EXCEPTION 'no %', id USING ERRCODE = 'ZZ001'; END IF; RETURN true; END $$`)
	w.Exec(t, `ALTER TABLE apps SET (autovacuum_enabled = off)`)
	wanted := w.lines(t, `SELECT id::text FROM apps WHERE region = 'eu' AND on_ AND id % 7 > 0`)
	for name, definition := range definitions {
		w.Exec(t, fmt.Sprintf(`SELECT reconciler.track('%s', 'apps', '{id}', %s)`, name, definition))
	}
	for _, name := range append(slices.Sorted(maps.Keys(definitions)), "ANALYZE", "running", "target", "raised") {
		if name == "ANALYZE" {
			w.Exec(t, `ANALYZE apps`)
			continue
		}
		r := w.resource(t, name)
		for _, size := range []int{1, 25, 1000} {
			var named []string
			spoiled := false
			for after, rows := []string(nil), int64(1); rows > 0; {
				page, err := r.Page(t.Context(), w.Pool, "eu", targetEU, after, size, true)
				require.NoError(t, err, name)
				named, spoiled = append(named, page.Differ...), spoiled || page.Spoiled
				after, rows = page.Last, page.Rows
			}
			require.True(t, spoiled)
			require.Subset(t, named, wanted, "%s in pages of %d", name, size)
			require.Len(t, slices.Compact(slices.Sorted(slices.Values(named))), len(named), "%s: no key twice", name)
			// Looked at one by one, they are what they are.
			rows, err := r.Read(t.Context(), w.Pool, "eu", targetEU, named)
			require.NoError(t, err)
			var good []string
			for _, row := range rows {
				switch {
				case row.Wanted && row.Err == nil:
					good = append(good, row.Key)
				case row.Err != nil:
					require.Contains(t, []string{"its row cannot be read: division by zero", "its row cannot be read: no " + row.Key}, row.Err.Error())
				}
			}
			require.ElementsMatch(t, wanted, good, "%s in pages of %d", name, size)
			missing, err := r.Missing(t.Context(), w.Pool, "eu", append([]string{"1000"}, wanted...))
			require.NoError(t, err)
			require.Equal(t, []string{"1000"}, missing)
		}
	}
}
