package kubernetes

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pgreconciler/reconciler/internal/driver"
)

func TestMembersFollowTheList(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.open(t, "prod", nil)
	c.done(t, "web", configMap("a", one("1")), configMap("b", one("1")))
	c.done(t, "api", configMap("c", one("1")))
	require.Equal(t, one("1"), b.data(t, "a"))
	require.Equal(t, one("1"), b.data(t, "b"))

	c.done(t, "web", configMap("a", map[string]any{"b": "2"}), configMap("d", one("2")))
	require.Equal(t, map[string]any{"b": "2"}, b.data(t, "a"), "a field that the manifest has lost is gone")
	require.Nil(t, b.data(t, "b"), "a manifest that the list has lost is gone")
	require.Equal(t, one("2"), b.data(t, "d"))
	require.Equal(t, one("1"), b.data(t, "c"))
	require.Empty(t, c.drifted(t))

	requireDone(t, c.delete(t, "web"))
	require.Nil(t, b.data(t, "a"))
	require.Nil(t, b.data(t, "d"))
	require.Equal(t, one("1"), b.data(t, "c"))
}

func TestMembersCarryMarks(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.open(t, "prod", nil)
	manifest := configMap("a", one("1"))
	manifest["metadata"].(map[string]any)["labels"] = map[string]any{"team": "x", "app.kubernetes.io/managed-by": "Helm"} //nolint:forcetypeassert // it is one
	c.done(t, "eu/web", manifest)
	found := b.get(t, configMaps, b.namespace, "a")
	set := b.get(t, configMaps, b.namespace, "reconciler-prod")
	id := set.GetLabels()["applyset.kubernetes.io/id"]
	require.Equal(t, map[string]string{
		"team": "x", "app.kubernetes.io/managed-by": "reconciler", "applyset.kubernetes.io/part-of": id,
		"pgreconciler.github.io/resource": resourceMark("apps"), "pgreconciler.github.io/object": objectMark(c.ref("eu/web")),
	}, found.GetLabels())
	require.Equal(t, "apps eu%2Fweb", found.GetAnnotations()["pgreconciler.github.io/row"])

	c.done(t, "web", deployment("web", 1))
	set = b.get(t, configMaps, b.namespace, "reconciler-prod")
	require.Equal(t, "ConfigMap,Deployment.apps", set.GetAnnotations()["applyset.kubernetes.io/contains-group-kinds"])
	require.Equal(t, "reconciler/v1", set.GetAnnotations()["applyset.kubernetes.io/tooling"])
	require.Equal(t, setID("reconciler-prod", b.namespace, "ConfigMap", ""), id)
}

// The value stands in kubectl's own tests.
func TestApplySetIsNamedAsKubectlNamesIt(t *testing.T) {
	t.Parallel()
	require.Equal(t, "applyset-0eFHV8ySqp7XoShsGvyWFQD3s96yqwHmzc4e0HR1dsY-v1", setID("my-set", "test", "Secret", ""))
}

func TestNothingIsSentThatWouldChangeNothing(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.open(t, "prod", nil)
	before := []any{configMap("a", one("1")), configMap("b", one("1"))}
	c.done(t, "web", before...)
	a := b.get(t, configMaps, b.namespace, "a").GetResourceVersion()
	c.done(t, "web", before...)
	c.done(t, "web", before[0], configMap("b", one("2")))
	require.Equal(t, a, b.get(t, configMaps, b.namespace, "a").GetResourceVersion())
	require.Equal(t, one("2"), b.data(t, "b"))
}

func TestForeignObjectIsLeftAlone(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.create(t, configMaps, b.namespace, configMap("a", map[string]any{"x": "theirs"}))
	before := b.get(t, configMaps, b.namespace, "a")
	c := b.open(t, "prod", nil)
	requireOut(t, driver.VerdictBackoff, "ConfigMap a in "+b.namespace+": it exists, and was not created by this target: "+
		"remove it, or set options.adopt to take it over", c.apply(t, "web", configMap("a", one("1")), configMap("b", one("1"))))
	require.Equal(t, before, b.get(t, configMaps, b.namespace, "a"))
	require.Equal(t, one("1"), b.data(t, "b"), "a member that fails stops no other")

	requireDone(t, c.delete(t, "web"))
	require.Equal(t, before, b.get(t, configMaps, b.namespace, "a"))
	require.Nil(t, b.data(t, "b"))
	require.Empty(t, c.drifted(t))

	adopting := b.open(t, "prod", driver.Options{"adopt": true})
	adopting.done(t, "web", configMap("a", one("1")))
	require.Equal(t, map[string]any{"a": "1", "x": "theirs"}, b.data(t, "a"))
	requireDone(t, adopting.delete(t, "web"))
	require.Nil(t, b.data(t, "a"))
}

