package kubernetes

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// formerly is what a call returns for an object that the target has applied in the ApplySet of another namespace.
func formerly(was, now string) string {
	return `it was applied while options.namespace was "` + was + `", which is "` + now + `" now: set it back, set options.adopt to take over what was ` +
		`applied before, or remove the label pgreconciler.github.io/object from the object to leave it there`
}

// renamed returns a driver of the same target with another options.namespace, and with what is remembered of its objects.
func (b *bed) renamed(t *testing.T, c *caller, namespace string, adopt bool) *caller {
	t.Helper()
	again := b.open(t, c.target, driver.Options{"namespace": namespace, "adopt": adopt})
	for key, memory := range c.memory {
		again.memory[key] = memory
	}
	return again
}

// F164: with another options.namespace, no object is forgotten that the target has, and none is made twice.
func TestF164_AnotherNamespaceForgetsNothing(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.open(t, "prod", nil)
	job := within(b.namespace, configMap("c", one("1")))
	c.done(t, "web", configMap("a", one("1")))
	c.done(t, "api", configMap("b", one("1")))
	c.done(t, "job", job)
	other := b.newNamespace(t)

	moved := b.renamed(t, c, other, false)
	for range 2 {
		requireOut(t, driver.VerdictBackoff, "ConfigMap a in "+b.namespace+": "+formerly(b.namespace, other), moved.apply(t, "web", configMap("a", one("2"))))
		requireOut(t, driver.VerdictBackoff, "ConfigMap b in "+b.namespace+": "+formerly(b.namespace, other), moved.delete(t, "api"))
		requireOut(t, driver.VerdictBackoff, "ConfigMap c in "+b.namespace+": "+formerly(b.namespace, other), moved.apply(t, "job", job))
	}
	require.Nil(t, b.get(t, configMaps, other, "a"), "nothing is made before what is there is dealt with")
	require.Equal(t, one("1"), b.data(t, "a"))
	require.Equal(t, one("1"), b.data(t, "b"))
	changes, err := moved.Driver.(driver.Differ).DiffDelete(t.Context(), moved.ref("api")) //nolint:forcetypeassert // it is one
	require.NoError(t, err)
	require.Equal(t, []driver.Change{{Object: "ConfigMap b in " + b.namespace, Note: "refused: " + formerly(b.namespace, other)}}, changes)

	back := b.renamed(t, moved, b.namespace, false)
	back.done(t, "web", configMap("a", one("2")))
	requireDone(t, back.delete(t, "api"))
	back.done(t, "job", job)
	require.Empty(t, back.drifted(t))
	require.Equal(t, one("2"), b.data(t, "a"))
	require.Nil(t, b.data(t, "b"))
}

// F164: what is adopted from the former namespace passes the guard where it goes.
func TestF164_AdoptionMovesWhatWasAppliedInAnotherNamespace(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.open(t, "prod", nil)
	job := within(b.namespace, configMap("c", one("1")))
	c.done(t, "web", configMap("a", one("1")))
	c.done(t, "api", configMap("b", one("1")))
	c.done(t, "job", job)
	other := b.newNamespace(t)

	moved := b.renamed(t, c, other, true)
	owner := &allowance{left: 0}
	moved.owner = owner
	requireOut(t, driver.VerdictUnapproved, "objects that the spec no longer names would be deleted: 1, ConfigMap a in "+b.namespace+
		" the first, and the guard allows no more deletes now", moved.apply(t, "web", configMap("a", one("1"))))
	require.Equal(t, one("1"), b.data(t, "a"))
	owner.left = 1
	moved.done(t, "web", configMap("a", one("1")))
	require.NotNil(t, b.get(t, configMaps, other, "a"))
	require.Nil(t, b.data(t, "a"))
	requireDone(t, moved.delete(t, "api"))
	require.Nil(t, b.data(t, "b"))
	moved.done(t, "job", job)
	require.Empty(t, moved.drifted(t), "what stays where it is belongs to the ApplySet of the new namespace")
}

// F164: the ApplySet of the former namespace tells a target's own objects from those of the database that it was copied from.
func TestF164_ACopyInAnotherNamespaceHasNothingToMove(t *testing.T) {
	t.Parallel()
	for _, adopt := range []bool{false, true} {
		b := newBed(t)
		c := b.open(t, "prod", nil)
		c.start(t, driver.Home{ID: "1", System: "7", Database: "shop"})
		c.done(t, "web", configMap("a", one("1")))
		c.done(t, "api", configMap("b", one("1")))
		other := b.newNamespace(t)
		dump := b.renamed(t, c, other, adopt)
		dump.start(t, driver.Home{ID: "1", System: "7", Database: "copy"})
		dump.done(t, "web", configMap("a", one("2")))
		require.NotNil(t, b.get(t, configMaps, other, "a"))
		requireDone(t, dump.delete(t, "api"))
		require.Equal(t, one("1"), b.data(t, "a"))
		require.Equal(t, one("1"), b.data(t, "b"))
		require.Empty(t, c.drifted(t))
	}
}

// F164: where no member that is remembered lies in the former namespace, that is not known, and nothing is forgotten either.
func TestF164_TheFormerNamespaceNeedNotBeKnown(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.open(t, "prod", nil)
	elsewhere, other := b.newNamespace(t), b.newNamespace(t)
	c.done(t, "web", within(elsewhere, configMap("a", one("1"))))
	set := b.get(t, configMaps, b.namespace, "reconciler-prod").GetLabels()[labelSet]
	for _, adopt := range []bool{false, true} { // a copy of the database may have changed it, too
		moved := b.renamed(t, c, other, adopt)
		requireOut(t, driver.VerdictBackoff, "ConfigMap a in "+elsewhere+": this target has applied it, and it belongs to another ApplySet now ("+set+
			"): if options.namespace was changed, set it back; or delete the object, or remove the label pgreconciler.github.io/object from the object "+
			"to leave it there", moved.delete(t, "web"))
		require.NotNil(t, b.get(t, configMaps, elsewhere, "a"))
	}
}

// F164: a member is left where it is if its mark is taken off.
func TestF164_AMemberOfAFormerNamespaceIsLeftThereOnRequest(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.open(t, "prod", nil)
	c.done(t, "web", configMap("a", one("1")))
	other := b.newNamespace(t)
	moved := b.renamed(t, c, other, false)
	require.Equal(t, driver.VerdictBackoff, moved.apply(t, "web", configMap("a", one("2"))).Verdict)
	b.edit(t, configMaps, "a", "kubectl-label", `{"metadata": {"labels": {"pgreconciler.github.io/object": null}}}`)
	moved.done(t, "web", configMap("a", one("2")))
	require.NotNil(t, b.get(t, configMaps, other, "a"))
	require.Equal(t, one("1"), b.data(t, "a"))
	require.Empty(t, moved.drifted(t))
}
