package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
	"github.com/pgreconciler/reconciler/internal/store"
)

// planner has the queries that it is given explained instead of executed.
type planner struct {
	t    *testing.T
	conn *pgx.Conn
	plan string
}

var errExplained = errors.New("explained, not executed")

func (p *planner) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	p.t.Helper()
	literals := make([]string, len(args))
	for i, arg := range args {
		if literals[i] = fmt.Sprint(arg); fmt.Sprintf("%T", arg) == "string" {
			literals[i] = "'" + literals[i] + "'"
		}
	}
	p.plan = ""
	for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
		_, err := p.conn.Exec(ctx, fmt.Sprintf("SET plan_cache_mode = %s; PREPARE explained AS %s", mode, sql))
		require.NoError(p.t, err)
		rows, err := p.conn.Query(ctx, fmt.Sprintf("EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF, SUMMARY OFF) EXECUTE explained (%s)", strings.Join(literals, ", ")), pgx.QueryExecModeSimpleProtocol)
		require.NoError(p.t, err)
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(p.t, err)
		p.plan += strings.Join(lines, "\n") + "\n"
		_, err = p.conn.Exec(ctx, `DEALLOCATE explained; DELETE FROM reconciler.ticks WHERE revision > 1`)
		require.NoError(p.t, err)
	}
	return nil, errExplained
}

func (p *planner) Exec(context.Context, string, ...any) (pgconn.CommandTag, error) {
	return pgconn.CommandTag{}, errExplained
}

func (p *planner) QueryRow(context.Context, string, ...any) pgx.Row { return nil }

// readRows finds how many rows each scan of a part of the outbox read.
var readRows = regexp.MustCompile(`on outbox_\d.*actual rows=(\d+)`)

// The tick and the delta walk the index: on tables that nobody has analyzed and on analyzed ones, over an outbox that is
// long and a backlog that is long, they read a page and no more.
func TestCursorWalksTheIndex(t *testing.T) {
	t.Parallel()
	const page = 1000
	rows := pgtest.Pick(20_000, 100_000)
	w := cursorWorldOn(t, pgtest.Holding(t), events)
	// Old transactions of two rows each, over all parts; then one that is open and has written a lot; then a backlog.
	w.Exec(t, `INSERT INTO reconciler.outbox (xid, seq, resource_id, target, key) SELECT (n / 2)::text::xid8, (n % 4) << 20 | n, 1, 'eu', n::text FROM generate_series(6, $1::int) AS n`, rows)
	giant := w.begin(t, "giant")
	w.end(t, giant, fmt.Sprintf(`INSERT INTO events SELECT 'giant ' || n FROM generate_series(1, %d) AS n`, rows/10))
	w.Exec(t, `DELETE FROM reconciler.ticks; INSERT INTO reconciler.ticks (revision, snapshot) VALUES (1, pg_current_snapshot())`)
	from := w.lines(t, `SELECT snapshot::text FROM reconciler.ticks`)[0]
	w.Exec(t, `INSERT INTO reconciler.outbox (resource_id, target, key) SELECT 1, 'eu', n::text FROM generate_series(1, $1::int) AS n`, rows)
	to := w.lines(t, `SELECT pg_current_snapshot()::text`)[0]
	middle := w.lines(t, `SELECT xid::text FROM reconciler.outbox ORDER BY xid DESC LIMIT 1`)[0]

	p := &planner{t: t, conn: w.Conn(t)}
	delta := func(afterXid string, afterSeq int64) func() error {
		return func() error {
			_, err := store.New(p).OutboxDelta(t.Context(), store.OutboxDeltaParams{FromSnapshot: from, ToSnapshot: to, AfterXid: afterXid, AfterSeq: afterSeq, PageRows: page})
			return err
		}
	}
	queries := map[string]func() error{
		"TickInsert": func() error {
			_, err := store.New(p).TickInsert(t.Context(), store.TickInsertParams{Owner: leaderID, Term: 1, PageRows: page})
			return err
		},
		"FirstPage": delta("0", 0), "MiddlePage": delta(middle, int64(rows/2)), "AfterTheEnd": delta(middle, 1<<40),
	}
	for _, statistics := range []string{"SELECT", "ANALYZE reconciler.outbox, reconciler.ticks"} {
		w.Exec(t, statistics)
		for name, query := range queries {
			require.ErrorIs(t, query(), errExplained)
			require.NotContains(t, p.plan, "Seq Scan on outbox", name)
			require.NotContains(t, p.plan, "Bitmap", name)
			read := 0
			for _, match := range readRows.FindAllStringSubmatch(p.plan, -1) {
				n, err := strconv.Atoi(match[1])
				require.NoError(t, err)
				read += n
			}
			require.LessOrEqual(t, read, 2*(page+10), "%s after %s reads, in its two plans:\n%s", name, statistics, p.plan)
		}
	}
}
