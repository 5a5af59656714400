package desired_test

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/desired"
	"github.com/pgreconciler/reconciler/internal/pgtest"
)

var (
	scanned = regexp.MustCompile(`Scan.* on (?:apps|loose|ledger).*actual rows=([\d.]+) loops=(\d+)`)
	removed = regexp.MustCompile(`Rows Removed by Filter: (\d+)`)
)

// rowsRead returns how many rows of tables the plans looked at, those that a filter removed too.
func rowsRead(t *testing.T, plans string) int {
	t.Helper()
	number := func(text string) float64 {
		n, err := strconv.ParseFloat(text, 64)
		require.NoError(t, err)
		return n
	}
	read, loops := 0.0, 0.0
	for line := range strings.Lines(plans) {
		if strings.Contains(line, "(actual ") {
			loops = 0 // of a node that scans none of the tables
		}
		if scan := scanned.FindStringSubmatch(line); scan != nil {
			loops = number(scan[2])
			read += number(scan[1]) * loops
		} else if filter := removed.FindStringSubmatch(line); filter != nil {
			read += number(filter[1]) * loops
		}
	}
	return int(math.Round(read))
}

// A page reads about a page of rows, whatever the size of the table, and single objects are looked up by key, on analyzed
// tables and on young ones.
func TestPagesAndReadsWalkIndexes(t *testing.T) {
	t.Parallel()
	const page = 500
	rows := pgtest.Pick(12_000, 24_000)
	w := newWorld(t, `CREATE TABLE apps (id bigint PRIMARY KEY, region text NOT NULL, on_ boolean NOT NULL, image text);
		CREATE INDEX ON apps (region, id) WHERE on_; CREATE TABLE loose (id bigint, name text, region text, PRIMARY KEY (id, name)); CREATE INDEX ON loose (region, id, name);
		ALTER TABLE loose SET (autovacuum_enabled = off); ALTER TABLE apps SET (autovacuum_enabled = off); ALTER TABLE reconciler.ledger SET (autovacuum_enabled = off)`,
		`SELECT reconciler.track('app', 'apps', '{id}', 'region', 'on_'), reconciler.track('loose', 'loose', '{id,name}', 'region')`,
		fmt.Sprintf(`INSERT INTO apps SELECT n, CASE WHEN n %% 3 > 0 THEN 'eu' ELSE 'us' END, n %% 4 > 0, 'a:1' FROM generate_series(1, %d) AS n`, rows),
		`INSERT INTO loose SELECT id, image, CASE WHEN id % 5 > 0 THEN region END FROM apps`,
		`INSERT INTO reconciler.ledger (target_id, resource_id, key, state, wanted, present, applied_hash) SELECT 1, 1, key, 'applied', true, true, substr(sha256('x'), 1, 16) FROM reconciler.desired_app WHERE target = 'eu' AND running`)
	p := &planner{t: t, conn: w.Conn(t)}
	app, loose := w.resource(t, "app"), w.resource(t, "loose")
	keys := w.lines(t, `SELECT (n * 100 + 1)::text FROM generate_series(1, 200) AS n`)
	queries := map[string]struct {
		run  func() error
		most int // rows that one of the two plans may read
	}{
		"FirstPage": {func() error { _, err := app.Page(t.Context(), p, "eu", targetEU, nil, page, false); return err }, 3 * page},
		"MiddlePage": {func() error {
			_, err := app.Page(t.Context(), p, "eu", targetEU, []string{"12000"}, page, false)
			return err
		}, 3 * page},
		"LastPage": {func() error {
			_, err := app.Page(t.Context(), p, "eu", targetEU, []string{"23990"}, page, false)
			return err
		}, 3 * page},
		// Rows of every target are read beside those of one.
		"LoosePage": {func() error {
			_, err := loose.Page(t.Context(), p, "eu", targetEU, []string{"12000", "a:1"}, page, false)
			return err
		}, 4 * page},
		"Read":    {func() error { _, err := app.Read(t.Context(), p, "eu", targetEU, keys); return err }, 2 * len(keys)},
		"Missing": {func() error { _, err := app.Missing(t.Context(), p, "eu", keys); return err }, len(keys)},
	}
	for _, statistics := range []string{"SELECT", "ANALYZE apps, loose, reconciler.ledger"} {
		w.Exec(t, statistics)
		for name, query := range queries {
			require.ErrorIs(t, query.run(), errExplained)
			require.LessOrEqual(t, rowsRead(t, p.plan), 2*query.most, "%s after %s:\n%s", name, statistics, p.plan)
		}
	}
}

