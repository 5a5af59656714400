package drivertest

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// diff asks what an apply would change, as the ledger's owner would make it, and holds the answer against the contract.
func (b *bench) diff(t *testing.T, differ driver.Differ, key, spec string) []driver.Change {
	t.Helper()
	obj := b.object("apps", key, spec)
	obj.Memory = b.memory("apps", key)
	return b.looks(t, func(ctx context.Context) ([]driver.Change, error) { return differ.Diff(ctx, obj) })
}

func (b *bench) diffDelete(t *testing.T, differ driver.Differ, key string) []driver.Change {
	t.Helper()
	ref := b.ref("apps", key)
	ref.Memory = b.memory("apps", key)
	return b.looks(t, func(ctx context.Context) ([]driver.Change, error) { return differ.DiffDelete(ctx, ref) })
}

func (b *bench) looks(t *testing.T, look func(context.Context) ([]driver.Change, error)) []driver.Change {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
	defer cancel()
	before := b.Count(t)
	changes, err := look(ctx)
	require.NoError(t, err)
	require.Equal(t, before, b.Count(t), "looking changed the target")
	require.LessOrEqual(t, len(changes), driver.ChangesMost)
	for _, c := range changes {
		require.False(t, b.holdsSecret(c.String()), "a change holds a secret")
		require.LessOrEqual(t, max(len(c.From), len(c.To)), driver.ChangeBytesMost)
		require.NotEmpty(t, c.From+c.To+c.Note, "a change of nothing: %v", c)
	}
	return changes
}

func differs(t *testing.T, b *bench) {
	differ, ok := b.Driver.(driver.Differ)
	if !ok {
		return
	}
	const first, second = `{"image": "web:1", "replicas": 3}`, `{"image": "web:2", "replicas": 3}`
	require.NotEmpty(t, b.diff(t, differ, "web", first), "the object is absent")
	require.Empty(t, b.diffDelete(t, differ, "web"), "the object is absent")

	b.requireDone(t, b.apply(t, "apps", "web", first))
	b.requireDone(t, b.apply(t, "apps", "we", first))
	require.Empty(t, b.diff(t, differ, "web", first), "it was applied")
	require.True(t, showsField(b.diff(t, differ, "web", second), "web:1", "web:2"), "no field goes from web:1 to web:2")
	require.NotEmpty(t, b.diffDelete(t, differ, "web"), "the object is there")
	b.requireHas(t, "apps", "web", first)
	b.requireInSync(t, "apps", "web")

	b.requireDone(t, b.apply(t, "apps", "web", second))
	require.Empty(t, b.diff(t, differ, "web", second), "it was applied")
	if b.Touch != nil {
		b.Touch(t, "apps", "web")
		require.NotEmpty(t, b.diff(t, differ, "web", second), "it was changed in the target")
	}
	b.requireDone(t, b.delete(t, "apps", "web"))
	require.Empty(t, b.diffDelete(t, differ, "web"), "it was deleted")
	require.Empty(t, b.diff(t, differ, "we", first), "its neighbour was not")

	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the target was handed over"))
	b.requireUnknown(t, ctx, differ, "we", second)
}

// showsField reports whether a field changes from one text to another.
func showsField(changes []driver.Change, from, to string) bool {
	for _, c := range changes {
		if c.Field != "" && strings.Contains(c.From, from) && strings.Contains(c.To, to) {
			return true
		}
	}
	return false
}

// requireUnknown fails unless a Differ returns errors.
func (b *bench) requireUnknown(t *testing.T, ctx context.Context, differ driver.Differ, key, spec string) {
	t.Helper()
	obj, ref := b.object("apps", key, spec), b.ref("apps", key)
	obj.Memory, ref.Memory = b.memory("apps", key), b.memory("apps", key)
	changes, err := differ.Diff(ctx, obj)
	require.NoError(t, b.outcomeError(driver.Backoff(err)))
	require.Error(t, err, "what was not looked at has no known changes")
	require.Empty(t, changes)
	changes, err = differ.DiffDelete(ctx, ref)
	require.NoError(t, b.outcomeError(driver.Backoff(err)))
	require.Error(t, err, "what was not looked at has no known changes")
	require.Empty(t, changes)
}

func diffHidesSecrets(t *testing.T, b *bench) {
	differ, ok := b.Driver.(driver.Differ)
	if !ok || b.Hide == nil {
		return
	}
	const first, second = "first-hidden-value", "second-hidden-value"
	b.Secrets = append(b.Secrets, first, second)
	object := func(secret string) driver.Object {
		spec := b.Hide("apps", "web", secret)
		obj := driver.Object{Ref: b.ref("apps", "web"), Spec: json.RawMessage(spec), Hash: driver.HashSpec([]byte(spec))}
		obj.Memory = b.memory("apps", "web")
		return obj
	}
	diff := func(secret string) []driver.Change {
		return b.looks(t, func(ctx context.Context) ([]driver.Change, error) { return differ.Diff(ctx, object(secret)) })
	}
	require.NotEmpty(t, diff(first), "the object is absent")
	b.requireDone(t, b.applyObject(t, t.Context(), object(first)))
	require.Empty(t, diff(first), "it was applied")
	require.NotEmpty(t, diff(second), "the value is another one")
	require.NotEmpty(t, b.diffDelete(t, differ, "web"), "the object is there")
}

func diffAway(t *testing.T, b *bench) {
	differ, ok := b.Driver.(driver.Differ)
	if !ok || b.Away == nil {
		return
	}
	b.requireDone(t, b.apply(t, "apps", "web", `{"n": 1}`))
	back := b.Away(t)
	ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
	defer cancel()
	b.requireUnknown(t, ctx, differ, "web", `{"n": 2}`)
	b.requireUnknown(t, ctx, differ, "web", `{"n": 1}`)
	back()
	require.Empty(t, b.diff(t, differ, "web", `{"n": 1}`))
	b.requireHas(t, "apps", "web", `{"n": 1}`)
}
