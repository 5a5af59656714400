package drivertest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// ExerciseWaiting runs the part of the suite for a driver that returns driver.Waiting until its target confirms a result. The
// fixture has Confirm. Run Exercise, too, with the options under which the driver does not wait.
func ExerciseWaiting(t *testing.T, newFixture func(t *testing.T) Fixture) {
	t.Helper()
	for _, part := range []struct {
		name string
		run  func(*testing.T, *bench)
	}{
		{"WaitsUntilApplyIsConfirmed", waitsForApply},
		{"WaitsUntilDeleteIsConfirmed", waitsForDelete},
		{"AnOldConfirmationDoesNotCount", oldConfirmation},
		{"ObjectsWaitByThemselves", waitsInBatches},
	} {
		t.Run(part.name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, newFixture)
			require.NotNil(t, b.Confirm, "the fixture cannot confirm")
			part.run(t, b)
		})
	}
}

func (b *bench) requireWaiting(t *testing.T, o driver.Outcome) {
	t.Helper()
	require.Equal(t, driver.VerdictWaiting, o.Verdict, "error: %v", o.Err)
	require.Positive(t, o.After, "a driver that waits says for how long")
}

func waitsForApply(t *testing.T, b *bench) {
	for range 3 { // looking does not confirm
		b.requireWaiting(t, b.apply(t, "apps", "web", `{"n": 1}`))
	}
	b.requireHas(t, "apps", "web", `{"n": 1}`)
	b.Confirm(t, "apps", "web")
	for range 2 {
		b.requireDone(t, b.apply(t, "apps", "web", `{"n": 1}`))
	}
}

func waitsForDelete(t *testing.T, b *bench) {
	b.requireDone(t, b.delete(t, "apps", "never seen"))
	b.requireWaiting(t, b.apply(t, "apps", "web", `{"n": 1}`))
	b.Confirm(t, "apps", "web")
	for range 2 {
		b.requireWaiting(t, b.delete(t, "apps", "web"))
	}
	b.requireAbsent(t, "apps", "web")
	b.Confirm(t, "apps", "web")
	b.requireDone(t, b.delete(t, "apps", "web"))
}

// What was confirmed of one spec says nothing of the next one, nor of the object when it comes back after a delete: neither at the first
// look, nor at a later one.
func oldConfirmation(t *testing.T, b *bench) {
	waits := func(look func() driver.Outcome) {
		for range 2 {
			b.requireWaiting(t, look())
		}
	}
	first := func() driver.Outcome { return b.apply(t, "apps", "web", `{"n": 1}`) }
	second := func() driver.Outcome { return b.apply(t, "apps", "web", `{"n": 2}`) }
	remove := func() driver.Outcome { return b.delete(t, "apps", "web") }
	for _, look := range []func() driver.Outcome{first, second, remove, second} {
		waits(look)
		b.Confirm(t, "apps", "web")
		b.requireDone(t, look())
	}
	waits(remove)
	waits(second)
}

func waitsInBatches(t *testing.T, b *bench) {
	batcher, ok := b.Driver.(driver.BatchApplier)
	if !ok {
		return
	}
	objs := []driver.Object{b.object("apps", "1", `1`), b.object("apps", "2", `2`), b.object("jobs", "1", `3`)}
	for _, outcome := range b.batchNow(t.Context(), batcher, objs) {
		b.requireWaiting(t, outcome)
	}
	b.Confirm(t, "apps", "2")
	outcomes := b.batchNow(t.Context(), batcher, objs)
	require.Len(t, outcomes, len(objs))
	b.requireWaiting(t, outcomes[0])
	b.requireDone(t, outcomes[1])
	b.requireWaiting(t, outcomes[2])
}
