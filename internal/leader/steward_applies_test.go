package leader

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/outbox"
)

// trips counts the statements that make sure of the leadership by themselves, and the pipelines that expand changes.
type trips struct{ alone, together atomic.Int64 }

func (c *trips) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if strings.Contains(data.SQL, "LeaderFence") {
		c.alone.Add(1)
	}
	return ctx
}

func (*trips) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (c *trips) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	if slices.ContainsFunc(data.Batch.QueuedQueries, func(q *pgx.QueuedQuery) bool { return strings.Contains(q.SQL, "ApplyExpanded") }) {
		c.together.Add(1)
	}
	return ctx
}

func (*trips) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

func (*trips) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// What changed in base tables is marked in a transaction for each apply. A leader that comes after some time may find many
// of them, and round trips for each would keep them all waiting to be open.
func TestChangesOfManyAppliesAreExpandedTogether(t *testing.T) {
	t.Parallel()
	b := leftByASteward(t)
	for i := range 40 {
		b.release(1 + i%2)
	}
	b.eventually("all of it has a revision", b.covered)
	count := &trips{}
	config, err := pgxpool.ParseConfig(b.url)
	require.NoError(t, err)
	config.ConnConfig.Tracer = count
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	s := b.steward(func(s *Steward) { s.Pool = pool })
	b.background(func(ctx context.Context) error { return s.Run(ctx, 1, nil) })

	b.opened(40)
	require.Equal(t, "20 of a,b; 20 of c", b.marksOfApplies())
	require.Zero(t, count.alone.Load())
	// Far from one for each apply.
	require.Positive(t, count.together.Load())
	require.Less(t, count.together.Load(), int64(20))
}

// A row that cannot be evaluated breaks a pipeline off. What had not come is marked all the same, and nothing for another apply.
func TestExpansionOfManyAppliesWithARowThatCannotBeEvaluated(t *testing.T) {
	t.Parallel()
	b := leftByASteward(t)
	b.exec(`CREATE OR REPLACE VIEW crew AS SELECT m.id, m.team_id, CASE WHEN t.id = 2 THEN (1 / (t.id - t.id))::text ELSE m.region END AS region, t.name AS team
		FROM members m JOIN teams t ON t.id = m.team_id`)
	for i := range 6 {
		b.release(1 + i/2%2)
	}
	b.eventually("all of it has a revision", b.covered)
	b.works(1)
	b.opened(6)
	require.Equal(t, "4 of a,b; 2 of c", b.marksOfApplies())
}

// leftByASteward is a bed with a joined resource, whose steward has kept a cursor and stopped.
func leftByASteward(t *testing.T) *bed {
	t.Helper()
	b := newBed(t)
	b.exec(joinedApps)
	b.listen(func(l *outbox.Listener) { l.Off = true })
	b.lead()
	stop := b.works(1)
	b.eventually("the first cursor is kept", func() bool { return b.keeps() != "" })
	require.NoError(t, stop())
	return b
}

// release is an apply that changes a team.
func (b *bed) release(team int) {
	b.t.Helper()
	b.exec(fmt.Sprintf(`BEGIN; SELECT reconciler.begin_apply('release'); UPDATE teams SET name = name || 'x' WHERE id = %d; COMMIT`, team))
}

// opened waits until so many applies are open.
func (b *bed) opened(applies int) {
	b.t.Helper()
	b.eventually("all are open", func() bool {
		return b.text(`SELECT count(*)::text FROM reconciler.applies WHERE opened_at IS NOT NULL`) == strconv.Itoa(applies)
	})
}

// marksOfApplies says how many applies marked which objects of members' teams.
func (b *bed) marksOfApplies() string {
	b.t.Helper()
	return b.text(`SELECT string_agg(n || ' of ' || keys, '; ' ORDER BY keys) FROM (
		SELECT keys, count(*) AS n FROM (
			SELECT string_agg(DISTINCT o.key, ',' ORDER BY o.key) AS keys FROM reconciler.applies a JOIN reconciler.outbox o ON o.xid = ANY (a.xids)
			WHERE o.key IS NOT NULL GROUP BY a.id) AS of_each GROUP BY keys) AS all_of_them`)
}
