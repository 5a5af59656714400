package guard

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// testGuard has a clock that tests move.
func testGuard(limits Limits, objects int64) (g *Guard, clock *time.Time) {
	g = New(limits, objects)
	clock = new(time.Unix(1_700_000_000, 0))
	g.now = func() time.Time { return *clock }
	return g, clock
}

func (g *Guard) decides(n int64) bool {
	pass, _ := g.Decide(n, 0)
	return pass
}

// burst asks for deletes until the guard says no, and returns how many passed.
func (g *Guard) burst(most int) int {
	for n := range most {
		if !g.Take(1) {
			return n
		}
	}
	return most
}

// I6, C47: how many deletes of 100 (or so) objects pass within one window.
func TestGuardLetsPassWhatItsLimitsSay(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		limits  Limits
		objects int64
		pass    int
	}{
		"DefaultIsAFifth":          {Limits{MaxDeletes: -1, MaxFraction: 0.2, Floor: 10}, 100, 20},
		"DefaultHasAFloorOfTen":    {Limits{MaxDeletes: -1, MaxFraction: 0.2, Floor: 10}, 12, 10},
		"DefaultMayEmptyATinyOne":  {Limits{MaxDeletes: -1, MaxFraction: 0.2, Floor: 10}, 3, 10},
		"Fraction":                 {Limits{MaxDeletes: -1, MaxFraction: 0.3, Floor: 1}, 10, 3},
		"ALoneDeletePasses":        {Limits{MaxDeletes: -1, MaxFraction: 0.01, Floor: 1}, 10, 1},
		"FractionZeroHoldsEach":    {Limits{MaxDeletes: -1, MaxFraction: 0, Floor: 0}, 100, 0},
		"CountHoldsWhereItIsLess":  {Limits{MaxDeletes: 5, MaxFraction: 0.2, Floor: 10}, 100, 5},
		"CountZeroHoldsEach":       {Limits{MaxDeletes: 0, MaxFraction: 0.2, Floor: 10}, 100, 0},
		"FractionHoldsWhereLess":   {Limits{MaxDeletes: 50, MaxFraction: 0.1, Floor: 1}, 100, 10},
		"FractionOneHoldsByCount":  {Limits{MaxDeletes: 50, MaxFraction: 1, Floor: 1}, 100, 50},
		"CountAboveEverythingElse": {Limits{MaxDeletes: 1000, MaxFraction: 1, Floor: 1}, 100, 1000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.limits.Window = time.Minute
			g, clock := testGuard(c.limits, c.objects)
			require.EqualValues(t, c.pass, g.Remaining())
			require.Equal(t, c.pass, g.burst(2000), "deletes that are under way do not raise the limit")
			g.Count(-c.objects / 2)
			require.Zero(t, g.Remaining(), "nor do those that are done")
			*clock = clock.Add(59 * time.Second)
			require.False(t, g.Take(1), "the window lasts a minute")
		})
	}
}

func TestGuardForgetsDeletesThatLeftTheWindow(t *testing.T) {
	t.Parallel()
	g, clock := testGuard(Limits{MaxDeletes: -1, MaxFraction: 0.2, Floor: 1, Window: time.Minute}, 100)
	require.Equal(t, 20, g.burst(100))
	g.Count(-20)
	*clock = clock.Add(time.Minute)
	require.Zero(t, g.burst(100))
	*clock = clock.Add(time.Nanosecond)
	require.Equal(t, 16, g.burst(100), "a fifth of the 80 that are left")
}

// I9: a long window with millions of deletes costs no more memory.
func TestGuardKeepsItsCountSmall(t *testing.T) {
	t.Parallel()
	g, clock := testGuard(Limits{MaxDeletes: -1, MaxFraction: 1, Floor: 1, Window: 24 * time.Hour}, 1_000_000)
	for range 100_000 {
		require.True(t, g.Take(1))
		*clock = clock.Add(5 * time.Second)
	}
	require.LessOrEqual(t, len(g.recent), passBuckets+1)
	require.InDelta(t, 24*3600/5, g.passed, 24*3600/5/passBuckets+1)
}

