package drivertest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// reasonBytesMax is what the reason of an object's health may have.
const reasonBytesMax = 1000

// health asks about an object with what is remembered of it, and holds the answer against the contract.
func (b *bench) health(t *testing.T, reporter driver.ObjectHealthReporter, resource, key string, memory []byte) driver.ObjectHealth {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
	defer cancel()
	ref := b.ref(resource, key)
	ref.Memory = memory
	health, err := reporter.ObjectHealth(ctx, ref)
	if err != nil {
		require.NoError(t, b.outcomeError(driver.Backoff(err)))
		return driver.ObjectHealth{State: "not known"}
	}
	require.False(t, b.holdsSecret(health.Reason), "the health of an object holds a secret")
	switch health.State {
	case driver.Healthy:
		require.Empty(t, health.Reason, "the reason of an object that is healthy")
	case driver.Progressing, driver.Unhealthy:
		require.NotEmpty(t, health.Reason, "the reason of an object that is %s", health.State)
		require.LessOrEqual(t, len(health.Reason), reasonBytesMax, "bytes of a reason")
		require.True(t, utf8.ValidString(health.Reason) && !strings.ContainsRune(health.Reason, 0), "a reason that PostgreSQL would not store: %.200q", health.Reason)
	default:
		require.FailNow(t, "a health of an unknown state", "%q", health.State)
	}
	return health
}

// reportsObjects expects of an object that is absent or has failed that it is not healthy, and that its neighbours are none the worse.
func reportsObjects(t *testing.T, b *bench) {
	reporter, ok := b.Driver.(driver.ObjectHealthReporter)
	if !ok {
		return
	}
	now := func(resource, key string) driver.HealthState {
		t.Helper()
		return b.health(t, reporter, resource, key, b.memory(resource, key)).State
	}
	names := []string{"web", "we"}
	for _, name := range HostileNames() {
		if !b.mayRefuse(name) {
			names = append(names, name)
		}
	}
	require.NotEqual(t, driver.Healthy, now("apps", "web"), "it was never applied")
	for _, key := range names {
		b.requireDone(t, b.apply(t, "apps", key, `{"n": 1}`))
	}
	before := b.Count(t)
	states := map[string]driver.HealthState{}
	for _, key := range names {
		states[key] = now("apps", key)
		require.NotEqual(t, driver.Unhealthy, states[key], "%q was applied", key)
		b.health(t, reporter, "apps", key, nil) // lost
	}
	require.Equal(t, before, b.Count(t), "asking changed the target")

	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the target was handed over"))
	_, err := reporter.ObjectHealth(ctx, b.ref("apps", "web"))
	require.Error(t, err, "what was not asked is not healthy")

	if b.Break != nil {
		b.Break(t, "apps", "web")
		require.NotEqual(t, driver.Healthy, now("apps", "web"), "it has failed")
		for _, key := range names[1:] {
			require.Equal(t, states[key], now("apps", key), "%q has not failed", key)
		}
	}
	b.requireDone(t, b.delete(t, "apps", "we"))
	require.NotEqual(t, driver.Healthy, now("apps", "we"), "it was deleted")
}
