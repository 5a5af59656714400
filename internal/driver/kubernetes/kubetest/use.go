//go:build kubernetes

package kubetest

import (
	"context"
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	rbac "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

var core = schema.GroupVersion{Version: "v1"}

// Client sends objects of any type. The typed clients of client-go take long to compile.
type Client struct{ dynamic.Interface }

// NewClient returns a client of the server that the configuration names.
func NewClient(config *rest.Config) (*Client, error) {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &Client{client}, nil
}

// Create creates an object from a map or struct that names its kind and namespace. It returns the server's answer.
func (c *Client) Create(ctx context.Context, object any) (*unstructured.Unstructured, error) {
	text, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	var body unstructured.Unstructured
	if err := body.UnmarshalJSON(text); err != nil {
		return nil, err
	}
	resource, _ := meta.UnsafeGuessKindToResource(body.GroupVersionKind())
	return c.Resource(resource).Namespace(body.GetNamespace()).Create(ctx, &body, metav1.CreateOptions{})
}

// Token creates a token of a service account.
func (c *Client) Token(ctx context.Context, namespace, account string) (string, error) {
	request := map[string]any{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": map[string]any{"name": account}}
	answer, err := c.Resource(core.WithResource("serviceaccounts")).Namespace(namespace).
		Create(ctx, &unstructured.Unstructured{Object: request}, metav1.CreateOptions{}, "token")
	if err != nil {
		return "", err
	}
	token, _, err := unstructured.NestedString(answer.Object, "status", "token")
	return token, err
}

// Kubeconfig writes a kubeconfig file of a client that may do everything, and returns its path.
func (c *Cluster) Kubeconfig(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, c.writeKubeconfig(path))
	return path
}

// Namespace creates a namespace and returns its name. It is deleted with the test, which does not wait for that.
func (c *Cluster) Namespace(t testing.TB) string {
	t.Helper()
	client := c.client(t)
	made, err := client.Create(t.Context(), map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"generateName": "test-"}})
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = client.Resource(core.WithResource("namespaces")).Delete(context.Background(), made.GetName(), metav1.DeleteOptions{})
	})
	return made.GetName()
}

// User creates a service account in the namespace that may do what the rules allow: there, or everywhere if everywhere is
// true. It returns the configuration of a client with its token, which ends when the service account is deleted.
func (c *Cluster) User(t testing.TB, namespace, name string, everywhere bool, rules ...rbac.PolicyRule) *rest.Config {
	t.Helper()
	client, kind, about := c.client(t), "Role", metav1.ObjectMeta{Name: name, Namespace: namespace}
	account := map[string]any{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": about}
	if everywhere {
		kind, about = "ClusterRole", metav1.ObjectMeta{Name: namespace + "-" + name}
	}
	v1 := rbac.SchemeGroupVersion.String()
	for _, object := range []any{
		account,
		rbac.Role{TypeMeta: metav1.TypeMeta{APIVersion: v1, Kind: kind}, ObjectMeta: about, Rules: rules},
		rbac.RoleBinding{
			TypeMeta: metav1.TypeMeta{APIVersion: v1, Kind: kind + "Binding"}, ObjectMeta: about,
			Subjects: []rbac.Subject{{Kind: rbac.ServiceAccountKind, Name: name, Namespace: namespace}},
			RoleRef:  rbac.RoleRef{APIGroup: rbac.GroupName, Kind: kind, Name: about.Name},
		},
	} {
		_, err := client.Create(t.Context(), object)
		require.NoError(t, err)
	}
	token, err := client.Token(t.Context(), namespace, name)
	require.NoError(t, err)
	config := c.Config()
	config.BearerToken = token
	return config
}

func (c *Cluster) client(t testing.TB) *Client {
	t.Helper()
	client, err := NewClient(c.Config())
	require.NoError(t, err)
	return client
}

// StopServer kills the API server.
func (c *Cluster) StopServer() { c.server.stop() }

// StartServer starts the stopped API server at its old address, and waits until it is ready.
func (c *Cluster) StartServer(t testing.TB) {
	t.Helper()
	require.NoError(t, c.startServer())
}

// RestartServer kills the API server and starts it again.
func (c *Cluster) RestartServer(t testing.TB) {
	t.Helper()
	c.StopServer()
	c.StartServer(t)
}

// StopEtcd kills etcd. The API server then holds each read of the present for a minute and resets the stream.
func (c *Cluster) StopEtcd() { c.etcd.stop() }

// StartEtcd starts the stopped etcd with its data, and waits until it and the API server are ready.
func (c *Cluster) StartEtcd(t testing.TB) {
	t.Helper()
	require.NoError(t, c.startEtcd())
	require.NoError(t, c.server.wait(c.probe, c.serverURL+"/readyz", adminToken))
}
