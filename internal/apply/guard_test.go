package apply

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pgreconciler/reconciler/internal/config"
)

// testGuard has a clock that tests move.
func testGuard(limits config.GuardLimits, objects int64) (g *guard, clock *time.Time) {
	g = newGuard(limits, objects)
	clock = new(time.Unix(1_700_000_000, 0))
	g.now = func() time.Time { return *clock }
	return g, clock
}

func (g *guard) decides(n int64) bool {
	pass, _ := g.decide(n)
	return pass
}

// burst asks for deletes until the guard says no, and returns how many passed.
func (g *guard) burst(most int) int {
	for n := range most {
		if !g.take() {
			return n
		}
	}
	return most
}

// I6, C47: how many deletes of 100 (or so) objects pass within one window.
func TestGuardLetsPassWhatItsLimitsSay(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		guard   config.Guard
		objects int64
		pass    int
	}{
		"DefaultIsAFifth":          {config.Guard{}, 100, 20},
		"DefaultHasAFloorOfTen":    {config.Guard{}, 12, 10},
		"DefaultMayEmptyATinyOne":  {config.Guard{}, 3, 10},
		"Fraction":                 {config.Guard{MaxFraction: new(0.3)}, 10, 3},
		"ALoneDeletePasses":        {config.Guard{MaxFraction: new(0.01)}, 10, 1},
		"FractionZeroHoldsEach":    {config.Guard{MaxFraction: new(0.0)}, 100, 0},
		"CountHoldsWhereItIsLess":  {config.Guard{MaxDeletes: new(5)}, 100, 5},
		"CountZeroHoldsEach":       {config.Guard{MaxDeletes: new(0)}, 100, 0},
		"FractionHoldsWhereLess":   {config.Guard{MaxDeletes: new(50), MaxFraction: new(0.1)}, 100, 10},
		"FractionOneHoldsByCount":  {config.Guard{MaxDeletes: new(50), MaxFraction: new(1.0)}, 100, 50},
		"CountAboveEverythingElse": {config.Guard{MaxDeletes: new(1000), MaxFraction: new(1.0)}, 100, 1000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.guard.Window = time.Minute
			g, clock := testGuard(c.guard.Limits(), c.objects)
			require.EqualValues(t, c.pass, g.remaining())
			require.Equal(t, c.pass, g.burst(2000), "deletes that are under way do not raise the limit")
			g.count(-c.objects / 2)
			require.Zero(t, g.remaining(), "nor do those that are done")
			*clock = clock.Add(59 * time.Second)
			require.False(t, g.take(), "the window lasts a minute")
		})
	}
}

func TestGuardForgetsDeletesThatLeftTheWindow(t *testing.T) {
	t.Parallel()
	g, clock := testGuard(config.Guard{MaxFraction: new(0.2), Window: time.Minute}.Limits(), 100)
	require.Equal(t, 20, g.burst(100))
	g.count(-20)
	*clock = clock.Add(time.Minute)
	require.Zero(t, g.burst(100))
	*clock = clock.Add(time.Nanosecond)
	require.Equal(t, 16, g.burst(100), "a fifth of the 80 that are left")
}

// I9: a long window with millions of deletes costs no more memory.
func TestGuardKeepsItsCountSmall(t *testing.T) {
	t.Parallel()
	g, clock := testGuard(config.Guard{Window: 24 * time.Hour, MaxFraction: new(1.0)}.Limits(), 1_000_000)
	for range 100_000 {
		require.True(t, g.take())
		*clock = clock.Add(5 * time.Second)
	}
	require.LessOrEqual(t, len(g.recent), passBuckets+1)
	require.InDelta(t, 24*3600/5, g.passed, 24*3600/5/passBuckets+1)
}

// Parked deletes pass all or none.
func TestGuardDecidesOnManyAtOnce(t *testing.T) {
	t.Parallel()
	g, _ := testGuard(config.Guard{Window: time.Minute}.Limits(), 100)
	require.False(t, g.decides(21))
	require.EqualValues(t, 20, g.remaining(), "what was refused counts for nothing")
	require.True(t, g.decides(15))
	require.EqualValues(t, 5, g.remaining())
	require.False(t, g.decides(6))
	require.True(t, g.decides(0))
	require.True(t, g.decides(5))
	require.False(t, g.take())
}

// F11: what a guard let pass it says once, for the next one to count on from there.
func TestGuardCountsOnFromAnother(t *testing.T) {
	t.Parallel()
	limits := config.Guard{Window: time.Minute}.Limits()
	former, clock := testGuard(limits, 100)
	require.True(t, former.decides(2), "which is written with the decision")
	require.Equal(t, 3, former.burst(3))
	former.count(-3)
	deletes, objects := former.write()
	require.Equal(t, []int64{3, 100}, []int64{deletes, objects})
	deletes, _ = former.write()
	require.Zero(t, deletes)

	g, now := testGuard(limits, 95)
	*now = *clock
	g.remember(50*time.Second, 2, 100)
	g.remember(30*time.Second, 3, 98)
	g.remember(-time.Hour, 1, 95) // the server's clock was put back since
	require.EqualValues(t, 14, g.remaining(), "a fifth of the hundred that there were")
	*now = now.Add(11 * time.Second)
	require.EqualValues(t, 15, g.remaining(), "a fifth of 98, rounded down, less four")
	*now = now.Add(time.Minute)
	require.EqualValues(t, 19, g.remaining())
}

func TestGuardNeverCountsFewerThanNoObjects(t *testing.T) {
	t.Parallel()
	g, _ := testGuard(config.Guard{Window: time.Minute, MaxFraction: new(0.5)}.Limits(), 1)
	g.count(-5)
	g.count(4)
	require.EqualValues(t, 2, g.remaining())
}

// I6: whatever comes in whatever order, no window sees more deletes pass than the limit for the objects that it began
// with.
func TestGuardHoldsInEveryWindow(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		limits := config.GuardLimits{
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
			"objects come":  func(*rapid.T) { g.count(3); objects += 3 },
			"object leaves": func(*rapid.T) { g.count(-1); objects = max(0, objects-1) },
			"delete":        func(t *rapid.T) { allowed(t, 1, g.take()) },
			"deletes": func(t *rapid.T) {
				n := rapid.Int64Range(0, 20).Draw(t, "n")
				allowed(t, n, g.decides(n))
			},
			"": func(t *rapid.T) { require.LessOrEqual(t, g.remaining(), left(limits.Window)) },
		})
	})
}
