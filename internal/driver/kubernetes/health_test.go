package kubernetes

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pgreconciler/reconciler/internal/driver"
)

func (c *caller) health(t *testing.T, key string) driver.ObjectHealth {
	t.Helper()
	reporter, ok := c.Driver.(driver.ObjectHealthReporter)
	require.True(t, ok)
	health, err := reporter.ObjectHealth(t.Context(), c.ref(key))
	require.NoError(t, err)
	return health
}

// report writes the status of an object, as its controller does.
func (b *bed) report(t *testing.T, of schema.GroupVersionResource, name string, status map[string]any) {
	t.Helper()
	patch, err := json.Marshal(map[string]any{"status": status})
	require.NoError(t, err)
	_, err = b.admin.Resource(of).Namespace(b.namespace).Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	require.NoError(t, err)
}

func TestHealthNamesTheMemberThatIsNotHealthy(t *testing.T) {
	t.Parallel()
	b := fakeBed(t) // a real one has a controller that writes the status
	c := b.open(t, "prod", nil)
	c.done(t, "web", configMap("a", one("1")), deployment("web", 2))
	where := "Deployment.apps web in " + b.namespace
	require.Equal(t, driver.ObjectHealth{State: driver.Progressing, Reason: where + ": Replicas: 0/2"}, c.health(t, "web"))

	available := map[string]any{
		"observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2, "availableReplicas": 2,
		"conditions": []any{
			map[string]any{"type": "Available", "status": "True"}, map[string]any{"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"},
		},
	}
	b.report(t, deployments, "web", available)
	require.Equal(t, driver.ObjectHealth{State: driver.Healthy}, c.health(t, "web"))

	c.done(t, "web", configMap("a", one("1")), deployment("web", 3))
	require.Equal(t, driver.Progressing, c.health(t, "web").State, "its controller has not looked at the new generation")
	available["observedGeneration"] = 2
	available["conditions"] = []any{map[string]any{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": "no"}}
	b.report(t, deployments, "web", available)
	require.Equal(t, driver.ObjectHealth{State: driver.Unhealthy, Reason: where + ": Progress deadline exceeded"}, c.health(t, "web"))
	b.remove(t, deployments, "web")
	require.Equal(t, driver.ObjectHealth{State: driver.Progressing, Reason: where + ": it does not exist"}, c.health(t, "web"))
}

func TestObjectWithoutStatusIsHealthyWhereItsKindHasNone(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.open(t, "prod", nil)
	c.done(t, "web", configMap("a", one("1")))
	require.Equal(t, driver.ObjectHealth{State: driver.Healthy}, c.health(t, "web"))
	at := place{GroupKind: schema.GroupKind{Group: "example.com", Kind: "Widget"}, Namespace: "x", Name: "w"}
	for text, want := range map[string]driver.HealthState{
		`{}`:                  driver.Progressing,
		`{"status": {}}`:      driver.Progressing,
		`{"status": {"a":1}}`: driver.Healthy,
	} {
		live := &unstructured.Unstructured{}
		require.NoError(t, json.Unmarshal([]byte(text), &live.Object))
		live.SetAPIVersion("example.com/v1")
		live.SetKind("Widget")
		health, err := healthOf(at, live, true)
		require.NoError(t, err)
		require.Equal(t, want, health.State, text)
		health, err = healthOf(at, live, false)
		require.NoError(t, err)
		require.Equal(t, driver.Healthy, health.State, text)
	}
	_, err := c.Driver.(driver.ObjectHealthReporter).ObjectHealth(t.Context(), driver.Ref{}) //nolint:forcetypeassert // it is one
	require.EqualError(t, err, "its members are not known")
}

func TestExpressionsSayWhenACustomObjectIsHealthy(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	group := b.namespace + ".example.net"
	c := b.open(t, "prod", driver.Options{"health": map[string]any{"Widget." + group: "object.size > 1 && object.status.phase == 'Ready'"}})
	c.becomesDone(t, func() driver.Outcome { return c.apply(t, "web", widget(group, "w"), definition(group)) })
	where := "Widget." + group + " w in " + b.namespace + ": "
	require.Equal(t, driver.ObjectHealth{State: driver.Progressing, Reason: where + "the expression in options.health is not true"}, c.health(t, "web"))
	widgets := schema.GroupVersionResource{Group: group, Version: "v1", Resource: "widgets"}
	b.edit(t, widgets, "w", "somebody", `{"status": {"phase": "Ready"}}`)
	b.edit(t, widgets, "w", "reconciler", `{"size": 2}`)
	require.Equal(t, driver.ObjectHealth{State: driver.Healthy}, c.health(t, "web"))
	b.edit(t, widgets, "w", "somebody", `{"status": null}`)
	require.Equal(t, driver.ObjectHealth{State: driver.Progressing, Reason: where + "the expression in options.health fails: no such key: status"},
		c.health(t, "web"))
	require.Equal(t, map[string]string{
		"options.health":   `"widget" is not a kind: write Widget.example.com`,
		"options.health.A": "must be true or false, and is of type int",
	}, problemsOf(t, driver.Options{"kubeconfig": b.kubeconfig, "health": map[string]any{"widget": "true", "A": "1 + 1"}}))
	require.Contains(t, problemsOf(t, driver.Options{"kubeconfig": b.kubeconfig, "health": map[string]any{"A": "1 +"}})["options.health.A"],
		"is not an expression in CEL: ")
}
