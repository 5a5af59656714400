package kubernetes

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// becomesDone applies an object until that is done; until then it waits, and does not fail.
func (c *caller) becomesDone(t *testing.T, call func() driver.Outcome) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	require.NoError(t, pgtest.Poll(ctx, callPatience, func() error {
		switch out := call(); out.Verdict {
		case driver.VerdictDone:
			return nil
		case driver.VerdictWaiting:
			return out.Err
		default:
			t.Fatalf("it is %s: %v", out.Verdict, out.Err)
			return errors.New("unreachable")
		}
	}))
}

func namespace(name string) map[string]any {
	return map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": name}}
}

func within(namespace string, manifest map[string]any) map[string]any {
	manifest["metadata"].(map[string]any)["namespace"] = namespace //nolint:forcetypeassert // it is one
	return manifest
}

// definition defines a kind Widget in a group of the test's.
func definition(group string) map[string]any {
	return map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "widgets." + group},
		"spec": map[string]any{
			"group": group, "scope": "Namespaced", "names": map[string]any{"kind": "Widget", "plural": "widgets", "singular": "widget"},
			"versions": []any{map[string]any{
				"name": "v1", "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
			}},
		},
	}
}

func widget(group, name string) map[string]any {
	return map[string]any{"apiVersion": group + "/v1", "kind": "Widget", "metadata": map[string]any{"name": name}, "size": 1}
}

func TestNamespaceAndItsContentInOneRow(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.open(t, "prod", driver.Options{"protected": []any{}})
	name := b.namespace + "-more"
	c.done(t, "web", within(name, configMap("a", one("1"))), namespace(name))
	require.NotNil(t, b.get(t, configMaps, name, "a"))
	require.Empty(t, c.drifted(t))
	b.settle(t, name)
	c.becomesDone(t, func() driver.Outcome { return c.delete(t, "web") })
	require.Nil(t, b.get(t, namespaces, "", name))
}

func TestNamespaceFromAnotherRowIsWaitedFor(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.open(t, "prod", nil)
	name := b.namespace + "-late"
	out := c.apply(t, "web", within(name, configMap("a", one("1"))))
	requireOut(t, driver.VerdictWaiting, "ConfigMap a in "+name+": the namespace does not exist", out)
	require.Positive(t, out.After)
	c.done(t, "space", namespace(name))
	c.done(t, "web", within(name, configMap("a", one("1"))))
	require.NotNil(t, b.get(t, configMaps, name, "a"))
}

func TestKindFromAnotherRowIsWaitedFor(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.open(t, "prod", driver.Options{"protected": []any{}})
	group := b.namespace + ".example.com"
	widgets := schema.GroupVersionResource{Group: group, Version: "v1", Resource: "widgets"}
	requireOut(t, driver.VerdictWaiting, "Widget."+group+" w: the cluster has no kind Widget."+group+" in version v1", c.apply(t, "web", widget(group, "w")))
	c.done(t, "kind", definition(group))
	c.becomesDone(t, func() driver.Outcome { return c.apply(t, "web", widget(group, "w")) })
	require.NotNil(t, b.get(t, widgets, b.namespace, "w"))
	require.Empty(t, c.drifted(t))
	b.edit(t, widgets, "w", "kubectl-edit", `{"size": 2}`)
	require.Equal(t, []string{"web"}, c.drifted(t), "objects of custom kinds are compared, too")

	c.becomesDone(t, func() driver.Outcome { return c.delete(t, "kind") })
	requireDone(t, c.delete(t, "web")) // its object went with the kind
}

func TestKindAndItsObjectInOneRow(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.open(t, "prod", driver.Options{"protected": []any{}})
	group := b.namespace + ".example.org"
	c.becomesDone(t, func() driver.Outcome { return c.apply(t, "web", widget(group, "w"), definition(group)) })
	require.Empty(t, c.drifted(t))
	c.becomesDone(t, func() driver.Outcome { return c.delete(t, "web") })
	require.Nil(t, b.get(t, definitions, "", "widgets."+group))
}

func TestApplySetLivesInTheNamespaceThatARowCreates(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	name := b.namespace + "-own"
	c := b.open(t, "prod", driver.Options{"namespace": name})
	out := c.apply(t, "web", configMap("a", one("1")))
	require.Equal(t, driver.VerdictWaiting, out.Verdict, "error: %v", out.Err)
	c.done(t, "space", namespace(name))
	c.done(t, "web", configMap("a", one("1")))
	require.NotNil(t, b.get(t, configMaps, name, "reconciler-prod"))
	require.Equal(t, []string{"space"}, c.drifted(t), "the namespace came before the ApplySet")
	c.done(t, "space", namespace(name))
	require.Empty(t, c.drifted(t))
}

