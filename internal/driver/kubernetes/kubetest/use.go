//go:build kubernetes

package kubetest

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	authentication "k8s.io/api/authentication/v1"
	core "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	authorizationv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	rbacv1 "k8s.io/client-go/kubernetes/typed/rbac/v1"
	"k8s.io/client-go/rest"
)

// Client has the API groups that tests use. The clientset of client-go has all of them, and takes long to compile.
type Client struct {
	Core          *corev1.CoreV1Client
	RBAC          *rbacv1.RbacV1Client
	Authorization *authorizationv1.AuthorizationV1Client
}

// NewClient returns a client of the server that the configuration names.
func NewClient(config *rest.Config) (*Client, error) {
	var c Client
	var err error
	if c.Core, err = corev1.NewForConfig(config); err != nil {
		return nil, err
	}
	if c.RBAC, err = rbacv1.NewForConfig(config); err != nil {
		return nil, err
	}
	if c.Authorization, err = authorizationv1.NewForConfig(config); err != nil {
		return nil, err
	}
	return &c, nil
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
	made, err := client.Core.Namespaces().Create(t.Context(), &core.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = client.Core.Namespaces().Delete(context.Background(), made.Name, metav1.DeleteOptions{})
	})
	return made.Name
}

// User creates a service account in the namespace that may do what the rules allow: there, or everywhere if everywhere is
// true. It returns the configuration of a client with its token, which ends when the service account is deleted.
func (c *Cluster) User(t testing.TB, namespace, name string, everywhere bool, rules ...rbac.PolicyRule) *rest.Config {
	t.Helper()
	client, ctx := c.client(t), t.Context()
	accounts := client.Core.ServiceAccounts(namespace)
	meta := metav1.ObjectMeta{Name: name, Namespace: namespace}
	_, err := accounts.Create(ctx, &core.ServiceAccount{ObjectMeta: meta}, metav1.CreateOptions{})
	require.NoError(t, err)
	subjects := []rbac.Subject{{Kind: rbac.ServiceAccountKind, Name: name, Namespace: namespace}}
	if everywhere {
		meta = metav1.ObjectMeta{Name: namespace + "-" + name}
		_, err = client.RBAC.ClusterRoles().Create(ctx, &rbac.ClusterRole{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{})
		require.NoError(t, err)
		_, err = client.RBAC.ClusterRoleBindings().Create(ctx, &rbac.ClusterRoleBinding{
			ObjectMeta: meta, Subjects: subjects, RoleRef: rbac.RoleRef{APIGroup: rbac.GroupName, Kind: "ClusterRole", Name: meta.Name},
		}, metav1.CreateOptions{})
	} else {
		_, err = client.RBAC.Roles(namespace).Create(ctx, &rbac.Role{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{})
		require.NoError(t, err)
		_, err = client.RBAC.RoleBindings(namespace).Create(ctx, &rbac.RoleBinding{
			ObjectMeta: meta, Subjects: subjects, RoleRef: rbac.RoleRef{APIGroup: rbac.GroupName, Kind: "Role", Name: name},
		}, metav1.CreateOptions{})
	}
	require.NoError(t, err)
	token, err := accounts.CreateToken(ctx, name, &authentication.TokenRequest{}, metav1.CreateOptions{})
	require.NoError(t, err)
	config := c.Config()
	config.BearerToken = token.Status.Token
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
