package drivertest

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// applyNow makes a call as the ledger's owner does: with what is remembered of the object, and what comes of it is remembered.
func (b *bench) applyNow(ctx context.Context, obj driver.Object) driver.Outcome {
	obj.Memory = b.memory(obj.Resource, obj.Key)
	out := b.Driver.Apply(ctx, obj)
	b.remember(obj.Resource, obj.Key, out.Memory)
	return out
}

func (b *bench) deleteNow(ctx context.Context, ref driver.Ref) driver.Outcome {
	ref.Memory = b.memory(ref.Resource, ref.Key)
	out := b.Driver.Delete(ctx, ref)
	if out.Verdict == driver.VerdictDone {
		b.forget(ref.Resource, ref.Key)
	} else {
		b.remember(ref.Resource, ref.Key, out.Memory)
	}
	return out
}

func (b *bench) batchNow(ctx context.Context, batcher driver.BatchApplier, objs []driver.Object) []driver.Outcome {
	for i, obj := range objs {
		objs[i].Memory = b.memory(obj.Resource, obj.Key)
	}
	outcomes := batcher.ApplyBatch(ctx, objs)
	for i, out := range outcomes[:min(len(outcomes), len(objs))] {
		b.remember(objs[i].Resource, objs[i].Key, out.Memory)
	}
	return outcomes
}

func (b *bench) memory(resource, key string) []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.memories[[2]string{resource, key}]
}

// remember keeps what was remembered before if memory is nil.
func (b *bench) remember(resource, key string, memory []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if memory != nil {
		b.memories[[2]string{resource, key}] = memory
	}
}

func (b *bench) forget(resource, key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.memories, [2]string{resource, key})
}

// requireInSync fails if the driver lists the object with another memory than it has had remembered.
func (b *bench) requireInSync(t *testing.T, resource, key string) (memory []byte) {
	t.Helper()
	if lister, ok := b.Driver.(driver.Lister); ok {
		if memory = b.list(t, lister, resource)[key].Memory; memory != nil {
			require.Equal(t, b.memory(resource, key), memory, "what is listed as in sync is not what was remembered")
		}
	}
	return memory
}

// keepsMemory applies {"n": 1} for a test of what is remembered of it, which it returns: nil for a driver that keeps nothing.
func (b *bench) keepsMemory(t *testing.T) []byte {
	t.Helper()
	b.requireDone(t, b.apply(t, "apps", "web", `{"n": 1}`))
	return b.memory("apps", "web")
}

func (b *bench) requireApplied(t *testing.T, spec string) {
	t.Helper()
	b.requireDone(t, b.apply(t, "apps", "web", spec))
	b.requireHas(t, "apps", "web", spec)
	require.Equal(t, 1, b.Count(t))
	b.requireInSync(t, "apps", "web")
}

// A restored database may know of the object, and not what was remembered of it; so does a process that died before it wrote it down.
func survivesLostMemory(t *testing.T, b *bench) {
	if b.keepsMemory(t) == nil {
		return
	}
	for _, spec := range []string{`{"n": 1}`, `{"n": 2}`, `{"m": []}`} {
		b.forget("apps", "web")
		b.requireApplied(t, spec)
	}
	b.forget("apps", "web")
	b.requireDone(t, b.delete(t, "apps", "web"))
	b.requireAbsent(t, "apps", "web")
	require.Zero(t, b.Count(t))
}

// What a call had remembered is lost when the process dies before it is written down. The next call has what was remembered before.
func survivesStaleMemory(t *testing.T, b *bench) {
	old := b.keepsMemory(t)
	if old == nil {
		return
	}
	b.requireApplied(t, `{"n": 2}`)
	for _, spec := range []string{`{"n": 2}`, `{"n": 3}`, `{"n": 1}`} {
		b.remember("apps", "web", old)
		b.requireApplied(t, spec)
		old = b.memory("apps", "web")
		b.requireApplied(t, `{"n": 2}`)
	}
	for range 2 { // the second time the object is gone already
		b.remember("apps", "web", old)
		b.requireDone(t, b.delete(t, "apps", "web"))
		b.requireAbsent(t, "apps", "web")
		require.Zero(t, b.Count(t))
	}
	b.remember("apps", "web", old) // of {"n": 1}
	b.requireApplied(t, `{"n": 1}`)
}
