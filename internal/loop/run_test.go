package loop_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/loop"
	"github.com/pgreconciler/reconciler/internal/metrics"
)

func TestRunTakesTurnsWhenTheyAreDue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		failed, ends := errors.New("failed"), errors.New("it is over")
		m := loop.New(nil, metrics.New(prometheus.NewRegistry()))
		wake := make(chan struct{}, 1)
		began := time.Now()
		var at []time.Duration
		var failures []int64 // in a row, as reported before each turn
		err := m.Loop(loop.Tick, "").Run(t.Context(), loop.Schedule{
			First: 2 * time.Second, Wake: wake, AgainMax: 2 * time.Second,
			Ends: func(err error) bool { return errors.Is(err, ends) },
			Turn: func(context.Context) (time.Duration, error) {
				at = append(at, time.Since(began))
				n := int64(0)
				for _, f := range m.Failing(0) {
					n += f.Failures
				}
				failures = append(failures, n)
				switch len(at) {
				case 1:
					return time.Second, nil
				case 2, 3, 4, 5:
					return 0, failed
				case 6:
					time.AfterFunc(time.Minute, func() { wake <- struct{}{} })
					return -1, nil
				default:
					return 0, ends
				}
			},
		})
		require.ErrorIs(t, err, ends)
		const second = time.Second
		require.Equal(t, []time.Duration{2 * second, 3 * second, 3*second + second/2, 4*second + second/2, 6*second + second/2, 8*second + second/2, 68*second + second/2}, at)
		require.Equal(t, []int64{0, 0, 1, 2, 3, 4, 0}, failures)
	})
}

// A loop that waits ends with its context, and is not taken for one that does not come back.
func TestRunEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := loop.New(nil, metrics.New(prometheus.NewRegistry()))
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		go m.Run(ctx)
		turns := 0
		require.NoError(t, m.Loop(loop.Tick, "").Run(ctx, loop.Schedule{Turn: func(context.Context) (time.Duration, error) {
			turns++
			return -1, nil
		}}))
		require.Equal(t, 1, turns)
		require.Empty(t, m.Failing(0))
		synctest.Wait()
	})
}
