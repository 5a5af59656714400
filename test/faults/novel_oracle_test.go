package faults_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// A definition decides which rows are wanted, from the moment on at which it is committed.
func TestModelKnowsDefinitions(t *testing.T) {
	t.Parallel()
	start := time.Now().Add(-time.Minute)
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	place := "t0"
	runs := func(key string, size int64) *row {
		return &row{Resource: "extra", Key: key, Place: &place, Running: true, Size: size, Version: 1}
	}
	define := func(seconds, variant int) change {
		return change{At: at(seconds), Seq: int64(seconds), Tab: tabDefinition, New: &row{Key: "extra", Variant: variant}}
	}
	m := newModel([]string{"t0"}, []change{
		{At: at(1), Seq: 1, Tab: "extra", New: runs("even", 2)}, {At: at(1), Seq: 2, Tab: "extra", New: runs("odd", 3)},
		define(10, variantEven), define(20, 0), define(30, variantNone),
	})
	even, odd := object{"t0", "extra", "even"}, object{"t0", "extra", "odd"}
	require.Equal(t, []moment{{at(1), true}, {at(30), false}}, m.Moments[even])
	require.Equal(t, []moment{{at(1), true}, {at(10), false}, {at(20), true}, {at(30), false}}, m.Moments[odd])
	require.True(t, m.unwanted(odd, at(5), at(15)))
	require.False(t, m.unwanted(even, at(5), at(15)), "a delete of it would be baseless")
}

// F189: no guard counts deletes that untrack() has ordered, and every guard counts those from before it and from after the next track().
func TestF189_OrderedDeletesPassTheGuard(t *testing.T) {
	t.Parallel()
	define := func(seconds float64, variant int) change {
		return change{At: at(seconds), Tab: tabDefinition, New: &row{Key: "num", Variant: variant}}
	}
	m := newModel([]string{"t0"}, []change{define(0, 0), define(10, variantNone), define(15, 0)})
	other := func(c call) call { return but(c, func(c *call) { c.Object.Key = "8" }) }
	breaks := func(seconds float64) []string {
		calls := []call{apply(2, 1), other(apply(2, 1)), remove(seconds), other(remove(seconds))}
		return whats(guardBreaks(m, calls, "t0", 1, at(100)))
	}
	require.Equal(t, []string{"I6 guard"}, breaks(9))
	require.Empty(t, breaks(10))
	require.Empty(t, breaks(14))
	require.Empty(t, breaks(16), "a call may still begin that was decided on before")
	require.Equal(t, []string{"I6 guard"}, breaks(18))
}

// The oracle of silence looks where something is wanted and could be called for.
func TestSilenceIsNoticed(t *testing.T) {
	t.Parallel()
	w := &world{timeline: newTimeline()}
	p := &process{started: true, exited: make(chan struct{}), began: time.Now().Add(-time.Hour)}
	w.replicas = []*replica{{world: w, name: "r0", current: p}}
	e := &endpoint{plan: targetPlan{Name: "t0"}}
	w.wishes.wish("t0")
	require.Zero(t, w.silentSince(e), "there was no call yet")
	c := w.journal.begin(call{Object: object{"t0", "num", "1"}})
	require.Zero(t, w.silentSince(e), "the call came after the wish")
	w.wishes.wish("t0")
	since := w.silentSince(e)
	require.True(t, since.After(c.Begin), "the call is not what is waited for")
	w.wishes.wish("t0")
	require.Equal(t, since, w.silentSince(e), "the first wish counts")
	w.timeline.ill(partServer)
	require.Zero(t, w.silentSince(e), "the server is away")
	w.timeline = newTimeline()
	p.began = time.Now()
	require.Zero(t, w.silentSince(e), "the process has just started")
	p.began = time.Now().Add(-time.Hour)
	w.drained = "t0"
	require.Zero(t, w.silentSince(e), "nothing is wanted there any more")
}

// F110: a finding that has nothing to do with the silence does not explain it.
func TestF110_NotEveryFindingExplainsASilence(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	var names string
	require.NoError(t, db.Pool.QueryRow(t.Context(), `SELECT string_agg(finding, ', ' ORDER BY n) FROM (VALUES
		(1, 'open_transactions', 'pid 7 has been open'), (2, 'old_snapshots', 'pid 7 reads'), (3, 'clock', 'it went back'), (4, 'connections', '98 of 100'),
		(5, 'locks', 'pid 7 defines'), (6, 'capture', 'resource extra: is disabled'), (7, 'capture', 'resource num: is disabled'),
		(8, 'objects', '1 object of txt blocked'), (9, 'objects', '1 object of num blocked'), (10, 'targets', 't0 is paused'), (11, 'loops', 'tick fails')
		) AS d(n, check_name, finding) WHERE `+explains).Scan(&names))
	require.Equal(t, "resource num: is disabled, 1 object of num blocked, t0 is paused, tick fails", names)
}

// What the server has dated is told from when it happened by the only offset that fits.
func TestTimesOfAClockThatJumpsAreActual(t *testing.T) {
	t.Parallel()
	w := &world{clock: new(pgtest.Clock)}
	now := time.Now()
	require.Equal(t, now, w.actual(now))
	for _, by := range offsets {
		ago := now.Add(-90 * time.Second)
		require.Equal(t, ago, w.actual(ago.Add(by)))
	}
}
