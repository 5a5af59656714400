package kubernetes

import (
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// appliers returns the managers that have applied a ConfigMap, and those that have changed it otherwise.
func (b *bed) appliers(t *testing.T, name string) (appliers, editors []string) {
	t.Helper()
	for _, entry := range b.get(t, configMaps, b.namespace, name).GetManagedFields() {
		if entry.Operation == metav1.ManagedFieldsOperationApply {
			appliers = append(appliers, entry.Manager)
		} else {
			editors = append(editors, entry.Manager)
		}
	}
	return appliers, editors
}

// What a target has applied under another field manager is its own: fields go with the spec, and none is in the way of a change.
func TestAnotherFieldManagerTakesOver(t *testing.T) {
	t.Parallel()
	ab, a := map[string]any{"a": "1", "b": "1"}, map[string]any{"a": "2"}
	for name, steps := range map[string][]map[string]any{
		"AChangedSpec":   {a},
		"AnUnchangedOne": {ab, a},
		"AFieldThatGoes": {{"a": "1"}, a},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t)
			first := b.open(t, "prod", nil)
			first.done(t, "web", configMap("a", ab))
			b.edit(t, configMaps, "a", "editor", `{"data": {"c": "3"}}`)
			second := b.open(t, "prod", driver.Options{"field_manager": "platform"})
			second.memory = first.memory
			for _, data := range steps {
				second.done(t, "web", configMap("a", data))
				want := map[string]any{"c": "3"}
				for key, value := range data {
					want[key] = value
				}
				require.Equal(t, want, b.data(t, "a"))
				require.Empty(t, second.drifted(t))
			}
			appliers, editors := b.appliers(t, "a")
			require.Equal(t, []string{"platform"}, appliers)
			require.Equal(t, []string{"editor"}, editors)
			requireDone(t, second.delete(t, "web"))
		})
	}
}

// The entry of another applier is not taken over, and stays in the way of a change.
func TestEntriesOfOtherAppliersStay(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.open(t, "prod", nil)
	c.done(t, "web", configMap("a", one("1")))
	_, err := b.admin.Resource(configMaps).Namespace(b.namespace).Apply(t.Context(), "a", &unstructured.Unstructured{Object: configMap("a", one("1"))},
		metav1.ApplyOptions{FieldManager: "other"})
	require.NoError(t, err)
	out := c.apply(t, "web", configMap("a", one("2")))
	require.Equal(t, driver.VerdictBackoff, out.Verdict)
	require.ErrorContains(t, out.Err, "ConfigMap a in "+b.namespace+": other owns .data.a")
	appliers, _ := b.appliers(t, "a")
	require.ElementsMatch(t, []string{"reconciler-prod", "other"}, appliers)
}
