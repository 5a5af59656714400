package outbox_test

import (
	"fmt"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
	"github.com/pgreconciler/reconciler/internal/store"
)

// touched finds how many blocks each node of a plan and those below it looked at; the first node stands for all.
var touched = regexp.MustCompile(`Buffers: shared hit=(\d+)(?: read=(\d+))?`)

// blocks returns how many blocks a plan looked at.
func (p *planner) blocks() int {
	p.t.Helper()
	found := touched.FindStringSubmatch(p.plan)
	require.NotNil(p.t, found, p.plan)
	hit, err := strconv.Atoi(found[1])
	require.NoError(p.t, err)
	read, _ := strconv.Atoi(found[2]) // nothing when all were in memory
	return hit + read
}

// C20: a page in the middle or at the end of a giant transaction costs what its first page costs, whether the
// transaction began before the first snapshot or after it. Otherwise a million rows take minutes to be read through.
func TestEveryPageOfAGiantTransactionCostsTheSame(t *testing.T) {
	t.Parallel()
	const page = 1000
	rows := pgtest.Pick(20_000, 100_000)
	w := cursorWorldOn(t, pgtest.Holding(t), events)
	fill := fmt.Sprintf(`INSERT INTO reconciler.outbox (resource_id, target, key) SELECT 1, 'eu', n::text FROM generate_series(1, %d) AS n`, rows)
	early := w.begin(t, "early")
	_, err := early.Exec(t.Context(), fill)
	require.NoError(t, err)
	w.Exec(t, `INSERT INTO events VALUES ('a later one ends first')`) // else early is no transaction in progress, but one of the future
	from := w.lines(t, `SELECT pg_current_snapshot()::text`)[0]
	w.end(t, early, "COMMIT")
	w.Exec(t, fill)
	w.Exec(t, `VACUUM reconciler.outbox`) // no hint bits to be set on the way
	to := w.lines(t, `SELECT pg_current_snapshot()::text`)[0]
	p := &planner{t: t, conn: w.Conn(t)}
	// A page, and a look into each part of the outbox for each transaction that was in progress: other tests have some too.
	late, err := strconv.Atoi(w.lines(t, `SELECT count(*)::text FROM pg_snapshot_xip($1::text::pg_snapshot)`, from)[0])
	require.NoError(t, err)
	most := 100 + 16*late
	for _, xid := range w.lines(t, `SELECT xid::text FROM reconciler.outbox GROUP BY xid HAVING count(*) > 1 ORDER BY xid`) {
		cost := map[string]int{}
		for name, nth := range map[string]int{"first": 1, "middle": rows / 2, "last": rows - page} {
			seq, err := strconv.ParseInt(w.lines(t, `SELECT seq::text FROM reconciler.outbox WHERE xid = $1::text::xid8 ORDER BY seq OFFSET $2 LIMIT 1`, xid, nth-1)[0], 10, 64)
			require.NoError(t, err)
			_, err = store.New(p).OutboxDelta(t.Context(), store.OutboxDeltaParams{FromSnapshot: from, ToSnapshot: to, AfterXid: xid, AfterSeq: seq, PageRows: page})
			require.ErrorIs(t, err, errExplained)
			cost[name] = p.blocks()
		}
		require.Less(t, max(cost["middle"], cost["last"], cost["first"]), most, "blocks for a page of %d rows, by where it is: %v\n%s", page, cost, p.plan)
	}
}