// A read of a few keys keeps its plan, whatever their number: to plan it takes longer than to run it. PostgreSQL plans the
// first five for themselves.
func TestReadsOfFewKeysKeepTheirPlan(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TABLE pairs (a int, b text, region text NOT NULL, PRIMARY KEY (a, b)); SELECT reconciler.track('pair', 'pairs', '{a,b}', 'region')`,
		`INSERT INTO pairs SELECT n, 'b', 'eu' FROM generate_series(1, 10000) AS n`,
		`INSERT INTO reconciler.ledger (target_id, resource_id, key, state, wanted, present, applied_hash) SELECT 1, 1, key, 'applied', true, true, substr(sha256('x'), 1, 16) FROM reconciler.desired_pair`,
		`ANALYZE pairs, reconciler.ledger`)
	pair, conn := w.resource(t, "pair"), w.Conn(t)
	const reads = 20
	for n := range reads {
		keys := []string{"1/b", "2/b", "3/b", "4/b", "5/b", "6/b", "7/b"}[:1+n%7]
		rows, err := pair.Read(t.Context(), conn, "eu", targetEU, keys)
		require.NoError(t, err)
		require.Len(t, rows, len(keys))
		_, err = pair.ReadToCall(t.Context(), conn, "eu", targetEU, keys, desired.Caller{Owner: "00000000-0000-0000-0000-000000000000"})
		require.NoError(t, err)
	}
	rows, err := conn.Query(t.Context(), `SELECT generic_plans || ' of ' || generic_plans + custom_plans FROM pg_prepared_statements WHERE statement LIKE '%reconciler.ledger%'`, pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, err)
	plans, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Equal(t, []string{"15 of 20", "15 of 20"}, plans)
}

// A target that has few rows among many, and rows for every target, few or a fifth of all: a page walks the index that
// index_advice demands and reads no row of others, wherever the rows lie.
func TestF96_PagesOfFewRowsWalkTheAdvisedIndex(t *testing.T) {
	t.Parallel()
	const page = 500
	rows := pgtest.Pick(10_000, 50_000)
	for name, every := range map[string]int{"NoneForEvery": rows + 1, "SomeForEvery": 997, "ManyForEvery": 5} {
		for _, order := range []string{"n", "md5(n::text)"} {
			t.Run(name+"By"+order, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, `CREATE TABLE apps (id bigint PRIMARY KEY, region text, on_ boolean NOT NULL); ALTER TABLE apps SET (autovacuum_enabled = off)`,
					`SELECT reconciler.track('app', 'apps', '{id}', 'region', 'on_')`)
				w.Exec(t, w.text(t, `SELECT replace(reconciler.index_advice(1), 'CONCURRENTLY', '')`))
				w.Exec(t, fmt.Sprintf(`INSERT INTO apps SELECT n, CASE WHEN n %% %d = 0 THEN NULL WHEN n %% 500 = 1 THEN 'eu' ELSE 't' || n %% 6 END, n %% 4 > 0
					FROM generate_series(1, %d) AS n ORDER BY %s`, every, rows, order))
				p := &planner{t: t, conn: w.Conn(t), known: true}
				app := w.resource(t, "app")
				for _, statistics := range []string{"SELECT", "ANALYZE apps"} {
					w.Exec(t, statistics)
					for _, after := range [][]string{nil, {"25000"}, {"49000"}} {
						_, err := app.Page(t.Context(), p, "eu", targetEU, after, page, false)
						require.ErrorIs(t, err, errExplained)
						// Of each side a page at most, and the ledger's row for each of the page.
						require.LessOrEqual(t, rowsRead(t, p.plan), 3*page, "after %v, %s:\n%s", after, statistics, p.plan)
					}
				}
			})
		}
	}
}

// A plan made when a table was small must not serve when it is large: of one with a row or two all is read, for it is one
// block; on a young one an index by a status costs the planner as much as the primary key; and a connection keeps its plan
// until somebody analyzes the table.
func TestPlansOfSmallTablesAreNotKept(t *testing.T) {
	t.Parallel()
	const page = 500
	rows := pgtest.Pick(10_000, 20_000)
	for name, small := range map[string]string{
		"Empty": "SELECT",
		"OneRow": `INSERT INTO apps VALUES ('eu', 0, 'running'); INSERT INTO reconciler.ledger (target_id, resource_id, key, state, wanted, present, applied_hash)
			VALUES (1, 1, 'eu/0', 'applied', true, true, substr(sha256('x'), 1, 16)); ANALYZE apps, reconciler.ledger`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, `CREATE TABLE apps (region text, id bigint, status text NOT NULL, PRIMARY KEY (region, id));
				ALTER TABLE apps SET (autovacuum_enabled = off); ALTER TABLE reconciler.ledger SET (autovacuum_enabled = off)`,
				`SELECT reconciler.track('app', 'apps', '{region,id}', 'region', 'status = ''running''')`, small)
			app := w.resource(t, "app")
			var plan strings.Builder
			conn := w.Explaining(t, func(text string) { plan.WriteString(text) })
			keys := w.lines(t, `SELECT 'eu/' || n * 50 FROM generate_series(1, 200) AS n`)
			queries := map[string]func() error{
				"Page": func() error {
					_, err := app.Page(t.Context(), conn, "eu", targetEU, []string{"eu", "9000"}, page, false)
					return err
				},
				"Read":    func() error { _, err := app.Read(t.Context(), conn, "eu", targetEU, keys); return err },
				"Missing": func() error { _, err := app.Missing(t.Context(), conn, "eu", keys); return err },
			}
			for range 10 {
				for _, query := range queries {
					require.NoError(t, query())
				}
			}
			w.Exec(t, fmt.Sprintf(`INSERT INTO apps SELECT 'eu', n, 'running' FROM generate_series(1, %d) AS n`, rows))
			w.Exec(t, `INSERT INTO reconciler.ledger (target_id, resource_id, key, state, wanted, present, applied_hash)
				SELECT 1, 1, key, 'applied', true, true, substr(sha256('x'), 1, 16) FROM reconciler.desired_app WHERE key <> 'eu/0'`)
			for name, query := range queries {
				plan.Reset()
				require.NoError(t, query())
				require.NotContains(t, plan.String(), "Seq Scan on ledger", name)
				if name != "Page" {
					read := rowsRead(t, plan.String())
					require.Positive(t, read, name)
					require.LessOrEqual(t, read, 2*len(keys), "%s:\n%s", name, plan.String())
				}
			}
		})
	}
}