// Parked deletes pass all or none.
func TestGuardDecidesOnManyAtOnce(t *testing.T) {
	t.Parallel()
	g, _ := testGuard(Limits{MaxDeletes: -1, MaxFraction: 0.2, Floor: 10, Window: time.Minute}, 100)
	require.False(t, g.decides(21))
	require.EqualValues(t, 20, g.Remaining(), "what was refused counts for nothing")
	require.True(t, g.decides(15))
	require.EqualValues(t, 5, g.Remaining())
	require.False(t, g.decides(6))
	require.True(t, g.decides(0))
	require.True(t, g.decides(5))
	require.False(t, g.Take(1))
}

// F11: what a guard let pass it says once, for the next one to count on from there.
func TestGuardCountsOnFromAnother(t *testing.T) {
	t.Parallel()
	limits := Limits{MaxDeletes: -1, MaxFraction: 0.2, Floor: 10, Window: time.Minute}
	former, clock := testGuard(limits, 100)
	require.True(t, former.decides(2), "which is written with the decision")
	require.Equal(t, 3, former.burst(3))
	former.Count(-3)
	deletes, objects := former.Write()
	require.Equal(t, []int64{3, 100}, []int64{deletes, objects})
	deletes, _ = former.Write()
	require.Zero(t, deletes)

	g, now := testGuard(limits, 95)
	*now = *clock
	g.Remember(50*time.Second, 2, 100)
	g.Remember(30*time.Second, 3, 98)
	g.Remember(-time.Hour, 1, 95) // the server's clock was set back since
	require.EqualValues(t, 14, g.Remaining(), "a fifth of the hundred that there were")
	*now = now.Add(11 * time.Second)
	require.EqualValues(t, 15, g.Remaining(), "a fifth of 98, rounded down, less four")
	*now = now.Add(time.Minute)
	require.EqualValues(t, 19, g.Remaining())
}

func TestGuardNeverCountsFewerThanNoObjects(t *testing.T) {
	t.Parallel()
	g, _ := testGuard(Limits{MaxDeletes: -1, MaxFraction: 0.5, Floor: 1, Window: time.Minute}, 1)
	g.Count(-5)
	g.Count(4)
	require.EqualValues(t, 2, g.Remaining())
}

// I6: whatever comes in whatever order, no window sees more deletes pass than the limit for the objects that it began
// with.
func TestGuardHoldsInEveryWindow(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		limits := Limits{
			MaxDeletes:  rapid.IntRange(-1, 30).Draw(t, "max deletes"),
			MaxFraction: rapid.Float64Range(0, 1).Draw(t, "max fraction"),
			Floor:       rapid.IntRange(0, 10).Draw(t, "floor"),
			Window:      time.Minute,
		}
		objects := rapid.Int64Range(0, 100).Draw(t, "objects")
		g, clock := testGuard(limits, objects)
		type pass struct {
			at      time.Time
			objects int64
		}
		var passed []pass
		// The guard may forget a delete a hundredth of the window late, never early.
		left := func(window time.Duration) int64 {
			began, n := objects, int64(0)
			for _, p := range passed {
				if p.at.Before(clock.Add(-window)) {
					continue
				}
				if n++; n == 1 {
					began = max(began, p.objects)
				}
			}
			return max(0, limits.Limit(began)-n)
		}
		allowed := func(t *rapid.T, n int64, did bool) {
			if did {
				require.LessOrEqual(t, n, left(limits.Window))
				for range n {
					passed = append(passed, pass{*clock, objects})
				}
			} else {
				require.Greater(t, n, min(left(limits.Window), left(limits.Window+limits.Window/passBuckets)))
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"time passes": func(t *rapid.T) {
				*clock = clock.Add(time.Duration(rapid.Int64Range(0, int64(40*time.Second)).Draw(t, "for")))
			},
			"objects come":  func(*rapid.T) { g.Count(3); objects += 3 },
			"object leaves": func(*rapid.T) { g.Count(-1); objects = max(0, objects-1) },
			"delete":        func(t *rapid.T) { allowed(t, 1, g.Take(1)) },
			"removals": func(t *rapid.T) {
				n := rapid.Int64Range(0, 20).Draw(t, "n")
				allowed(t, n, g.Take(n))
			},
			"deletes": func(t *rapid.T) {
				n := rapid.Int64Range(0, 20).Draw(t, "n")
				allowed(t, n, g.decides(n))
			},
			"": func(t *rapid.T) { require.LessOrEqual(t, g.Remaining(), left(limits.Window)) },
		})
	})
}