// An object with a copy of one of our labels is not ours.
func TestObjectWithAPartOfTheMarksIsLeftAlone(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.open(t, "prod", nil)
	theirs := configMap("a", map[string]any{"x": "theirs"})
	theirs["metadata"].(map[string]any)["labels"] = map[string]any{labelObject: objectMark(c.ref("web"))} //nolint:forcetypeassert // it is one
	b.create(t, configMaps, b.namespace, theirs)
	require.Equal(t, driver.VerdictBackoff, c.apply(t, "web", configMap("a", one("1"))).Verdict)
	requireDone(t, c.delete(t, "web"))
	require.Equal(t, map[string]any{"x": "theirs"}, b.data(t, "a"))
}

func TestAnotherTargetsObjectIsLeftAlone(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	first, second := b.open(t, "one", nil), b.open(t, "two", nil)
	first.done(t, "web", configMap("a", one("1")))
	id := b.get(t, configMaps, b.namespace, "a").GetLabels()[labelPartOf]
	requireOut(t, driver.VerdictBackoff, "ConfigMap a in "+b.namespace+": it belongs to another ApplySet or target ("+id+"): "+
		"remove it there, or set options.adopt", second.apply(t, "web", configMap("a", one("2"))))
	requireDone(t, second.delete(t, "web"))
	require.Equal(t, one("1"), b.data(t, "a"))
}

func TestTwoRowsCannotHaveOneObject(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.open(t, "prod", nil)
	c.done(t, "web", configMap("a", one("1")))
	requireOut(t, driver.VerdictBackoff, `ConfigMap a in `+b.namespace+`: two rows name it: apps "web" has it, and apps "api" asks for it`,
		c.apply(t, "api", configMap("a", one("2"))))
	requireDone(t, c.delete(t, "web"))
	c.done(t, "api", configMap("a", one("2")))
	require.Equal(t, one("2"), b.data(t, "a"))
}

func (c *caller) start(t *testing.T, home driver.Home) {
	t.Helper()
	c.Driver.(driver.Starter).Start(t.Context(), home) //nolint:forcetypeassert // it is one
}

// belongsTo is what a target is told that is not the owner.
func (b *bed) belongsTo(owner, caller driver.Home) string {
	return fmt.Sprintf("the ConfigMap reconciler-prod in %s, and every object that it stands for, belongs to %s, not to %s: give this target "+
		"another name, or stop the other owner and hand the objects over: kubectl -n %[1]s annotate configmap reconciler-prod "+
		"pgreconciler.github.io/owner-", b.namespace, driver.Owner{Target: "prod", Home: owner}, driver.Owner{Target: "prod", Home: caller})
}

