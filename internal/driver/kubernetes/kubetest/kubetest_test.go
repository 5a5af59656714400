//go:build kubernetes

package kubetest_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	rbac "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/pgreconciler/reconciler/internal/driver/kubernetes/kubetest"
)

var (
	configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	namespaces = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	secrets    = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
)

func TestMain(m *testing.M) {
	code := m.Run()
	kubetest.Stop()
	os.Exit(code)
}

func TestAUserMayDoWhatItsRulesAllow(t *testing.T) {
	t.Parallel()
	cluster := kubetest.Start(t)
	namespace, other := cluster.Namespace(t), cluster.Namespace(t)
	read := rbac.PolicyRule{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"list"}}
	here, err := kubetest.NewClient(cluster.User(t, namespace, "here", false, read))
	require.NoError(t, err)
	everywhere, err := kubetest.NewClient(cluster.User(t, namespace, "everywhere", true, read))
	require.NoError(t, err)
	lists := func(client *kubetest.Client, namespace string) func() bool { // the server learns of rules a moment later
		return func() bool {
			_, err := client.Resource(configMaps).Namespace(namespace).List(t.Context(), metav1.ListOptions{})
			return err == nil
		}
	}
	require.Eventually(t, lists(here, namespace), time.Minute, 10*time.Millisecond)
	require.Eventually(t, lists(everywhere, other), time.Minute, 10*time.Millisecond)
	_, err = here.Resource(configMaps).Namespace(other).List(t.Context(), metav1.ListOptions{})
	require.True(t, apierrors.IsForbidden(err), err)
	_, err = everywhere.Resource(secrets).Namespace(namespace).List(t.Context(), metav1.ListOptions{})
	require.True(t, apierrors.IsForbidden(err), err)
}

func TestControllersEndANamespace(t *testing.T) {
	t.Parallel()
	cluster := kubetest.Start(t)
	config, err := clientcmd.BuildConfigFromFlags("", cluster.Kubeconfig(t))
	require.NoError(t, err)
	client, err := kubetest.NewClient(config)
	require.NoError(t, err)
	namespace := cluster.Namespace(t)
	_, err = client.Create(t.Context(), map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "a", "namespace": namespace}})
	require.NoError(t, err)
	require.NoError(t, client.Resource(namespaces).Delete(t.Context(), namespace, metav1.DeleteOptions{}))
	require.Eventually(t, func() bool {
		_, err := client.Resource(namespaces).Get(t.Context(), namespace, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}, 2*time.Minute, 50*time.Millisecond)
}

func TestDataOutlivesServerAndEtcd(t *testing.T) {
	t.Parallel()
	cluster := kubetest.New(t)
	client, err := kubetest.NewClient(cluster.Config())
	require.NoError(t, err)
	namespace := cluster.Namespace(t)
	get := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		_, err := client.Resource(namespaces).Get(ctx, namespace, metav1.GetOptions{})
		return err
	}
	cluster.StopServer()
	require.ErrorContains(t, get(), "connection refused")
	cluster.StartServer(t)
	require.NoError(t, get())
	cluster.StopEtcd()
	waiting, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err = client.Resource(namespaces).Get(waiting, namespace, metav1.GetOptions{})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	cluster.StartEtcd(t)
	require.NoError(t, get())
	cluster.RestartServer(t)
	require.NoError(t, get())
}
