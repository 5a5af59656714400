package kubernetes

import (
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPointersNameFields(t *testing.T) {
	t.Parallel()

	for text, want := range map[string]any{"/spec/replicas": 3, "/spec/a~1b/~0": 1, "/spec/none": nil, "/spec/replicas/x": nil} {
		object := map[string]any{"spec": map[string]any{"replicas": 3, "a/b": map[string]any{"~": 1}}}
		p, err := parsePointer(text)
		require.NoError(t, err)
		value, ok := p.get(object)
		require.Equal(t, want, value, text)
		require.Equal(t, want != nil, ok, text)
		p.remove(object)
		_, ok = p.get(object)
		require.False(t, ok)
		p.set(object, 7)
		value, _ = p.get(object)
		require.Equal(t, 7, value)
		p.remove(object)
	}
	for _, text := range []string{"", "/", "/spec//x", "/kind", "/status/x", "/metadata/name", "/metadata/labels"} {
		_, err := parsePointer(text)
		require.Error(t, err, text)
	}
}

func TestFieldIsHandedOverWhenAnotherManagerOwnsIt(t *testing.T) {
	t.Parallel()

	entry := func(manager, fields string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Manager: manager, Operation: "Apply", FieldsV1: metav1.NewFieldsV1(fields)}
	}
	ours := entry("reconciler", `{"f:spec":{"f:replicas":{},"f:template":{"f:x":{}}}}`)
	replicas, err := parsePointer("/spec/replicas")
	require.NoError(t, err)
	require.True(t, replicas.handedOver(nil, nil), "there is no entry of ours")
	require.False(t, replicas.handedOver(&ours, []metav1.ManagedFieldsEntry{ours}))
	require.False(t, replicas.handedOver(&ours, []metav1.ManagedFieldsEntry{ours, entry("hpa", `{"f:spec":{"f:x":{}}}`)}))
	require.True(t, replicas.handedOver(&ours, []metav1.ManagedFieldsEntry{ours, entry("hpa", `{"f:spec":{"f:replicas":{}}}`)}))
	none := entry("reconciler", `{"f:spec":{"f:template":{}}}`)
	require.True(t, replicas.handedOver(&none, []metav1.ManagedFieldsEntry{none}))
}
