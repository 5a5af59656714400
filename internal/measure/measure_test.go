package measure

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
)

func TestSpread(t *testing.T) {
	t.Parallel()
	values := []float64{3, 1, 2}
	require.Equal(t, Spread{Median: 2, Min: 1, Max: 3}, SpreadOf(values))
	require.Equal(t, []float64{3, 1, 2}, values, "rounds stay in their order")
	require.Equal(t, Spread{Median: 5, Min: 5, Max: 5}, SpreadOf([]float64{5}))
	require.Equal(t, Spread{Median: 2.5, Min: 1, Max: 4}, SpreadOf([]float64{4, 3, 2, 1}))
	require.Equal(t, "1234 (0.50 to 20000)", Spread{Median: 1234.4, Min: .5, Max: 20_000}.String())
	require.Equal(t, "10.2", Short(10.24))
}

func TestRatiosAreThoseOfEachRound(t *testing.T) {
	t.Parallel()
	require.Equal(t, []float64{.5, .5, .5}, Ratios([]float64{1, 10, 100}, []float64{2, 20, 200}))
}

func TestPercentile(t *testing.T) {
	t.Parallel()
	times := make([]time.Duration, 100)
	for i := range times {
		times[i] = time.Duration(i+1) * time.Millisecond
	}
	require.InDelta(t, 51, Percentile(times, .5), 0)
	require.InDelta(t, 100, Percentile(times, .99), 0)
	require.InDelta(t, 100, Percentile(times, 1), 0)
	require.InDelta(t, 1, Percentile(times[:1], .99), 0)
}

func TestSinkTellsWhoWaits(t *testing.T) {
	t.Parallel()
	var sink Sink
	require.Equal(t, driver.Done(), sink.Apply(t.Context(), driver.Object{Ref: driver.Ref{Key: "1"}}), "nobody waits")
	called := sink.Expect("1")
	other := sink.Expect("2")
	before := time.Now()
	for range 2 { // the second call finds nobody
		require.Equal(t, driver.Done(), sink.Apply(t.Context(), driver.Object{Ref: driver.Ref{Key: "1"}}))
	}
	require.False(t, (<-called).Before(before))
	require.Empty(t, other)
	require.Empty(t, called)
	require.Equal(t, driver.Done(), sink.Delete(t.Context(), driver.Ref{Key: "2"}))
	require.NoError(t, sink.Close(t.Context()))
}
