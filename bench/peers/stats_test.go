package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestDelays(t *testing.T) {
	t.Parallel()
	zero := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(ms int) time.Time { return zero.Add(time.Duration(ms) * time.Millisecond) }
	commits := []sent{{change{1, 1}, at(0)}, {change{1, 2}, at(10)}, {change{2, 1}, at(20)}}
	deliveries := []delivery{{change{1, 2}, at(15)}, {change{1, 2}, at(99)}}

	require.Equal(t, []time.Duration{5 * time.Millisecond}, delays(false, commits, deliveries), "the first delivery of the version itself")
	require.Equal(t, []time.Duration{5 * time.Millisecond, 15 * time.Millisecond}, delays(true, commits, deliveries), "a newer version counts for an older one")
	require.Empty(t, delays(true, commits, nil))
}

func TestShort(t *testing.T) {
	t.Parallel()
	for want, v := range map[string]float64{"0.12": .123, "12.3": 12.34, "123": 123.4, "1,235": 1234.6, "1,000,007": 1000007} {
		require.Equal(t, want, short(v))
	}
}
