package kubernetes

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/pgreconciler/reconciler/internal/driver"
)

var events = schema.GroupVersionResource{Version: "v1", Resource: "events"}

// event is one of a kind that the cluster serves in two groups.
func event(api, name, reason string) map[string]any {
	return map[string]any{"apiVersion": api, "kind": "Event", "metadata": map[string]any{"name": name}, "reason": reason, "type": "Normal"}
}

// F172: an object that a spec names in another API group is the same object.
func TestF172_AnotherGroupOfAnObjectIsNotPruned(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.open(t, "prod", nil)
	c.done(t, "web", event("v1", "a", "One"))
	uid := b.get(t, events, b.namespace, "a").GetUID()
	for _, api := range []string{"events.k8s.io/v1", "v1"} {
		c.done(t, "web", event(api, "a", "Two"))
		found := b.get(t, events, b.namespace, "a")
		require.NotNil(t, found, "it was deleted after it was applied as %s", api)
		require.Equal(t, uid, found.GetUID())
		require.Equal(t, "Two", found.Object["reason"])
		require.Empty(t, c.drifted(t), "it is listed once")
	}
	requireDone(t, c.delete(t, "web"))
	require.Nil(t, b.get(t, events, b.namespace, "a"))
}

// F172: two members of a spec that are one object are an error, as those of equal names are.
func TestF172_AnObjectNamedInTwoGroupsIsRefused(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.open(t, "prod", nil)
	requireOut(t, driver.VerdictTerminal, "Event.events.k8s.io a in "+b.namespace+": the spec names it twice, also as Event a in "+b.namespace,
		c.apply(t, "web", event("v1", "a", "One"), event("events.k8s.io/v1", "a", "Two")))
}

// F172: memory that was lost counts an object once, too.
func TestF172_ADeleteWithoutMemoryFindsTheObjectOnce(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.open(t, "prod", nil)
	c.done(t, "web", event("v1", "a", "One"))
	c.done(t, "web", event("events.k8s.io/v1", "a", "One"))
	delete(c.memory, "web")
	requireDone(t, c.delete(t, "web"))
	require.Nil(t, b.get(t, events, b.namespace, "a"))
}
