package kubernetes

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/pgreconciler/reconciler/internal/driver/kubernetes/fakeapi"
)

// fakeMapper returns a mapper of a fake cluster, and a function that returns the paths of the requests since its last call.
func fakeMapper(t *testing.T) (*fakeapi.Server, *mapper, func() string) {
	t.Helper()
	server := fakeapi.New(t)
	m, err := newMapper(server.Config(), http.DefaultClient, discoverTimeout)
	require.NoError(t, err)
	return server, m, func() string {
		var paths []string
		for _, r := range server.Requests() {
			paths = append(paths, r.Path)
		}
		server.ResetRequests()
		return strings.Join(paths, " ")
	}
}

// The kinds of a group are asked for when one is needed, and then known.
func TestKindsAreAskedForByGroup(t *testing.T) {
	t.Parallel()
	_, m, asked := fakeMapper(t)
	find := func(group, version, kind string) *restMapping {
		mapping, err := m.find(t.Context(), schema.GroupKind{Group: group, Kind: kind}, version)
		require.NoError(t, err)
		return mapping
	}
	asked()
	service := &restMapping{
		kind: schema.GroupVersionKind{Version: "v1", Kind: "Service"}, resource: schema.GroupVersionResource{Version: "v1", Resource: "services"},
		namespaced: true, status: true,
	}
	require.Equal(t, service, find("", "v1", "Service"))
	require.Equal(t, service, find("", "", "Service"))
	require.False(t, find("", "", "ConfigMap").status)
	require.False(t, find("", "v1", "Namespace").namespaced)
	require.Equal(t, "/api/v1", asked())
	require.Equal(t, find("apps", "", "Deployment"), find("apps", "v1", "Deployment"))
	find("apps", "", "StatefulSet")
	require.Equal(t, "/apis/apps /apis/apps/v1", asked())
	m.expire()
	find("", "", "Service")
	require.Equal(t, "/api/v1", asked())
}

// A kind without a version is that of the first version that has it, the preferred one first, whatever was asked for before.
func TestKindWithoutAVersionIsThePreferredOne(t *testing.T) {
	t.Parallel()
	var asked []string
	down := true
	kind := func(name string) metav1.APIResource {
		return metav1.APIResource{Name: strings.ToLower(name) + "s", Kind: name}
	}
	answers := map[string]any{
		"/apis/example.com": metav1.APIGroup{
			Versions: []metav1.GroupVersionForDiscovery{{Version: "v1"}, {Version: "v2"}, {Version: "v3"}}, PreferredVersion: metav1.GroupVersionForDiscovery{Version: "v2"},
		},
		"/apis/example.com/v1": metav1.APIResourceList{APIResources: []metav1.APIResource{kind("Both"), kind("Early"), {Name: "earlys/scale", Kind: "Scale"}}},
		"/apis/example.com/v2": metav1.APIResourceList{APIResources: []metav1.APIResource{kind("Both")}},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.Path)
		if down && r.URL.Path == "/apis/example.com/v2" {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		assert.NoError(t, json.NewEncoder(w).Encode(answers[r.URL.Path]))
	}))
	t.Cleanup(server.Close)
	m, err := newMapper(&rest.Config{Host: server.URL}, server.Client(), discoverTimeout)
	require.NoError(t, err)
	find := func(kind, version string) string {
		mapping, err := m.find(t.Context(), schema.GroupKind{Group: "example.com", Kind: kind}, version)
		if err != nil {
			return err.Error()
		}
		require.False(t, mapping.status)
		return mapping.resource.Version
	}
	const unavailable = "ask the cluster for the kinds in example.com/v2: the server is currently unable to handle the request"
	require.Equal(t, unavailable, find("Both", ""))
	require.Equal(t, "v1", find("Both", "v1"))
	require.Equal(t, unavailable, find("Both", ""))
	require.Equal(t, "the cluster has no kind Scale.example.com in version v1", find("Scale", "v1"))
	down, asked = false, nil
	require.Equal(t, "v2", find("Both", ""))
	require.Equal(t, "v1", find("Early", ""))
	require.Equal(t, []string{"/apis/example.com", "/apis/example.com/v2"}, asked)

	group := answers["/apis/example.com"].(metav1.APIGroup)
	group.PreferredVersion.Version = "v1"
	answers["/apis/example.com"] = group
	require.Equal(t, "v2", find("Both", ""))
	m.expire()
	require.Equal(t, "v2", find("Both", "v2"))
	require.Equal(t, "v1", find("Both", ""))
}

// What a manifest gives as its version is no path to something else.
func TestVersionsThatCannotBeAreNotAskedFor(t *testing.T) {
	t.Parallel()
	_, m, asked := fakeMapper(t)
	asked()
	for _, version := range []schema.GroupVersion{{Group: "..", Version: "v1"}, {Group: "apps", Version: "../../api/v1"}, {Group: "a/b", Version: "v1"}, {Version: "v1?x"}, {Group: "%2e%2e"}} {
		_, err := m.find(t.Context(), schema.GroupKind{Group: version.Group, Kind: "Namespace"}, version.Version)
		var unknown *unknownKindError
		require.ErrorAs(t, err, &unknown, version)
	}
	require.Empty(t, asked())
}

// A kind that is new is found a second after it was missing, and those who ask for it at once share the request.
func TestMissingKindsAreAskedForAgain(t *testing.T) {
	t.Parallel()
	server, m, asked := fakeMapper(t)
	find := func(version string) error {
		_, err := m.find(t.Context(), schema.GroupKind{Group: "example.com", Kind: "Widget"}, version)
		return err
	}
	require.EqualError(t, find("v1"), "the cluster has no kind Widget.example.com in version v1")
	require.EqualError(t, find(""), "the cluster has no kind Widget.example.com")
	client, err := dynamic.NewForConfig(server.Config())
	require.NoError(t, err)
	_, err = client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}).
		Create(t.Context(), &unstructured.Unstructured{Object: definition("example.com")}, metav1.CreateOptions{})
	require.NoError(t, err)
	m.mu.Lock()
	for missing := range m.missing {
		m.missing[missing] = time.Now().Add(-discoverEvery)
	}
	m.mu.Unlock()
	asked()
	began, goOn := make(chan struct{}, 11), make(chan struct{})
	server.Fail(func(*http.Request) *fakeapi.Failure {
		began <- struct{}{}
		<-goOn
		return nil
	})
	found := make(chan error)
	go func() { found <- find("v1") }()
	<-began
	for range 10 {
		go func() { found <- find("v1") }()
	}
	close(goOn)
	for range 11 {
		require.NoError(t, <-found)
	}
	require.Equal(t, "/apis/example.com/v1", asked())
}

// All calls of a target wait for one request: if it never ended, none of them would succeed again.
func TestDiscoveryThatGetsNoAnswerEnds(t *testing.T) {
	t.Parallel()
	server := fakeapi.New(t)
	server.Fail(func(r *http.Request) *fakeapi.Failure {
		<-r.Context().Done()
		return &fakeapi.Failure{Abort: true}
	})
	m, err := newMapper(server.Config(), http.DefaultClient, 10*time.Millisecond)
	require.NoError(t, err)
	_, err = m.find(t.Context(), namespaceKind, "")
	require.ErrorIs(t, err, context.DeadlineExceeded)
}