// A copy of the database has the marks, the members and the options of the original, and touches nothing of its.
func TestF163_AnotherOwnerIsRefused(t *testing.T) {
	t.Parallel()
	shop := driver.Home{ID: "1", System: "7", Database: "shop"}
	for name, other := range map[string]driver.Home{
		"DumpInAnotherDatabase": {ID: "1", System: "7", Database: "copy"},
		"DumpOnAnotherServer":   {ID: "1", System: "8", Database: "shop"},
		"MadeAnew":              {ID: "2", System: "7", Database: "shop"},
		"AnAgent":               {ID: "1", System: "7", Database: "shop", Agent: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t)
			first, second := b.open(t, "prod", nil), b.open(t, "prod", driver.Options{"adopt": true})
			first.start(t, shop)
			second.start(t, other)
			first.done(t, "web", configMap("a", one("1")))
			second.memory = first.memory
			text := b.belongsTo(shop, other)
			requireOut(t, driver.VerdictUnreachable, text, second.apply(t, "web", configMap("a", one("2"))))
			requireOut(t, driver.VerdictUnreachable, text, second.delete(t, "web"))
			for _, err := range second.Driver.(driver.Lister).List(t.Context(), []string{"apps"}) { //nolint:forcetypeassert // it is one
				require.EqualError(t, err, text)
			}
			require.Equal(t, one("1"), b.data(t, "a"))
			first.done(t, "web", configMap("a", one("3")))

			b.edit(t, configMaps, "reconciler-prod", "kubectl-annotate", `{"metadata":{"annotations":{"pgreconciler.github.io/owner":null}}}`)
			second.done(t, "web", configMap("a", one("4")))
			require.Equal(t, one("4"), b.data(t, "a"), "a person has handed it over")
			first.start(t, shop)
			requireOut(t, driver.VerdictUnreachable, b.belongsTo(other, shop), first.apply(t, "web", configMap("a", one("1"))))
		})
	}
}

func TestWhatATargetMayTouchIsCheckedBeforeAnyCall(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	other := b.newNamespace(t)
	inOther := configMap("b", one("1"))
	inOther["metadata"].(map[string]any)["namespace"] = other //nolint:forcetypeassert // it is one
	c := b.open(t, "prod", driver.Options{"namespaces": []any{b.namespace}, "kinds": []any{"ConfigMap", "Namespace"}})
	for text, manifest := range map[string]any{
		"ConfigMap b in " + other + ": this target may not touch the namespace (options.namespaces)": inOther,
		"Deployment.apps web: this target may not touch the kind (options.kinds)":                    deployment("web", 1),
		"Namespace " + other + ": this target may not touch the namespace (options.namespaces)": map[string]any{
			"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": other},
		},
		"ConfigMap a: the spec names it twice": configMap("a", one("2")),
		"ConfigMap reconciler-prod in " + b.namespace + ": it lists what belongs to this target, and is the driver's": configMap("reconciler-prod", one("2")),
	} {
		requireOut(t, driver.VerdictTerminal, text, c.apply(t, "web", configMap("a", one("1")), manifest))
		require.Nil(t, b.data(t, "a"))
	}
	c.done(t, "web", configMap("a", one("1")))
}

func TestObjectOfTheClusterHasNoNamespace(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	role := map[string]any{
		"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": map[string]any{"name": b.namespace + "-role"}, "rules": []any{},
	}
	c := b.open(t, "prod", driver.Options{"namespaces": []any{b.namespace}})
	requireOut(t, driver.VerdictTerminal, "ClusterRole.rbac.authorization.k8s.io "+b.namespace+"-role: this target may touch some namespaces only "+
		"(options.namespaces), and the object is in none: name its kind in options.kinds", c.apply(t, "web", role))
	c = b.open(t, "prod", nil)
	c.done(t, "web", role)
	require.Empty(t, c.drifted(t))
	role["metadata"].(map[string]any)["namespace"] = b.namespace //nolint:forcetypeassert // it is one
	requireOut(t, driver.VerdictTerminal, "ClusterRole.rbac.authorization.k8s.io "+b.namespace+"-role in "+b.namespace+": objects of this kind have "+
		"no namespace: take it out of the manifest", c.apply(t, "web", role))
	requireDone(t, c.delete(t, "web"))
}

func TestTooManyMembersAreRefusedBeforeAnyCall(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.open(t, "prod", nil)
	many := make([]any, 1000)
	for i := range many {
		many[i] = configMap("a"+string(rune('a'+i%26))+string(rune('a'+i/26%26))+string(rune('a'+i/676)), one("1"))
	}
	out := c.apply(t, "web", many...)
	require.Equal(t, driver.VerdictTerminal, out.Verdict)
	require.ErrorContains(t, out.Err, "1000 manifests are too many to be remembered")
	list, err := b.admin.Resource(configMaps).Namespace(b.namespace).List(t.Context(), metav1.ListOptions{LabelSelector: labelPartOf})
	require.NoError(t, err)
	require.Empty(t, list.Items)
}
