package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestDefaults(t *testing.T) {
	t.Parallel()
	cfg, err := defaults("postgres://somebody@localhost/somewhere")
	require.NoError(t, err)
	require.Len(t, cfg.Targets, 1)
	require.Equal(t, "consumer", cfg.Targets[0].Name)
	require.Zero(t, cfg.Targets[0].SyncInterval, "no sync on a timer falls into a measurement")
	require.Positive(t, cfg.Targets[0].Concurrency, "what the file does not say has its default")
	require.Positive(t, cfg.PollInterval)
	require.Less(t, cfg.PollInterval, time.Minute)
}
