package kubernetes

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/kubernetes/fakeapi"
)

var secrets = configMaps.GroupVersion().WithResource("secrets")

// diff returns what applying an object with these manifests would change, one line for each change.
func (c *caller) diff(t *testing.T, key string, manifests ...any) []string {
	t.Helper()
	spec, err := json.Marshal(manifests)
	require.NoError(t, err)
	changes, err := c.Driver.(driver.Differ).Diff(t.Context(), driver.Object{Ref: c.ref(key), Spec: spec, Hash: driver.HashSpec(spec)})
	require.NoError(t, err)
	return lines(changes)
}

func (c *caller) diffDelete(t *testing.T, key string) []string {
	t.Helper()
	changes, err := c.Driver.(driver.Differ).DiffDelete(t.Context(), c.ref(key))
	require.NoError(t, err)
	return lines(changes)
}

func lines(changes []driver.Change) []string {
	all := make([]string, len(changes))
	for i, c := range changes {
		all[i] = strings.Join([]string{c.Object, c.Field, c.From, c.To, c.Note}, "|")
	}
	return all
}

func TestDiffShowsFieldsThatAnApplyWouldChange(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.open(t, "prod", driver.Options{"namespaces": []any{b.namespace}}) // without a memory, it looks in all of them
	in := " in " + b.namespace
	c.done(t, "web", deployment("web", 3), configMap("a", one("1")), configMap("old", one("1")))
	require.Empty(t, c.diff(t, "web", deployment("web", 3), configMap("a", one("1")), configMap("old", one("1"))))

	wanted := deployment("web", 5)
	containers := wanted["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any)["containers"].([]any)
	containers[0].(map[string]any)["image"] = "web:2"
	require.Equal(t, []string{
		"Deployment.apps web" + in + "|.spec.replicas|3|5|",
		"Deployment.apps web" + in + `|.spec.template.spec.containers[name="main"].image|"web:1"|"web:2"|`,
		"ConfigMap a" + in + `|.data.a|"1"||`,
		"ConfigMap a" + in + `|.data.b||"<2>"|`,
		"ConfigMap new" + in + `|||{"apiVersion":"v1","data":{"a":"1"},"kind":"ConfigMap","metadata":{"name":"new","namespace":"` + b.namespace + `"}}|`,
		"ConfigMap old" + in + `||{"apiVersion":"v1","data":{"a":"1"},"kind":"ConfigMap","metadata":{"name":"old","namespace":"` + b.namespace + `"}}||`,
	}, c.diff(t, "web", wanted, configMap("a", map[string]any{"b": "<2>"}), configMap("new", one("1"))))

	deleted := c.diffDelete(t, "web")
	require.Len(t, deleted, 3)
	require.Contains(t, deleted[0], "ConfigMap a"+in+"||{")
	delete(c.memory, "web")
	require.Equal(t, deleted, c.diffDelete(t, "web"), "its marks find it")
	require.Empty(t, c.diffDelete(t, "other"))
}

// What others have changed, and what a dry run alone can tell: that they own it.
func TestDiffShowsDriftAndConflicts(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.open(t, "prod", nil)
	in := " in " + b.namespace
	wanted := []any{configMap("a", one("1")), configMap("b", one("1"))}
	c.done(t, "web", wanted...)
	b.edit(t, configMaps, "a", "kubectl-edit", `{"data": {"a": "9"}}`)
	b.remove(t, configMaps, "b")
	b.create(t, configMaps, b.namespace, configMap("theirs", one("1")))
	changes := c.diff(t, "web", append(wanted, configMap("theirs", one("1")))...)
	require.Equal(t, "ConfigMap a"+in+"||||refused: kubectl-edit owns .data.a: take the fields out of the manifest, list them in options.ignore, "+
		"or name the manager in options.force_managers", changes[0])
	require.Contains(t, changes[1], "ConfigMap b"+in+`|||{"apiVersion":"v1"`)
	require.Equal(t, "ConfigMap theirs"+in+"||||refused: it exists, and was not created by this target: remove it, or set options.adopt to take it over", changes[2])

	forcing := b.open(t, "prod", driver.Options{"force_managers": []any{"kubectl-edit"}})
	forcing.memory = c.memory
	require.Equal(t, []string{"ConfigMap a" + in + `|.data.a|"9"|"1"|`}, forcing.diff(t, "web", wanted...)[:1])
}

func TestDiffHidesValuesOfSecrets(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.open(t, "prod", nil)
	secret := func(value string) map[string]any {
		s := configMap("s", map[string]any{"a": value, "b": "c2FtZQ=="})
		s["kind"] = "Secret"
		return s
	}
	at := "Secret s in " + b.namespace
	created := c.diff(t, "web", secret("b25l"))
	require.Len(t, created, 1)
	require.Contains(t, created[0], `"data":{"a":"(hidden)","b":"(hidden)"}`)
	c.done(t, "web", secret("b25l"))
	b.edit(t, secrets, "s", "kubectl", `{"metadata": {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": "b25l"}}}`)
	require.Equal(t, []string{at + `|.data.a|"(hidden)"|"(hidden)"|`}, c.diff(t, "web", secret("dHdv")))
	deleted := c.diffDelete(t, "web")
	require.Len(t, deleted, 1)
	require.Contains(t, deleted[0], `"data":{"a":"(hidden)","b":"(hidden)"}`)
	require.NotContains(t, deleted[0], "b25l")
}

// The namespace, or the kind, of a member comes with the same spec: no dry run knows it.
func TestDiffShowsMembersInANamespaceThatTheSpecMakes(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.open(t, "prod", nil)
	name := b.namespace + "-more"
	inside := within(name, configMap("a", one("1")))
	changes := c.diff(t, "web", namespace(name), inside)
	require.Len(t, changes, 2)
	require.Contains(t, changes[0], "Namespace "+name+"|||{")
	require.Equal(t, "ConfigMap a in "+name+`|||{"apiVersion":"v1","data":{"a":"1"},"kind":"ConfigMap","metadata":{"name":"a","namespace":"`+name+`"}}|`, changes[1])
	require.Equal(t, []string{"ConfigMap a in " + name + "||||the namespace does not exist"}, c.diff(t, "web", inside))
	group := b.namespace + ".example.org"
	changes = c.diff(t, "web", definition(group), widget(group, "w"))
	require.Len(t, changes, 2)
	require.Contains(t, changes[1], "Widget."+group+" w in "+b.namespace+"|||{")
	require.Equal(t, []string{"Widget." + group + " w||||the cluster has no kind Widget." + group + " in version v1"}, c.diff(t, "web", widget(group, "w")))
}

func TestDiffWritesNothing(t *testing.T) {
	t.Parallel()
	b := fakeBed(t)
	c := b.open(t, "prod", driver.Options{"protected": []any{"Deployment.apps"}})
	c.done(t, "web", deployment("web", 3), configMap("a", one("1")))
	before := b.get(t, configMaps, b.namespace, "a").GetResourceVersion()
	other := b.open(t, "other", nil)
	b.fake.ResetRequests()
	require.Len(t, c.diff(t, "web", configMap("a", one("2")), configMap("b", one("2"))), 3)
	require.Len(t, c.diffDelete(t, "web"), 2)
	require.Len(t, other.diff(t, "web", configMap("c", one("2"))), 1)
	for _, r := range b.fake.Requests() {
		if r.Verb != http.MethodGet {
			require.Equal(t, []string{metav1.DryRunAll}, r.Query["dryRun"], "%s %s", r.Verb, r.Path)
		}
	}
	require.Equal(t, before, b.get(t, configMaps, b.namespace, "a").GetResourceVersion())
	require.Nil(t, b.data(t, "b"))
	require.Nil(t, b.get(t, configMaps, b.namespace, "reconciler-other"), "the ApplySet of a target that was never used")
	require.Equal(t, []string{"Deployment.apps web in " + b.namespace + "||||it is deleted only after reconciler.approve(): its kind is protected (options.protected)"}, c.diffDelete(t, "web")[1:])
}

func TestDiffSaysWhatIsWrongWithASpec(t *testing.T) {
	t.Parallel()
	b := fakeBed(t)
	c := b.open(t, "prod", driver.Options{"kinds": []any{"ConfigMap"}})
	require.Equal(t, []string{"||||Deployment.apps web: this target may not touch the kind (options.kinds)"}, c.diff(t, "web", deployment("web", 3)))
	require.Equal(t, []string{`||||it needs "apiVersion" and "kind"`}, c.diff(t, "web", map[string]any{}))
}

func TestDiffIsBounded(t *testing.T) {
	t.Parallel()
	b := fakeBed(t)
	c := b.open(t, "prod", nil)
	many := map[string]any{}
	for i := range 2 * driver.ChangesMost {
		many["k"+string(rune('a'+i/676%26))+string(rune('a'+i/26%26))+string(rune('a'+i%26))] = strings.Repeat("é", driver.ChangeBytesMost)
	}
	c.done(t, "web", configMap("a", one("1")))
	changes := c.diff(t, "web", configMap("a", many))
	require.Len(t, changes, driver.ChangesMost)
	require.Equal(t, "||||502 more changes", changes[driver.ChangesMost-1])
	require.Regexp(t, `^ConfigMap a in .*\|\.data\.kaaa\|\|"é*\.\.\.\|$`, changes[1])
	require.LessOrEqual(t, len(changes[1]), driver.ChangeBytesMost+60)
}

func TestDiffThatGetsNoAnswerIsAnError(t *testing.T) {
	t.Parallel()
	b := fakeBed(t)
	c := b.open(t, "prod", nil)
	b.fake.Fail(func(*http.Request) *fakeapi.Failure { return &fakeapi.Failure{Abort: true} })
	spec, err := json.Marshal(configMap("a", one("1")))
	require.NoError(t, err)
	_, err = c.Driver.(driver.Differ).Diff(t.Context(), driver.Object{Ref: c.ref("web"), Spec: spec})
	require.ErrorContains(t, err, "EOF")
	_, err = c.Driver.(driver.Differ).DiffDelete(t.Context(), c.ref("web"))
	require.ErrorContains(t, err, "EOF")
}
