package drivertest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// list returns everything that List yields, and fails if it yields a key twice.
func (b *bench) list(t *testing.T, lister driver.Lister, resource string) map[string][]driver.Hash {
	t.Helper()
	found := map[string][]driver.Hash{}
	for listed, err := range lister.List(t.Context(), resource) {
		require.NoError(t, err)
		require.Equal(t, resource, listed.Resource)
		require.NotContains(t, found, listed.Key)
		found[listed.Key] = listed.Hashes
	}
	return found
}

func listsExactly(t *testing.T, b *bench) {
	lister, ok := b.Driver.(driver.Lister)
	if !ok {
		return
	}
	require.Empty(t, b.list(t, lister, "apps"))
	var want []string
	for i := range 30 {
		b.requireDone(t, b.apply(t, "apps", fmt.Sprint("k", i), `{}`))
		want = append(want, fmt.Sprint("k", i))
	}
	for _, name := range HostileNames() {
		if !b.mayRefuse(name) {
			b.requireDone(t, b.apply(t, "apps", name, `{}`))
			want = append(want, name)
		}
	}
	b.requireDone(t, b.apply(t, "jobs", "other", `{}`))
	b.requireDone(t, b.apply(t, "apps/jobs", "other", `{}`))
	b.requireDone(t, b.delete(t, "apps", "k7"))
	want = slices.DeleteFunc(want, func(key string) bool { return key == "k7" })

	require.ElementsMatch(t, want, slices.Collect(maps.Keys(b.list(t, lister, "apps"))))
	require.Equal(t, []string{"other"}, slices.Collect(maps.Keys(b.list(t, lister, "jobs"))))
	require.Equal(t, []string{"other"}, slices.Collect(maps.Keys(b.list(t, lister, "apps/jobs"))))
	require.Empty(t, b.list(t, lister, "app"))
	require.Empty(t, b.list(t, lister, ".."))
}

// C49: a spec that is in sync is known as such, and no other spec is taken for it.
func listsHashes(t *testing.T, b *bench) {
	lister, ok := b.Driver.(driver.Lister)
	if !ok {
		return
	}
	for i, spec := range shapes {
		b.requireDone(t, b.apply(t, "apps", fmt.Sprint(i), spec))
	}
	found := b.list(t, lister, "apps")
	require.Len(t, found, len(shapes))
	for i, spec := range shapes {
		hashes := found[fmt.Sprint(i)]
		if len(hashes) == 0 {
			continue // cannot tell, which is allowed
		}
		require.Contains(t, hashes, driver.HashSpec([]byte(spec)), "spec %s", spec)
		for j, other := range shapes {
			if i != j && !lookAlike(spec, other) {
				require.NotContains(t, hashes, driver.HashSpec([]byte(other)), "spec %s, other %s", spec, other)
			}
		}
	}
}

// lookAlike says that one spec is the string whose text is the other one: as raw text they are the same.
func lookAlike(a, b string) bool {
	return string(driver.StringSpec([]byte(a+"\n"))) == b || string(driver.StringSpec([]byte(b+"\n"))) == a
}

func listStops(t *testing.T, b *bench) {
	lister, ok := b.Driver.(driver.Lister)
	if !ok {
		return
	}
	for i := range 5 {
		b.requireDone(t, b.apply(t, "apps", fmt.Sprint(i), `{}`))
	}
	seen := 0
	for _, err := range lister.List(t.Context(), "apps") {
		require.NoError(t, err)
		if seen++; seen == 2 {
			break
		}
	}
	require.Equal(t, 2, seen)

	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the target was handed over"))
	var last error
	for _, err := range lister.List(ctx, "apps") {
		require.NoError(t, last, "List went on after an error")
		last = err
	}
	require.Error(t, last, "a listing that was cut short looks complete")
	require.Len(t, b.list(t, lister, "apps"), 5)
}

func batches(t *testing.T, b *bench) {
	batcher, ok := b.Driver.(driver.BatchApplier)
	if !ok {
		return
	}
	require.Empty(t, batcher.ApplyBatch(t.Context(), nil))
	b.requireDone(t, b.apply(t, "apps", "1", `{"old": true}`))
	var objs []driver.Object
	for i, name := range HostileNames() {
		objs = append(objs, b.object("apps", fmt.Sprint(i), fmt.Sprintf(`{"n": %d}`, i)), b.object("apps", name, `"`+fmt.Sprint(i)+`"`))
		objs = append(objs, b.object("jobs", fmt.Sprint(i), shapes[i%len(shapes)]))
	}
	for range 2 { // the second time everything is there already
		outcomes := batcher.ApplyBatch(t.Context(), objs)
		require.Len(t, outcomes, len(objs))
		count := 0
		for i, outcome := range outcomes {
			require.NoError(t, b.outcomeError(outcome))
			if b.mayRefuse(objs[i].Key) {
				require.Equal(t, driver.VerdictTerminal, outcome.Verdict, "key %q, error: %v", objs[i].Key, outcome.Err)
				continue
			}
			b.requireDone(t, outcome)
			b.requireHas(t, objs[i].Resource, objs[i].Key, string(objs[i].Spec))
			count++
		}
		require.Equal(t, count, b.Count(t))
	}

	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the target was handed over"))
	cut := []driver.Object{b.object("apps", "1", `{"late": true}`), b.object("late", "2", `{}`)}
	outcomes := batcher.ApplyBatch(ctx, cut)
	require.Len(t, outcomes, len(cut))
	for _, outcome := range outcomes {
		require.NoError(t, b.outcomeError(outcome))
		b.requireCut(t, outcome)
	}
	b.requireAbsent(t, "late", "2")
}
