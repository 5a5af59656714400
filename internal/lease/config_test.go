package lease

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pace"
)

func TestTTL(t *testing.T) {
	t.Parallel()
	require.Equal(t, 9500*time.Millisecond, Timing{}.withDefaults().ttl(0))
	require.Equal(t, 9500*time.Millisecond, Timing{}.withDefaults().ttl(5*time.Second))
	require.Equal(t, 34500*time.Millisecond, Timing{}.withDefaults().ttl(30*time.Second))
}

func TestConfig(t *testing.T) {
	t.Parallel()

	t.Run("HasDefaultsForEveryTiming", func(t *testing.T) {
		t.Parallel()
		require.Equal(t, Timing{
			Heartbeat: 4 * time.Second, Retry: 500 * time.Millisecond, MinTTL: 9500 * time.Millisecond, Live: 9500 * time.Millisecond,
			Gone: time.Minute, BackoffMin: pace.Of(time.Second), BackoffMax: pace.Of(30 * time.Second), StopGrace: 5 * time.Second,
		}, New(Config{}).cfg.Timing)
		set := Timing{Heartbeat: 1, Retry: 2, MinTTL: 3, Live: 4, Gone: 5, BackoffMin: 6, BackoffMax: 7, StopGrace: 8}
		require.Equal(t, set, New(Config{Timing: set}).cfg.Timing)
	})

	t.Run("IsRefusedWithAllItsProblems", func(t *testing.T) {
		t.Parallel()
		m := New(Config{
			Instance: "host-1", Timing: Timing{MinTTL: time.Second},
			Targets: []Target{{Name: "x"}, {CallTimeout: -1}, {Name: "x"}},
		})
		require.EqualError(t, m.Start(t.Context()), `ownership cannot start: Pool is missing
RunTarget is missing
Instance "host-1" is not a UUID in lower case
MinTTL 1s is less than two heartbeats of 4s
Targets[1] has no name
Targets[1]: CallTimeout -1ns is negative
Targets[2]: there are two targets of the name "x"`)
		require.NoError(t, m.Stop(t.Context()))
	})

	t.Run("IsFineWithWhatMustBeGiven", func(t *testing.T) {
		t.Parallel()
		cfg := Config{
			Pool: new(pgxpool.Pool), Instance: "00000000-0000-4000-8000-000000000001",
			RunTarget: func(context.Context, *Grant) error { return nil },
		}
		require.NoError(t, cfg.withDefaults().validate())
	})
}
