package kubernetes

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func placesOf(members []member) []string {
	places := make([]string, len(members))
	for i, m := range members {
		places[i] = m.at.String()
	}
	return places
}

func TestSpecsAreManifestsAndListsOfThem(t *testing.T) {
	t.Parallel()

	const one = `{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "shop"}}`
	for spec, want := range map[string][]string{
		one:             {"Deployment.apps web in shop"},
		"[" + one + "]": {"Deployment.apps web in shop"},
		`{"apiVersion": "v1", "kind": "List", "items": [` + one + `]}`: {"Deployment.apps web in shop"},
		`[` + one + `,
			{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "web", "namespace": "shop"}},
			{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "a.b"}},
			{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}]`: {
			"Namespace shop", "CustomResourceDefinition.apiextensions.k8s.io a.b", "Deployment.apps web in shop", "ConfigMap web in shop",
		},
	} {
		members, err := parse([]byte(spec))
		require.NoError(t, err, spec)
		require.Equal(t, want, placesOf(members), spec)
	}
}

func TestWrongSpecsAreExplainedAtOnce(t *testing.T) {
	t.Parallel()

	for spec, want := range map[string]string{
		``:                                     "the spec is empty",
		`"x"`:                                  "the spec is neither a manifest nor a list of manifests",
		`null`:                                 "the spec is neither a manifest nor a list of manifests",
		`7`:                                    "the spec is neither a manifest nor a list of manifests",
		`{}`:                                   `it needs "apiVersion" and "kind"`,
		`[1]`:                                  "it is no JSON object",
		`{"apiVersion": "a/b/c", "kind": "X"}`: `it needs "apiVersion" and "kind"`,
		`{"apiVersion": "v1", "kind": "ConfigMap"}`:                                                `the ConfigMap needs "metadata" with a "name"`,
		`{"apiVersion": "v1", "kind": "ConfigMap", "metadata": []}`:                                `the ConfigMap needs "metadata" with a "name"`,
		`{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "x-"}}`:            `the ConfigMap needs "metadata" with a "name"`,
		`{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "../x"}}`:                  `"../x" cannot be the name of a ConfigMap`,
		`{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": ".."}}`:                    `".." cannot be the name of a ConfigMap`,
		`{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a b"}}`:                   `"a b" cannot be the name of a ConfigMap`,
		`{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "namespace": "a/b"}}`: "ConfigMap x: its namespace is not the name of one",
		`{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "namespace": 1}}`:     "ConfigMap x: its namespace is not the name of one",
		`{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "labels": {"a": 1}}}`: "ConfigMap x: metadata.labels must map names to texts",
		`{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "labels": {"pgreconciler.github.io/object": "1"}}}`: "ConfigMap x: " +
			"pgreconciler.github.io/object is set by the driver",
		`{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "labels": {"applyset.kubernetes.io/part-of": "1"}}}`: "ConfigMap x: " +
			"applyset.kubernetes.io/part-of is set by the driver",
		`{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x"}, "data": {"a": 7, "b": "hunter2", "c": "YQ=="}, "stringData": {"d": null, "e": "e"}}`: "Secret x: " +
			"data.a must be text; data.b must be base64 (stringData takes plain text); stringData.d must be text",
		`{"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x"}, "stringData": ["hunter2"]}]}`: "Secret x: " +
			"stringData must map names to texts",
		`[{"kind": "X"}, {"apiVersion": "v1", "kind": "ConfigMap"}]`: `manifest 1: it needs "apiVersion" and "kind"; ` +
			`manifest 2: the ConfigMap needs "metadata" with a "name"`,
	} {
		_, err := parse([]byte(spec))
		require.EqualError(t, err, want, spec)
	}
}

func TestManifestsKeepEveryDigitAndLoseWhatTheServerSets(t *testing.T) {
	t.Parallel()

	members, err := parse([]byte(`{"apiVersion": "v1", "kind": "X", "metadata": {"name": "x", "uid": "1", "resourceVersion": "2",
		"managedFields": [], "annotations": {"pgreconciler.github.io/replace": "true"}}, "spec": {"n": 9007199254740993}, "status": {"ready": true}}`))
	require.NoError(t, err)
	require.Equal(t, map[string]any{
		"apiVersion": "v1", "kind": "X", "spec": map[string]any{"n": int64(9007199254740993)},
		"metadata": map[string]any{"name": "x", "annotations": map[string]any{"pgreconciler.github.io/replace": "true"}},
	}, members[0].body.Object)
}

func TestMemoryIsOneLineForEachMember(t *testing.T) {
	t.Parallel()

	web := place{GroupKind: schema.GroupKind{Group: "apps", Kind: "Deployment"}, Namespace: "shop", Name: "web"}
	space := place{GroupKind: schema.GroupKind{Kind: "Namespace"}, Name: "shop"}
	m := memory{web: {web, "u1", "a1", "f1"}, space: {at: space}}
	const text = "Namespace - shop - - -\nDeployment.apps shop web u1 a1 f1\n"
	require.Equal(t, text, string(m.encode()))
	require.Equal(t, m, decode([]byte(text)))
	require.Empty(t, decode(nil))
	require.Equal(t, memory{space: {at: space}}, decode([]byte("Namespace - shop - - -\nnot a line\n\x00\n")))
	require.NotNil(t, memory{}.encode(), "an object without members has a memory, too")
}
