package drivertest

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// asksForApproval checks that a guarded part of an object stays until its removal is approved, by a delete or by a spec without it, and
// that an approval counts for one call.
func asksForApproval(t *testing.T, b *bench) {
	if b.Guard == nil {
		return
	}
	const spec = `{"image": "web:1"}`
	guarded := func() {
		t.Helper()
		text := b.Guard("apps", "web", spec)
		obj := driver.Object{Ref: b.ref("apps", "web"), Spec: json.RawMessage(text), Hash: driver.HashSpec([]byte(text))}
		b.requireDone(t, b.applyObject(t, t.Context(), obj))
	}
	apply := func(approved bool) driver.Outcome {
		t.Helper()
		obj := b.object("apps", "web", spec)
		obj.Approved = approved
		return b.applyObject(t, t.Context(), obj)
	}
	remove := func(approved bool) driver.Outcome {
		t.Helper()
		ref := b.ref("apps", "web")
		ref.Approved = approved
		return b.deleteRef(t, t.Context(), ref)
	}
	b.requireDone(t, b.apply(t, "apps", "we", spec))
	b.requireDone(t, b.delete(t, "apps", "we"))

	guarded()
	for range 2 {
		requireAsks(t, remove(false))
		b.requireInPlace(t, "apps", "web")
	}
	guarded()
	b.requireDone(t, remove(true))
	b.requireAbsent(t, "apps", "web")
	require.Zero(t, b.Count(t))

	guarded()
	for range 2 {
		requireAsks(t, apply(false))
		b.requireHas(t, "apps", "web", spec)
	}
	requireAsks(t, remove(false))
	b.requireDone(t, apply(true))
	b.requireHas(t, "apps", "web", spec)
	b.requireDone(t, remove(false))
	b.requireAbsent(t, "apps", "web")
}

func requireAsks(t *testing.T, o driver.Outcome) {
	t.Helper()
	require.Equal(t, driver.VerdictUnapproved, o.Verdict, "error: %v", o.Err)
}

func (b *bench) requireInPlace(t *testing.T, resource, key string) {
	t.Helper()
	_, ok := b.Read(t, resource, key)
	require.True(t, ok, "the target does not have %q of %q, though its removal was not approved", key, resource)
}
