package fakeapi_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/pgreconciler/reconciler/internal/driver/kubernetes/fakeapi"
)

var (
	configMaps  = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	namespaces  = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	deployments = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
)

func setup(t *testing.T) (*fakeapi.Server, dynamic.Interface) {
	t.Helper()
	server := fakeapi.New(t)
	client, err := dynamic.NewForConfig(server.Config())
	require.NoError(t, err)
	return server, client
}

func configMap(name, value string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"name": name, "labels": map[string]any{"app": name}},
		"data":     map[string]any{"a": value},
	}}
}

func TestDiscoveryFollowsDefinitions(t *testing.T) {
	t.Parallel()
	server, client := setup(t)
	server.HoldCRDs()
	crd := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": "widgets.example.com"},
		"spec": map[string]any{
			"group": "example.com", "scope": "Namespaced",
			"names":    map[string]any{"kind": "Widget", "plural": "widgets", "singular": "widget"},
			"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true}},
		},
	}}
	_, err := client.Resource(definitions).Create(t.Context(), crd, metav1.CreateOptions{})
	require.NoError(t, err)
	get := func(path string) (int, string) {
		resp, err := http.Get(server.URL + path)
		require.NoError(t, err)
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, string(text)
	}
	for _, path := range []string{"/apis/example.com", "/apis/example.com/v1"} {
		code, _ := get(path)
		require.Equal(t, http.StatusNotFound, code)
	}
	_, text := get("/apis/apps/v1")
	require.Contains(t, text, `{"name":"deployments","singularName":"deployment","namespaced":true,"kind":"Deployment","verbs":`)
	require.Contains(t, text, `{"name":"deployments/status","singularName":"","namespaced":true,"kind":"Deployment","verbs":`)
	server.EstablishCRDs()
	version := `{"groupVersion":"example.com/v1","version":"v1"}`
	code, text := get("/apis/example.com")
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, `{"kind":"APIGroup","apiVersion":"v1","name":"example.com","versions":[`+version+`],"preferredVersion":`+version+`}`, strings.TrimSpace(text))
	_, text = get("/apis/example.com/v1")
	require.Contains(t, text, `{"name":"widgets","singularName":"widget","namespaced":true,"kind":"Widget","verbs":`)
	widgets := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	_, err = client.Resource(widgets).Namespace("default").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.NoError(t, client.Resource(definitions).Delete(t.Context(), "widgets.example.com", metav1.DeleteOptions{}))
	code, _ = get("/apis/example.com")
	require.Equal(t, http.StatusNotFound, code)
}

func TestListsInPagesOfOneMoment(t *testing.T) {
	t.Parallel()
	server, client := setup(t)
	maps := client.Resource(configMaps).Namespace("default")
	for _, name := range []string{"a", "b", "c"} {
		_, err := maps.Create(t.Context(), configMap(name, "1"), metav1.CreateOptions{})
		require.NoError(t, err)
	}
	first, err := maps.List(t.Context(), metav1.ListOptions{Limit: 2})
	require.NoError(t, err)
	require.Len(t, first.Items, 2)
	require.Equal(t, int64(1), *first.GetRemainingItemCount())
	require.NoError(t, maps.Delete(t.Context(), "c", metav1.DeleteOptions{}))
	next := metav1.ListOptions{Limit: 2, Continue: first.GetContinue()}
	second, err := maps.List(t.Context(), next)
	require.NoError(t, err)
	require.Len(t, second.Items, 1)
	require.Equal(t, first.GetResourceVersion(), second.GetResourceVersion())
	server.Compact()
	_, err = maps.List(t.Context(), next)
	require.True(t, apierrors.IsResourceExpired(err), err)

	partial, err := metadata.NewForConfig(server.Config())
	require.NoError(t, err)
	chosen, err := partial.Resource(configMaps).List(t.Context(), metav1.ListOptions{LabelSelector: "app in (b,c)"})
	require.NoError(t, err)
	require.Len(t, chosen.Items, 1)
	require.Equal(t, "b", chosen.Items[0].Name)
	require.NotEmpty(t, chosen.Items[0].ManagedFields)
}