func TestADeleteIsDoneWhenTheObjectIsGone(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.open(t, "prod", nil)
	c.done(t, "web", configMap("a", one("1")), configMap("b", one("1")))
	b.edit(t, configMaps, "a", "somebody", `{"metadata": {"finalizers": ["example.com/x"]}}`)
	const waiting = ": it is being deleted (finalizers: example.com/x)"
	require.Empty(t, c.drifted(t), "a finalizer is no drift")
	b.remove(t, configMaps, "a")
	require.Equal(t, []string{"web"}, c.drifted(t), "it goes")
	for range 2 {
		requireOut(t, driver.VerdictWaiting, "ConfigMap a in "+b.namespace+waiting, c.apply(t, "web", configMap("b", one("2"))))
	}
	require.Equal(t, one("2"), b.data(t, "b"))
	requireOut(t, driver.VerdictWaiting, "ConfigMap a in "+b.namespace+": it is being deleted, and is created anew when it is gone "+
		"(finalizers: example.com/x)", c.apply(t, "web", configMap("a", one("3")), configMap("b", one("2"))))
	requireOut(t, driver.VerdictWaiting, "ConfigMap a in "+b.namespace+waiting, c.delete(t, "web"))
	b.edit(t, configMaps, "a", "somebody", `{"metadata": {"finalizers": null}}`)
	c.becomesDone(t, func() driver.Outcome { return c.delete(t, "web") })
	require.Nil(t, b.data(t, "a"))
	require.Nil(t, b.data(t, "b"))
}

func TestDeletesOfProtectedKindsWaitForApproval(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.open(t, "prod", nil)
	name := b.namespace + "-kept"
	c.done(t, "web", namespace(name), within(name, configMap("a", one("1"))))
	const reason = " would be deleted, and its kind is protected (options.protected)"
	requireOut(t, driver.VerdictUnapproved, "Namespace "+name+reason, c.delete(t, "web"))
	require.NotNil(t, b.get(t, namespaces, "", name))
	require.NotNil(t, b.get(t, configMaps, name, "a"), "a delete removes nothing before all of it is approved")
	c.approved = true
	out := c.delete(t, "web")
	require.Equal(t, driver.VerdictWaiting, out.Verdict, "error: %v", out.Err)
	require.Nil(t, b.get(t, configMaps, name, "a"))
	b.settle(t, name)
	c.becomesDone(t, func() driver.Outcome { return c.delete(t, "web") })
}

func TestSpecThatLosesProtectedMembersWaitsForApproval(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.open(t, "prod", nil)
	name := b.namespace + "-kept"
	c.done(t, "web", namespace(name), within(name, configMap("a", one("1"))), configMap("b", one("1")))
	left := configMap("b", one("2"))
	requireOut(t, driver.VerdictUnapproved, "Namespace "+name+" would be deleted, and its kind is protected (options.protected)", c.apply(t, "web", left))
	require.Equal(t, one("2"), b.data(t, "b"))
	require.NotNil(t, b.get(t, namespaces, "", name))
	require.Nil(t, b.get(t, configMaps, name, "a"), "members that are not protected go")
	c.approved = true
	out := c.apply(t, "web", left)
	require.Equal(t, driver.VerdictWaiting, out.Verdict, "error: %v", out.Err)
	b.settle(t, name)
	c.becomesDone(t, func() driver.Outcome { return c.apply(t, "web", left) })
}

func TestImmutableFieldIsReplacedWhereTheRowAsksForIt(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.open(t, "prod", nil)
	fixed := func(value string) map[string]any {
		manifest := configMap("a", one(value))
		manifest["immutable"] = true
		return manifest
	}
	c.done(t, "web", fixed("1"))
	out := c.apply(t, "web", fixed("2"))
	require.Equal(t, driver.VerdictTerminal, out.Verdict, "error: %v", out.Err)
	require.ErrorContains(t, out.Err, "field is immutable")
	require.ErrorContains(t, out.Err, `: to have it deleted and created anew, set the annotation pgreconciler.github.io/replace: "true" in the manifest`)
	require.Equal(t, one("1"), b.data(t, "a"))

	replacing := fixed("2")
	replacing["metadata"].(map[string]any)["annotations"] = map[string]any{markReplace: "true"} //nolint:forcetypeassert // it is one
	c.becomesDone(t, func() driver.Outcome { return c.apply(t, "web", replacing) })
	require.Equal(t, one("2"), b.data(t, "a"))
	require.Empty(t, c.drifted(t))
}

func TestManifestWithAnUnknownFieldIsBlocked(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.open(t, "prod", nil)
	manifest := deployment("web", 1)
	manifest["spec"].(map[string]any)["replicsa"] = 3 //nolint:forcetypeassert // it is one
	out := c.apply(t, "web", manifest)
	require.Equal(t, driver.VerdictTerminal, out.Verdict, "error: %v", out.Err)
	require.ErrorContains(t, out.Err, ".spec.replicsa: field not declared in schema")
	require.Nil(t, b.get(t, deployments, b.namespace, "web"))
}

func TestNamespaceThatIsDeletedOutside(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.open(t, "prod", nil)
	name := b.namespace + "-gone"
	c.done(t, "web", namespace(name), within(name, configMap("a", one("1"))))
	require.NoError(t, b.admin.Resource(namespaces).Delete(t.Context(), name, metav1.DeleteOptions{}))
	if b.fake != nil {
		requireOut(t, driver.VerdictWaiting, "Namespace "+name+": it is being deleted, and is created anew when it is gone",
			c.apply(t, "web", namespace(name), within(name, configMap("a", one("1")))))
	}
	b.settle(t, name)
	c.becomesDone(t, func() driver.Outcome {
		return c.apply(t, "web", namespace(name), within(name, configMap("a", one("1"))))
	})
	require.NotNil(t, b.get(t, configMaps, name, "a"))
}
