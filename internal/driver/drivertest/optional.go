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

// list returns everything of a resource that List yields.
func (b *bench) list(t *testing.T, lister driver.Lister, resource string) map[string]driver.Listed {
	t.Helper()
	return b.listAll(t, lister, resource)[resource]
}

// listAll returns everything that List yields, by resource and key, and fails if it yields an object twice. A driver may yield more than
// it was asked for, but no resource that nothing was applied of.
func (b *bench) listAll(t *testing.T, lister driver.Lister, resources ...string) map[string]map[string]driver.Listed {
	t.Helper()
	found := map[string]map[string]driver.Listed{}
	for listed, err := range lister.List(t.Context(), resources) {
		require.NoError(t, err)
		if found[listed.Resource] == nil {
			found[listed.Resource] = map[string]driver.Listed{}
		}
		require.NotContains(t, found[listed.Resource], listed.Key)
		found[listed.Resource][listed.Key] = listed
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

	all := b.listAll(t, lister, "apps", "..", "jobs", "apps/jobs")
	require.ElementsMatch(t, []string{"apps", "jobs", "apps/jobs"}, slices.Collect(maps.Keys(all)))
	require.ElementsMatch(t, want, slices.Collect(maps.Keys(all["apps"])))
	require.Equal(t, []string{"other"}, slices.Collect(maps.Keys(all["jobs"])))
	require.Equal(t, []string{"other"}, slices.Collect(maps.Keys(all["apps/jobs"])))
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
	hash := func(key, spec string) driver.Hash { return b.object("apps", key, spec).Hash }
	for i, spec := range shapes {
		key := fmt.Sprint(i)
		hashes := found[key].Hashes
		if len(hashes) == 0 || found[key].Memory != nil {
			continue // cannot tell, which is allowed; or tells by the memory
		}
		require.Contains(t, hashes, hash(key, spec), "spec %s", spec)
		for j, other := range shapes {
			if i != j && !lookAlike(spec, other) {
				require.NotContains(t, hashes, hash(key, other), "spec %s, other %s", spec, other)
			}
		}
	}
}

// listsMemories is listsHashes for a driver that lists objects by their memory.
func listsMemories(t *testing.T, b *bench) {
	specs := map[string]string{} // by memory
	for _, spec := range shapes {
		b.requireDone(t, b.apply(t, "apps", "web", spec))
		memory := b.requireInSync(t, "apps", "web")
		if memory == nil {
			return
		}
		if other, known := specs[string(memory)]; known {
			require.True(t, lookAlike(spec, other), "specs %s and %s have the same memory", spec, other)
		}
		specs[string(memory)] = spec
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
	for _, err := range lister.List(t.Context(), []string{"apps"}) {
		require.NoError(t, err)
		if seen++; seen == 2 {
			break
		}
	}
	require.Equal(t, 2, seen)

	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the target was handed over"))
	var last error
	for _, err := range lister.List(ctx, []string{"apps"}) {
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
	var specs []string
	add := func(resource, key, spec string) {
		objs, specs = append(objs, b.object(resource, key, spec)), append(specs, spec)
	}
	for i, name := range HostileNames() {
		add("apps", fmt.Sprint(i), fmt.Sprintf(`{"n": %d}`, i))
		add("apps", name, `"`+fmt.Sprint(i)+`"`)
		add("jobs", fmt.Sprint(i), shapes[i%len(shapes)])
	}
	for range 2 { // the second time everything is there already
		outcomes := b.batchNow(t.Context(), batcher, objs)
		require.Len(t, outcomes, len(objs))
		count := 0
		for i, outcome := range outcomes {
			require.NoError(t, b.outcomeError(outcome))
			if b.mayRefuse(objs[i].Key) {
				require.Equal(t, driver.VerdictTerminal, outcome.Verdict, "key %q, error: %v", objs[i].Key, outcome.Err)
				continue
			}
			b.requireDone(t, outcome)
			b.requireHas(t, objs[i].Resource, objs[i].Key, specs[i])
			count++
		}
		require.Equal(t, count, b.Count(t))
	}

	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the target was handed over"))
	cut := []driver.Object{b.object("apps", "1", `{"late": true}`), b.object("late", "2", `{}`)}
	outcomes := b.batchNow(ctx, batcher, cut)
	require.Len(t, outcomes, len(cut))
	for _, outcome := range outcomes {
		require.NoError(t, b.outcomeError(outcome))
		b.requireCut(t, outcome)
	}
	b.requireAbsent(t, "late", "2")
}