func TestWatchesSeeEveryWriteUntilCut(t *testing.T) {
	t.Parallel()
	server, client := setup(t)
	maps := client.Resource(configMaps).Namespace("default")
	partial, err := metadata.NewForConfig(server.Config())
	require.NoError(t, err)
	list, err := partial.Resource(configMaps).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	watched, err := partial.Resource(configMaps).Watch(t.Context(), metav1.ListOptions{LabelSelector: "app=a", ResourceVersion: list.ResourceVersion})
	require.NoError(t, err)
	_, err = maps.Create(t.Context(), configMap("b", "1"), metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = maps.Create(t.Context(), configMap("a", "1"), metav1.CreateOptions{})
	require.NoError(t, err)
	relabel := []byte(`{"metadata":{"labels":{"app":"z"}}}`)
	_, err = maps.Patch(t.Context(), "a", types.MergePatchType, []byte(`{"data":{"a":"2"}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	_, err = maps.Patch(t.Context(), "a", types.MergePatchType, relabel, metav1.PatchOptions{})
	require.NoError(t, err)
	for _, want := range []watch.EventType{watch.Added, watch.Modified, watch.Deleted} {
		got := <-watched.ResultChan()
		require.Equal(t, want, got.Type)
		require.Equal(t, "a", got.Object.(*metav1.PartialObjectMetadata).Name)
	}
	server.Cut()
	_, open := <-watched.ResultChan()
	require.False(t, open)

	server.Compact()
	watched, err = maps.Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	require.NoError(t, err)
	got := <-watched.ResultChan()
	require.Equal(t, watch.Error, got.Type)
	require.True(t, apierrors.IsResourceExpired(apierrors.FromObject(got.Object)))

	yes := true
	watched, err = maps.Watch(t.Context(), metav1.ListOptions{
		SendInitialEvents: &yes, AllowWatchBookmarks: true, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
	})
	require.NoError(t, err)
	defer watched.Stop()
	for _, want := range []watch.EventType{watch.Added, watch.Added, watch.Bookmark} {
		got = <-watched.ResultChan()
		require.Equal(t, want, got.Type)
	}
	require.Equal(t, "true", got.Object.(*unstructured.Unstructured).GetAnnotations()[metav1.InitialEventsAnnotationKey])
}

func TestStatusAndSpecAreWrittenApart(t *testing.T) {
	t.Parallel()
	_, client := setup(t)
	applied := client.Resource(deployments).Namespace("default")
	body := []byte(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d"},` +
		`"spec":{"replicas":1,"selector":{"matchLabels":{"a":"b"}}},"status":{"replicas":7}}`)
	got, err := applied.Patch(t.Context(), "d", types.ApplyPatchType, body, metav1.PatchOptions{FieldManager: "m"})
	require.NoError(t, err)
	require.Equal(t, int64(1), got.GetGeneration())
	got, err = applied.Patch(t.Context(), "d", types.MergePatchType, []byte(`{"spec":{"replicas":5},"status":{"replicas":3}}`), metav1.PatchOptions{}, "status")
	require.NoError(t, err)
	require.Equal(t, int64(1), got.GetGeneration())
	require.Equal(t, map[string]any{"replicas": int64(3)}, got.Object["status"])
	got, err = applied.Patch(t.Context(), "d", types.MergePatchType, []byte(`{"spec":{"replicas":2},"status":{"replicas":9}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	require.Equal(t, int64(2), got.GetGeneration())
	require.Equal(t, map[string]any{"replicas": int64(3)}, got.Object["status"])
	_, err = applied.Patch(t.Context(), "d", types.MergePatchType, []byte(`{"spec":{"selector":{"matchLabels":{"a":"c"}}}}`), metav1.PatchOptions{})
	require.EqualError(t, err, `Deployment.apps "d" is invalid: spec.selector: Invalid value: {"matchLabels":{"a":"c"}}: field is immutable`)
}

func TestAnswersWhatATestInjects(t *testing.T) {
	t.Parallel()
	server, _ := setup(t)
	config, err := clientcmd.BuildConfigFromFlags("", server.Kubeconfig(t))
	require.NoError(t, err)
	client, err := dynamic.NewForConfig(config)
	require.NoError(t, err)
	server.Fail(func(r *http.Request) *fakeapi.Failure {
		status := apierrors.NewUnauthorized("Unauthorized").Status()
		switch {
		case r.URL.Path == "/api/v1/namespaces/default/configmaps/a":
			return &fakeapi.Failure{Code: http.StatusUnauthorized, Status: &status}
		case r.Method == http.MethodPost: // client-go repeats a GET ten times
			return &fakeapi.Failure{Abort: true}
		}
		return nil
	})
	maps := client.Resource(configMaps).Namespace("default")
	_, err = maps.Get(t.Context(), "a", metav1.GetOptions{})
	require.True(t, apierrors.IsUnauthorized(err), err)
	_, err = maps.Create(t.Context(), configMap("b", "1"), metav1.CreateOptions{})
	require.ErrorContains(t, err, "EOF")
	_, err = maps.Get(t.Context(), "c", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), err)
	require.Len(t, server.Requests(), 3)
	require.Equal(t, fakeapi.Request{Verb: "GET", Path: "/api/v1/namespaces/default/configmaps/c"}, stripQuery(server.Requests()[2]))
	server.ResetRequests()
	require.Empty(t, server.Requests())
}

func stripQuery(r fakeapi.Request) fakeapi.Request {
	r.Query = nil
	return r
}
