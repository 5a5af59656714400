package outbox_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/database"
)

// Expressions give the same in every session: a writer whose settings are others writes what the reconciler would read.
func TestF9_ExpressionsDoNotDependOnTheWritersSettings(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TABLE apps (id int PRIMARY KEY, starts timestamptz, ends date, span interval, f float8, r real, raw bytea, price money, at timestamp, n numeric, name text, x xml);
		CREATE FUNCTION shown(timestamptz) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT $1::text'`)
	ours, err := database.NewPool(t.Context(), w.URL, database.Options{})
	require.NoError(t, err)
	t.Cleanup(ours.Close)
	cases := []struct{ name, set, target, running, row, want string }{
		{"TimeZone", `TimeZone = 'Asia/Tokyo'`, `'eu'`, `starts::date <= ends`, `starts = '2026-01-01 20:00+00', ends = '2026-01-01'`, `app "eu" "1"`},
		{"TimeZoneOfAComparison", `TimeZone = 'Asia/Tokyo'`, `'eu'`, `ends + 1 > starts`, `starts = '2026-01-01 23:00+00', ends = '2026-01-01'`, `app "eu" "1"`},
		{"TimeZoneOfAFunctionThatIsDeclaredImmutable", `TimeZone = 'Asia/Tokyo'`, `shown(starts)`, `true`, `starts = '2026-01-01 20:00+00'`, `app "2026-01-01 20:00:00+00" "1"`},
		{"DateStyle", `DateStyle = 'German, DMY'`, `at::text`, `true`, `at = '2026-02-01'`, `app "2026-02-01 00:00:00" "1"`},
		{"DateStyleOfInput", `DateStyle = 'German, DMY'`, `'eu'`, `name::date = ends`, `name = '02/01/2026', ends = '2026-02-01'`, `app "eu" "1"`},
		{"IntervalStyle", `IntervalStyle = 'sql_standard'`, `span::text`, `true`, `span = '1 day'`, `app "P1D" "1"`},
		{"IntervalStyleOfADifference", `IntervalStyle = 'sql_standard'`, `(at - at)::text`, `true`, `at = '2026-02-01'`, `app "PT0S" "1"`},
		{"extra_float_digits", `extra_float_digits = -10`, `f::text`, `true`, `f = 0.1::float8 + 0.2`, `app "0.30000000000000004" "1"`},
		{"extra_float_digits of real", `extra_float_digits = -6`, `'eu' || (r::text)`, `true`, `r = 1.2345678`, `app "eu1.2345678" "1"`},
		{"extra_float_digits of an operand", `extra_float_digits = -10`, `'eu' || f`, `true`, `f = 0.1::float8 + 0.2`, `app "eu0.30000000000000004" "1"`},
		{"extra_float_digits of an argument", `extra_float_digits = -10`, `quote_literal(f)`, `true`, `f = 0.1::float8 + 0.2`, `app "'0.30000000000000004'" "1"`},
		{"bytea_output", `bytea_output = 'escape'`, `raw::text`, `true`, `raw = 'a'`, `app "\\x61" "1"`},
		{"lc_monetary", `lc_monetary = 'C.UTF-8'`, `price::text`, `true`, `price = 1`, `app "$1.00" "1"`},
		{"quote_all_identifiers", `quote_all_identifiers = on`, `quote_ident(name)`, `true`, `name = 'eu'`, `app "eu" "1"`},
		{"to_char", `TimeZone = 'Asia/Tokyo'`, `to_char(starts, 'YYYY-MM-DD')`, `true`, `starts = '2026-01-01 20:00+00'`, `app "2026-01-01" "1"`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			w.lines(t, `SELECT reconciler.track('app', 'apps', '{id}', $1, $2)`, c.target, c.running)
			w.Exec(t, `DELETE FROM apps; INSERT INTO apps (id) VALUES (1)`)
			w.marks(t)
			w.Exec(t, `SET LOCAL `+c.set+`; UPDATE apps SET `+c.row+``)
			var read string
			require.NoError(t, ours.QueryRow(t.Context(), `SELECT 'app ' || to_json(target)::text || ' ' || to_json(key)::text FROM reconciler.desired_app WHERE running`).Scan(&read))
			require.Equal(t, c.want, read)
			require.Contains(t, w.marks(t), c.want)
			w.Exec(t, `SET LOCAL `+c.set+`; DELETE FROM apps`)
			require.Equal(t, []string{c.want}, w.marks(t))
		})
	}
	// Nothing of it stays in the writer's session.
	conn := w.Conn(t)
	w.lines(t, `SELECT reconciler.track('app', 'apps', '{id}', 'at::text', 'starts::date <= ends')`)
	var before, after string
	const settings = `SELECT string_agg(name || '=' || setting, ', ' ORDER BY name) FROM pg_settings WHERE name !~ '^plpgsql'`
	require.NoError(t, conn.QueryRow(t.Context(), `SELECT set_config('TimeZone', 'Asia/Tokyo', false) || set_config('DateStyle', 'German', false)`).Scan(&before))
	require.NoError(t, conn.QueryRow(t.Context(), settings).Scan(&before))
	_, err = conn.Exec(t.Context(), `INSERT INTO apps (id, starts, ends, at) VALUES (9, now(), now(), now())`)
	require.NoError(t, err)
	require.NoError(t, conn.QueryRow(t.Context(), settings).Scan(&after))
	require.Equal(t, before, after)
}
