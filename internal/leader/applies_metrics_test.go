package leader

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// applies is how many there are in each state, as the leader's series say.
func (b *bed) applies() string {
	b.t.Helper()
	var states []string
	for _, state := range []string{"pending", "running", "degraded", "paused", "stopping", "stopped"} {
		for range int(b.series("applies", state)) {
			states = append(states, state)
		}
	}
	return strings.Join(states, " ")
}

func TestAppliesThatHaveNotEndedAreCountedWhileItLeads(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	for range 3 {
		b.exec(`SELECT reconciler.begin_apply('release')`)
	}
	s := b.steward(func(s *Steward) { s.testCountEvery, s.testAgain = 5*time.Millisecond, 5*time.Millisecond })
	stop := b.background(func(ctx context.Context) error { return s.Run(ctx, 1, nil) })
	b.eventually("three are counted", func() bool { return b.applies() == "pending pending pending" })
	b.exec(`UPDATE reconciler.applies SET state = 'paused', opened_at = now() WHERE id = 1`)
	b.exec(`UPDATE reconciler.applies SET state = 'failed', opened_at = now(), completed_at = now() WHERE id = 2`)
	b.eventually("what has ended is not, and what has another state is there", func() bool { return b.applies() == "pending paused" })

	b.exec(`ALTER TABLE reconciler.applies RENAME TO away`)
	b.exec(`UPDATE reconciler.away SET state = 'stopped' WHERE id = 1`)
	b.exec(`ALTER TABLE reconciler.away RENAME TO applies`)
	b.eventually("it goes on after an error", func() bool { return b.applies() == "pending stopped" })
	require.NoError(t, stop())
	require.Empty(t, b.applies(), "who does not lead counts none")
}

// A counter may miss an end when the leader changes, and never counts one twice.
func TestEndsOfAppliesAreCountedOnce(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.exec(joinedApps) // with a joined resource the steward keeps a cursor, and reads again what it had not done
	b.listen()
	leave := b.lead()
	stop := b.works(1)
	b.exec(`SELECT reconciler.begin_apply('of nothing')`)
	completed := func() float64 { return b.series("applies_ended_total", "completed") }
	b.eventually("its end is counted", func() bool { return completed() == 1 })
	require.NoError(t, stop())

	b.exec(`SELECT reconciler.begin_apply('of nothing, too')`)
	require.Equal(t, "true", b.text(`SELECT reconciler.open_apply($1, 1, 2, 1, 1000)::text`, instance))
	require.Equal(t, "completed", b.text(`SELECT image->>'state' FROM reconciler.outbox WHERE image->>'apply' = '2'`))
	b.eventually("the end has a revision", b.covered)
	require.NoError(t, leave())
	b.latest() // it may have been stopped before it told anybody of it
	b.exec(`UPDATE reconciler.leases SET term = 2 WHERE name = 'tick'`)
	require.ErrorContains(t, b.steward().Run(t.Context(), 1, nil), "term 1", "it leads no more, and cannot move the cursor")
	require.InDelta(t, 1, completed(), 0)
	stop = b.works(2)
	b.eventually("its end is counted, too", func() bool { return completed() == 2 })
	require.NoError(t, stop())
	stop = b.works(2)
	b.upTo(b.latest())
	require.NoError(t, stop())
	require.InDelta(t, 2, completed(), 0)
	require.Zero(t, b.series("applies_ended_total", "failed"))
}

// Applies are kept for months. Those that have not ended are found without a look at the others.
func TestCountingAppliesWalksItsIndex(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.exec(`INSERT INTO reconciler.applies (epoch, xid, xids, title, on_failure, strategy, soak, attempts, labels, state, opened_at, completed_at)
		SELECT 1, n::text::xid8, '{}', 'release', 'halt', 'rolling', '0', 10, '{}', 'completed', now(), now() FROM generate_series(1, 20000) AS n`)
	b.exec(`ANALYZE reconciler.applies`)
	require.Contains(t, b.text(`EXPLAIN (COSTS OFF, FORMAT JSON) SELECT state, count(*) AS applies FROM reconciler.applies WHERE completed_at IS NULL GROUP BY state`), `"applies_under_way"`)
}
