package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/kubernetes/fakeapi"
)

var (
	namespaces  = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	deployments = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
)

// bed is a cluster with a namespace of the test's, and the rows that the test applies: it remembers what the ledger would.
type bed struct {
	kubeconfig string
	namespace  string
	admin      dynamic.Interface
	fake       *fakeapi.Server // nil: the cluster is a real one
}

// realBed makes a bed on a real API server. It is nil without the build tag kubernetes.
var (
	realBed  func(t testing.TB) *bed
	stopReal = func() {}
)

// newBed returns a bed on a real API server, or else on one in memory.
func newBed(t *testing.T) *bed {
	t.Helper()
	if realBed == nil {
		return fakeBed(t)
	}
	b := realBed(t)
	b.namespace = b.newNamespace(t)
	return b
}

// fakeBed returns a bed on an API server in memory, for what a real one cannot be made to do.
func fakeBed(t *testing.T) *bed {
	t.Helper()
	server := fakeapi.New(t)
	admin, err := dynamic.NewForConfig(server.Config())
	require.NoError(t, err)
	b := &bed{kubeconfig: server.Kubeconfig(t), admin: admin, fake: server}
	b.namespace = b.newNamespace(t)
	return b
}

var names atomic.Int64

func (b *bed) newNamespace(t testing.TB) string {
	t.Helper()
	name := fmt.Sprintf("test-%d", names.Add(1))
	b.create(t, namespaces, "", map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": name}})
	t.Cleanup(func() { _ = b.admin.Resource(namespaces).Delete(context.Background(), name, metav1.DeleteOptions{}) })
	return name
}

// caller is a driver of a target, and what is remembered of its objects.
type caller struct {
	driver.Driver

	target   string
	memory   map[string][]byte
	approved bool
	owner    driver.Caller
}

func (b *bed) open(t testing.TB, target string, opts driver.Options) *caller {
	t.Helper()
	all := driver.Options{"kubeconfig": b.kubeconfig, "namespace": b.namespace}
	for name, value := range opts {
		all[name] = value
	}
	d, err := Kind().Open(target, all, driver.Env{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close(t.Context())) })
	return &caller{Driver: d, target: target, memory: map[string][]byte{}}
}

func (c *caller) ref(key string) driver.Ref {
	return driver.Ref{Target: c.target, Resource: "apps", Key: key, Revision: 1, Term: 1, Memory: c.memory[key], Approved: c.approved, Owner: c.owner}
}

// apply applies an object with these manifests.
func (c *caller) apply(t *testing.T, key string, manifests ...any) driver.Outcome {
	t.Helper()
	if manifests == nil {
		manifests = []any{}
	}
	spec, err := json.Marshal(manifests)
	require.NoError(t, err)
	out := c.Driver.Apply(t.Context(), driver.Object{Ref: c.ref(key), Spec: spec, Hash: driver.HashSpec(spec)})
	if out.Memory != nil {
		c.memory[key] = out.Memory
	}
	return out
}

func (c *caller) done(t *testing.T, key string, manifests ...any) {
	t.Helper()
	requireDone(t, c.apply(t, key, manifests...))
}

func (c *caller) delete(t *testing.T, key string) driver.Outcome {
	t.Helper()
	out := c.Driver.Delete(t.Context(), c.ref(key))
	if out.Memory != nil {
		c.memory[key] = out.Memory
	}
	if out.Verdict == driver.VerdictDone {
		delete(c.memory, key)
	}
	return out
}

// drifted returns the keys whose memory a listing contradicts, with those that it does not have.
func (c *caller) drifted(t *testing.T) []string {
	t.Helper()
	listed := map[string][]byte{}
	lister, ok := c.Driver.(driver.Lister)
	require.True(t, ok)
	for one, err := range lister.List(t.Context(), []string{"apps"}) {
		require.NoError(t, err)
		listed[one.Key] = one.Memory
	}
	drifted := []string{}
	for key, memory := range c.memory {
		if string(listed[key]) != string(memory) {
			drifted = append(drifted, key)
		}
		delete(listed, key)
	}
	for key := range listed {
		drifted = append(drifted, "orphan "+key)
	}
	return drifted
}

func requireDone(t *testing.T, out driver.Outcome) {
	t.Helper()
	require.Equal(t, driver.VerdictDone, out.Verdict, "error: %v", out.Err)
}

// requireOut fails unless an outcome has this verdict and error.
func requireOut(t *testing.T, verdict driver.Verdict, text string, out driver.Outcome) {
	t.Helper()
	require.Equal(t, verdict, out.Verdict, "error: %v", out.Err)
	require.EqualError(t, out.Err, text)
}

func configMap(name string, data map[string]any) map[string]any {
	return map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name}, "data": data}
}

func one(value string) map[string]any { return map[string]any{"a": value} }

func deployment(name string, replicas any) map[string]any {
	labels := map[string]any{"app": name}
	spec := map[string]any{
		"selector": map[string]any{"matchLabels": labels},
		"template": map[string]any{
			"metadata": map[string]any{"labels": labels},
			"spec":     map[string]any{"containers": []any{map[string]any{"name": "main", "image": "web:1"}}},
		},
	}
	if replicas != nil {
		spec["replicas"] = replicas
	}
	return map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"name": name}, "spec": spec}
}

func (b *bed) create(t testing.TB, of schema.GroupVersionResource, namespace string, manifest map[string]any) {
	t.Helper()
	_, err := b.admin.Resource(of).Namespace(namespace).Create(t.Context(), &unstructured.Unstructured{Object: manifest}, metav1.CreateOptions{FieldManager: "somebody"})
	require.NoError(t, err)
}

// get returns an object; nil: there is none.
func (b *bed) get(t *testing.T, of schema.GroupVersionResource, namespace, name string) *unstructured.Unstructured {
	t.Helper()
	found, err := b.admin.Resource(of).Namespace(namespace).Get(t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	require.NoError(t, err)
	return found
}

// data returns what a ConfigMap of the test's namespace has; nil: there is none.
func (b *bed) data(t *testing.T, name string) map[string]any {
	t.Helper()
	found := b.get(t, configMaps, b.namespace, name)
	if found == nil {
		return nil
	}
	data, _ := found.Object["data"].(map[string]any)
	return data
}

// edit changes an object as a person does who uses a manager of this name.
func (b *bed) edit(t *testing.T, of schema.GroupVersionResource, name, manager, patch string) {
	t.Helper()
	_, err := b.admin.Resource(of).Namespace(b.namespace).Patch(t.Context(), name, types.MergePatchType, []byte(patch),
		metav1.PatchOptions{FieldManager: manager})
	require.NoError(t, err)
}

func (b *bed) remove(t *testing.T, of schema.GroupVersionResource, name string) {
	t.Helper()
	require.NoError(t, b.admin.Resource(of).Namespace(b.namespace).Delete(t.Context(), name, metav1.DeleteOptions{}))
}

// callPatience is how long a real cluster has for what takes it seconds.
const callPatience = time.Minute

// settle does what the controllers of a real cluster do on their own: it empties a namespace that is being deleted, as soon as it is.
func (b *bed) settle(t *testing.T, namespace string) {
	t.Helper()
	if b.fake != nil {
		b.fake.FinishNamespace(namespace)
	}
}

// reopened returns a new driver of a target, with what is remembered of its objects: another owner.
func (b *bed) reopened(t *testing.T, c *caller) *caller {
	t.Helper()
	again := b.open(t, c.target, nil)
	again.memory = c.memory
	return again
}
