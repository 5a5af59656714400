package desired_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
)

// refusal returns the error and the hint of a statement that must fail.
func (w *world) refusal(t *testing.T, statement string) (message, hint string) {
	t.Helper()
	_, err := w.Pool.Exec(t.Context(), statement)
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	require.True(t, ok, "%v after %s", err, statement)
	return pgErr.Message, pgErr.Hint
}

// F125: with citext as key a quarter of the rows never became objects, and a change of a base table did not reach the rows
// that citext finds equal. What track() hints at instead serves all of them, by an index.
func TestF125_TextOfCitextServesAllRows(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE EXTENSION citext; CREATE TABLE hosts (name citext PRIMARY KEY, region citext NOT NULL); CREATE TABLE regions (name citext PRIMARY KEY, image text);
		INSERT INTO hosts SELECT chr(CASE n % 2 WHEN 0 THEN 72 ELSE 104 END) || n, CASE n % 2 WHEN 0 THEN 'EU' ELSE 'eu' END FROM generate_series(1, 60) AS n; INSERT INTO regions VALUES ('Eu', 'a:1')`)
	track := `SELECT reconciler.track('%s', '%s', '{%s}', '''eu''' %s)`
	message, hint := w.refusal(t, fmt.Sprintf(track, "host", "hosts", "name", ""))
	require.Equal(t, "key: column name has type public.citext, which cannot be a key", message)
	require.Equal(t, "Name a column with its text in its place: ALTER TABLE public.hosts ADD COLUMN name_text text NOT NULL GENERATED ALWAYS AS (lower(name::text)) STORED;", hint)
	w.Exec(t, strings.TrimPrefix(hint, "Name a column with its text in its place: "))
	message, hint = w.refusal(t, fmt.Sprintf(track, "host", "hosts", "name_text", ""))
	require.Equal(t, "key: (name_text) is not unique in public.hosts", message)
	require.Equal(t, "Name the columns of its primary key, or: CREATE UNIQUE INDEX CONCURRENTLY ON public.hosts (name_text);", hint)
	w.Exec(t, strings.TrimPrefix(hint, "Name the columns of its primary key, or: "))
	w.Exec(t, fmt.Sprintf(track, "host", "hosts", "name_text", ""))
	got, _ := w.pages(t, w.resource(t, "host"), 2)
	require.ElementsMatch(t, w.lines(t, `SELECT 'h' || n FROM generate_series(1, 60) AS n`), got)

	w.Exec(t, `CREATE VIEW placed AS SELECT h.name_text, h.region, r.image FROM hosts h JOIN regions r ON r.name = h.region`)
	message, hint = w.refusal(t, fmt.Sprintf(track, "placed", "placed", "name_text", `, depends_on => '{"regions": {"name": "region"}}'`))
	require.Equal(t, "depends_on: column name of public.regions has type public.citext, whose values cannot link rows", message)
	require.Equal(t, "Name a column with its text in its place: ALTER TABLE public.regions ADD COLUMN name_text text NOT NULL GENERATED ALWAYS AS (lower(name::text)) STORED;", hint)
	w.Exec(t, strings.TrimPrefix(hint, "Name a column with its text in its place: "))
	message, hint = w.refusal(t, fmt.Sprintf(track, "placed", "placed", "name_text", `, depends_on => '{"regions": {"name_text": "region"}}'`))
	require.Equal(t, "depends_on: column region of public.placed has type public.citext, whose values cannot link rows", message)
	require.Equal(t, "Track a view that has lower(region::text) instead.", hint)
	w.Exec(t, `CREATE OR REPLACE VIEW placed AS SELECT h.name_text, h.region, r.image, lower(h.region::text) AS region_text FROM hosts h JOIN regions r ON r.name = h.region`)
	w.Exec(t, fmt.Sprintf(track, "placed", "placed", "name_text", `, depends_on => '{"regions": {"name_text": "region_text"}}'`))
	l := links{world: w, name: "placed"}
	require.Len(t, l.marked(t, `UPDATE regions SET image = 'a:2'`), 60)
}

// F125: a table has one row for a key when a unique index keeps it so by the column's own equality; and pages walk the index
// when its order is the column's.
func TestF125_IndexOfAnotherOrderIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false); CREATE TABLE loose (k text COLLATE nocase NOT NULL, n int);
		CREATE UNIQUE INDEX by_bytes ON loose (k COLLATE "C"); INSERT INTO loose VALUES ('a', 1), ('A', 2);
		CREATE TABLE pattern (k text NOT NULL); CREATE UNIQUE INDEX by_pattern ON pattern (k text_pattern_ops);
		CREATE TABLE parts (k text NOT NULL) PARTITION BY LIST (k)`)
	for _, c := range []struct{ table, message, hint string }{
		{"loose", "is unique in public.loose only by index public.by_bytes, whose collation or operator class is not that of the column", "CREATE UNIQUE INDEX CONCURRENTLY ON public.loose (k);"},
		{"pattern", "is unique in public.pattern only by index public.by_pattern, whose collation or operator class is not that of the column", "CREATE UNIQUE INDEX CONCURRENTLY ON public.pattern (k);"},
		{"parts", "is not unique in public.parts", "Name the columns of its primary key, or: CREATE UNIQUE INDEX ON public.parts (k);"},
	} {
		t.Run(c.table, func(t *testing.T) {
			track := fmt.Sprintf(`SELECT reconciler.track('%[1]s', '%[1]s', '{k}', '''eu''')`, c.table)
			message, hint := w.refusal(t, track)
			require.Equal(t, "key: (k) "+c.message, message)
			require.Equal(t, c.hint, hint)
			w.Exec(t, `DELETE FROM loose WHERE n = 2`)
			w.Exec(t, hint[strings.Index(hint, "CREATE"):])
			w.Exec(t, track)
		})
	}
}

// F125: under a nondeterministic collation different texts are equal. No index keeps the rows of a view apart, and an image
// holds one of the texts.
func TestF125_LooseCollationsOfViewsAndLinksAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false); CREATE TABLE base (k text COLLATE nocase PRIMARY KEY); CREATE TABLE child (id int PRIMARY KEY, k text COLLATE nocase);
		INSERT INTO child VALUES (1, 'a'), (2, 'A'), (3, 'b'); CREATE VIEW names AS SELECT k, id FROM child; CREATE VIEW joined AS SELECT c.id, c.k FROM child c JOIN base b ON b.k = c.k`)
	message, hint := w.refusal(t, `SELECT reconciler.track('names', 'names', '{k}', '''eu''', depends_on => '{"child": {"id": "id"}}')`)
	require.Equal(t, "key: column k of public.names has collation public.nocase, under which different texts are equal", message)
	require.Equal(t, `Track a view that has (k COLLATE "C") AS k instead.`, hint)
	w.Exec(t, `CREATE VIEW exact AS SELECT (k COLLATE "C") AS k, id FROM child; SELECT reconciler.track('exact', 'exact', '{k}', '''eu''', depends_on => '{"child": {"id": "id"}}')`)
	got, _ := w.pages(t, w.resource(t, "exact"), 2)
	require.ElementsMatch(t, []string{"a", "A", "b"}, got)

	message, hint = w.refusal(t, `SELECT reconciler.track('joined', 'joined', '{id}', '''eu''', depends_on => '{"base": {"k": "k"}}')`)
	require.Equal(t, "depends_on: column k of public.base has collation public.nocase, under which different texts are equal", message)
	require.Equal(t, `Join and link by columns under a deterministic collation.`, hint)
}
