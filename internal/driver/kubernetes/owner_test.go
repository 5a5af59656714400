package kubernetes

import (
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// F171: adoption takes no object from a row that has it.
func TestF171_AdoptTakesNothingFromARow(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]string{
		"WithItsMarks":       `{}`,
		"WithoutItsApplySet": `{"metadata": {"labels": {"applyset.kubernetes.io/part-of": null}}}`,
		"InAnotherApplySet":  `{"metadata": {"labels": {"applyset.kubernetes.io/part-of": "applyset-other"}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t)
			c := b.open(t, "prod", driver.Options{"adopt": true})
			c.done(t, "web", configMap("a", one("1")))
			b.edit(t, configMaps, "a", "editor", edit)
			requireOut(t, driver.VerdictBackoff, `ConfigMap a in `+b.namespace+`: two rows name it: apps "web" has it, and apps "api" asks for it`,
				c.apply(t, "api", configMap("a", one("2"))))
			require.Equal(t, one("1"), b.data(t, "a"))
		})
	}
}

// F173: an object that has another target's marks is not changed, also when the row changes that had it.
func TestF173_AnObjectWithOtherMarksIsNotOverwritten(t *testing.T) {
	t.Parallel()
	for name, options := range map[string]driver.Options{
		"ConflictsRefuse": nil, "ConflictsForce": {"conflicts": "force"}, "Overruling": {"force_managers": []any{"reconciler-two", "kubectl-label"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t)
			first, second := b.open(t, "one", options), b.open(t, "two", driver.Options{"adopt": true})
			first.done(t, "web", configMap("a", one("1")), configMap("b", one("1")))
			second.done(t, "web", configMap("a", one("2")))
			id := b.get(t, configMaps, b.namespace, "a").GetLabels()[labelPartOf]
			requireOut(t, driver.VerdictBackoff, "ConfigMap a in "+b.namespace+": it belongs to another ApplySet or target ("+id+"): "+
				"remove it there, or set options.adopt", first.apply(t, "web", configMap("a", one("3")), configMap("b", one("1"))))
			require.Equal(t, one("2"), b.data(t, "a"))
			require.Empty(t, second.drifted(t))

			b.edit(t, configMaps, "b", "kubectl-label", `{"metadata": {"labels": {"applyset.kubernetes.io/part-of": "applyset-theirs"}}}`)
			requireOut(t, driver.VerdictBackoff, "ConfigMap b in "+b.namespace+": it belongs to another ApplySet or target (applyset-theirs): "+
				"remove it there, or set options.adopt", first.apply(t, "web", configMap("b", one("3"))))
			require.Equal(t, one("1"), b.data(t, "b"))
		})
	}
}

// F173: what is adopted has no entry of its former owner left that would be in the way, or keep fields.
func TestF173_AdoptionTakesTheFormerTargetsFieldsOver(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	first, second := b.open(t, "one", nil), b.open(t, "two", driver.Options{"adopt": true})
	first.done(t, "web", configMap("a", map[string]any{"a": "1", "b": "1"}))
	second.done(t, "web", configMap("a", one("2")))
	require.Equal(t, one("2"), b.data(t, "a"))
	appliers, _ := b.appliers(t, "a")
	require.Equal(t, []string{"reconciler-two"}, appliers)
	requireDone(t, first.delete(t, "web"))
	require.Equal(t, one("2"), b.data(t, "a"))
}

// F173: the name of a field manager has at most 128 bytes, whatever the target is called.
func TestF173_FieldManagerOfATarget(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.open(t, "Größe", nil)
	c.done(t, "web", configMap("a", one("1")))
	appliers, _ := b.appliers(t, "a")
	require.Equal(t, []string{"reconciler-" + short([]byte("Größe"))}, appliers)
	require.Equal(t, metav1.ManagedFieldsOperationApply, b.get(t, configMaps, b.namespace, "a").GetManagedFields()[0].Operation)
}
