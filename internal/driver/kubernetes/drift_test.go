package kubernetes

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
)

func TestListingFindsWhatPeopleChange(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.open(t, "prod", driver.Options{"force_managers": []any{"kubectl-edit"}})
	for name, change := range map[string]func(){
		"nothing":           nil,
		"a field is edited": func() { b.edit(t, configMaps, "a", "kubectl-edit", `{"data": {"a": "9"}}`) },
		"a field is removed": func() {
			b.edit(t, configMaps, "a", "kubectl-edit", `{"data": {"a": null}}`)
		},
		"a label of ours is removed": func() {
			b.edit(t, configMaps, "a", "kubectl-edit", `{"metadata": {"labels": {"pgreconciler.github.io/object": null}}}`)
		},
		"all marks are removed": func() {
			b.edit(t, configMaps, "a", "kubectl-edit", `{"metadata": {"labels": null, "annotations": null}}`)
		},
		"a member is deleted": func() { b.remove(t, configMaps, "b") },
		"a member is replaced": func() {
			found := b.get(t, configMaps, b.namespace, "a")
			b.remove(t, configMaps, "a")
			found.SetUID("")
			found.SetResourceVersion("")
			found.SetManagedFields(nil)
			b.create(t, configMaps, b.namespace, found.Object)
		},
	} {
		manifests := []any{configMap("a", one("1")), configMap("b", one("1"))}
		c.done(t, "web", manifests...)
		require.Empty(t, c.drifted(t), name)
		if change == nil {
			continue
		}
		change()
		require.Equal(t, []string{"web"}, c.drifted(t), name)
		c.done(t, "web", manifests...)
		require.Equal(t, one("1"), b.data(t, "a"), name)
		require.Equal(t, one("1"), b.data(t, "b"), name)
		require.Empty(t, c.drifted(t), name)
	}
}

// A change of the row meets an object that somebody has put in the place of ours.
func TestChangeOfAReplacedMemberIsNotForTheNewOne(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.open(t, "prod", nil)
	c.done(t, "web", configMap("a", one("1")))
	b.remove(t, configMaps, "a")
	b.create(t, configMaps, b.namespace, configMap("a", map[string]any{"x": "theirs"}))
	out := c.apply(t, "web", configMap("a", one("2")))
	requireOut(t, driver.VerdictBackoff, "ConfigMap a in "+b.namespace+": it exists, and was not created by this target: "+
		"remove it, or set options.adopt to take it over", out)
	require.Equal(t, map[string]any{"x": "theirs"}, b.data(t, "a"))
	b.remove(t, configMaps, "a")
	c.done(t, "web", configMap("a", one("2")))
	require.Equal(t, one("2"), b.data(t, "a"))
	b.remove(t, configMaps, "a")
	c.done(t, "web", configMap("a", one("3")))
	require.Equal(t, one("3"), b.data(t, "a"))
}

func TestForeignFieldsAreNoDrift(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.open(t, "prod", nil)
	c.done(t, "web", configMap("a", one("1")))
	b.edit(t, configMaps, "a", "somebody", `{"metadata": {"labels": {"theirs": "x"}}, "data": {"b": "2"}}`)
	require.Empty(t, c.drifted(t))
	c.done(t, "web", configMap("a", one("3")))
	require.Equal(t, map[string]any{"a": "3", "b": "2"}, b.data(t, "a"))
}

// An owner applied the second spec and was killed before that was recorded; then the row was changed back.
func TestListingFindsASpecThatWasNeverRecorded(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.open(t, "prod", nil)
	c.done(t, "web", configMap("a", one("1")))
	recorded := c.memory["web"]
	c.done(t, "web", configMap("a", one("2")))
	c.memory["web"] = recorded
	require.Equal(t, []string{"web"}, c.drifted(t))
	c.done(t, "web", configMap("a", one("1")))
	require.Equal(t, one("1"), b.data(t, "a"))
}

// An owner was killed between the call and the record of a list that grew, or shrank.
func TestMembersThatWereNeverRecordedAreFound(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.open(t, "prod", nil)
	c.done(t, "web", configMap("a", one("1")))
	recorded := c.memory["web"]
	c.done(t, "web", configMap("a", one("1")), configMap("b", one("1")))
	c.memory["web"] = recorded
	require.Equal(t, []string{"web"}, c.drifted(t))
	c.done(t, "web", configMap("a", one("1")))
	require.Nil(t, b.data(t, "b"))
	cl, ok := c.Driver.(*cluster)
	require.True(t, ok)
	require.Empty(t, cl.listed, "a listing counts for one call")
	require.Empty(t, c.drifted(t))

	c.done(t, "web", configMap("a", one("1")), configMap("b", one("1")))
	recorded = c.memory["web"]
	c.done(t, "web", configMap("b", one("1")))
	c.memory["web"] = recorded
	c.done(t, "web", configMap("b", one("1")))
	require.Empty(t, c.drifted(t))

	delete(c.memory, "web") // its first call was never recorded
	require.Equal(t, []string{"orphan web"}, c.drifted(t))
	requireDone(t, c.delete(t, "web"))
	require.Nil(t, b.data(t, "b"))
}

