package discard_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/discard"
	"github.com/pgreconciler/reconciler/internal/driver/drivertest"
	"github.com/pgreconciler/reconciler/internal/driver/fixtures"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T, opts driver.Options) driver.Driver {
	t.Helper()
	d, err := discard.Kind().Open("test", opts, driver.Env{})
	require.NoError(t, err)
	return d
}

func TestConformance(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]driver.Options{"AtOnce": {}, "Slow": {"latency": "1ms"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			drivertest.Exercise(t, func(t *testing.T) drivertest.Fixture { return fixtures.Discard(t, opts) })
		})
	}
}

func TestLatencyIsThatOfEachCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, began := open(t, driver.Options{"latency": "250ms"}), time.Now()
		require.Equal(t, driver.Done(), d.Apply(t.Context(), driver.Object{}))
		require.Equal(t, driver.Done(), d.Delete(t.Context(), driver.Ref{}))
		require.Equal(t, 500*time.Millisecond, time.Since(began))
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		outcome := d.Apply(ctx, driver.Object{})
		require.Equal(t, driver.VerdictBackoff, outcome.Verdict)
		require.ErrorIs(t, outcome.Err, context.DeadlineExceeded)
		require.Equal(t, 600*time.Millisecond, time.Since(began))
	})
}

func TestErrorRateIsThatOfCalls(t *testing.T) {
	t.Parallel()
	for rate, bounds := range map[float64][2]int{0: {0, 0}, 0.25: {2000, 3000}, 1: {10_000, 10_000}} {
		d, failed := open(t, driver.Options{"error_rate": rate}), 0
		for range 10_000 {
			outcome := d.Apply(t.Context(), driver.Object{})
			if outcome.Verdict != driver.VerdictDone {
				require.Equal(t, driver.VerdictBackoff, outcome.Verdict)
				require.EqualError(t, outcome.Err, "discarded, and reported as failed, as error_rate asks")
				failed++
			}
		}
		require.GreaterOrEqual(t, failed, bounds[0], "rate %v", rate)
		require.LessOrEqual(t, failed, bounds[1], "rate %v", rate)
	}
}

// C64.
func TestOpenReportsEveryProblem(t *testing.T) {
	t.Parallel()
	_, err := discard.Kind().Open("test", driver.Options{"latency": "2h", "error_rate": 1.5, "x": 1}, driver.Env{})
	require.Equal(t, driver.Problems{
		{Path: "options.latency", Text: "must be between 0s and 1h"},
		{Path: "options.error_rate", Text: "must be between 0 and 1"},
		{Path: "options.x", Text: "unknown option; known here: error_rate, latency"},
	}, err)
	_, err = discard.Kind().Open("test", driver.Options{"error_rate": "often"}, driver.Env{})
	require.Equal(t, driver.Problems{{Path: "options.error_rate", Text: "must be a number from 0 to 1, not this string"}}, err)
}