// What a listing finds of an object whose memory is lost may have been changed since it was applied.
func TestChangeOfAnObjectThatWasNeverRecordedIsRepaired(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.open(t, "prod", driver.Options{"conflicts": "force"})
	c.done(t, "web", configMap("a", one("1")))
	delete(c.memory, "web")
	b.edit(t, configMaps, "a", "kubectl-edit", `{"data": {"a": "2"}}`)
	require.Equal(t, []string{"orphan web"}, c.drifted(t))
	c.done(t, "web", configMap("a", one("1")))
	require.Equal(t, one("1"), b.data(t, "a"))
	require.Empty(t, c.drifted(t))
}

// The memory of an object is lost, and no listing has found it.
func TestDeleteFindsMembersByTheirMarks(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.open(t, "prod", nil)
	c.done(t, "web", configMap("a", one("1")), deployment("web", 1))
	c.done(t, "api", configMap("b", one("1")))
	requireDone(t, b.open(t, "prod", nil).delete(t, "web"))
	require.Nil(t, b.data(t, "a"))
	require.Nil(t, b.get(t, deployments, b.namespace, "web"))
	require.Equal(t, one("1"), b.data(t, "b"))
}

func TestDeletedApplySetComesBackAndNothingIsLost(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.open(t, "prod", nil)
	c.done(t, "web", configMap("a", one("1")))
	b.remove(t, configMaps, "reconciler-prod")
	require.Equal(t, []string{"web"}, c.drifted(t))
	c.done(t, "web", configMap("a", one("1")))
	require.Equal(t, "ConfigMap", b.get(t, configMaps, b.namespace, "reconciler-prod").GetAnnotations()[setKinds])
	require.Empty(t, c.drifted(t))
}

func TestListingReadsPages(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.open(t, "prod", nil)
	many := make([]any, 0, 100)
	for range 6 {
		many = many[:0]
		for i := range 100 {
			many = append(many, configMap("p"+string(rune('a'+len(c.memory)))+string(rune('a'+i/26))+string(rune('a'+i%26)), one("1")))
		}
		c.done(t, string(rune('a'+len(c.memory))), many...)
	}
	require.Empty(t, c.drifted(t))
}

func TestConflictsAreRefusedOrForced(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.open(t, "prod", nil)
	c.done(t, "web", configMap("a", map[string]any{"a": "1", "b": "1"}))
	b.edit(t, configMaps, "a", "kubectl-edit", `{"data": {"a": "9"}}`)
	b.edit(t, configMaps, "a", "other", `{"data": {"b": "9"}}`)
	wanted := configMap("a", map[string]any{"a": "2", "b": "2"})
	const remedy = ": take the fields out of the manifest, list them in options.ignore, or name the manager in options.force_managers"
	requireOut(t, driver.VerdictBackoff, "ConfigMap a in "+b.namespace+": kubectl-edit owns .data.a; other owns .data.b"+remedy,
		c.apply(t, "web", wanted))
	require.Equal(t, map[string]any{"a": "9", "b": "9"}, b.data(t, "a"))

	some := b.open(t, "prod", driver.Options{"force_managers": []any{"kubectl-edit"}})
	some.memory = c.memory
	require.Equal(t, driver.VerdictBackoff, some.apply(t, "web", wanted).Verdict, "one of the managers is not to be overruled")
	some.done(t, "web", configMap("a", map[string]any{"a": "2"}))
	require.Equal(t, map[string]any{"a": "2", "b": "9"}, b.data(t, "a"))

	all := b.open(t, "prod", driver.Options{"conflicts": "force"})
	all.memory = c.memory
	all.done(t, "web", wanted)
	require.Equal(t, map[string]any{"a": "2", "b": "2"}, b.data(t, "a"))
}

func TestIgnoredFieldKeepsItsValueUntilAnotherManagerOwnsIt(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	replicas := func() any {
		spec, _ := b.get(t, deployments, b.namespace, "web").Object["spec"].(map[string]any)
		return spec["replicas"]
	}
	c := b.open(t, "prod", nil)
	c.done(t, "web", deployment("web", 5))
	ignoring := b.open(t, "prod", driver.Options{"ignore": []any{"Deployment.apps/spec/replicas"}})
	ignoring.memory = c.memory
	ignoring.done(t, "web", deployment("web", 7))
	require.EqualValues(t, 5, replicas(), "it would have fallen to its default")
	require.Empty(t, ignoring.drifted(t))

	b.edit(t, deployments, "web", "autoscaler", `{"spec": {"replicas": 9}}`)
	ignoring.done(t, "web", deployment("web", 7))
	require.EqualValues(t, 9, replicas())
	b.edit(t, deployments, "web", "autoscaler", `{"spec": {"replicas": 2}}`)
	require.Empty(t, ignoring.drifted(t))

	ignoring.done(t, "api", deployment("api", 4))
	spec, _ := b.get(t, deployments, b.namespace, "api").Object["spec"].(map[string]any)
	require.NotEqualValues(t, 4, spec["replicas"], "a new object gets the default")
}
