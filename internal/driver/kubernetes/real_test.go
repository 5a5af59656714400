//go:build kubernetes

package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	rbac "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/kubernetes/kubetest"
	"github.com/pgreconciler/reconciler/internal/pgtest"
)

func TestClusterThatStopsAndComesBack(t *testing.T) {
	t.Parallel()
	cluster := kubetest.New(t)
	admin, err := dynamic.NewForConfig(cluster.Config())
	require.NoError(t, err)
	b := &bed{kubeconfig: cluster.Kubeconfig(t), admin: admin, namespace: "default"}
	c := b.open(t, "prod", driver.Options{"force_managers": []any{"kubectl-edit"}})
	c.done(t, "web", configMap("a", one("1")), configMap("b", one("1")))
	w := c.watch(t)
	w.follows(b, c)

	cluster.StopServer()
	require.Error(t, <-w.ended)
	out := c.apply(t, "web", configMap("a", one("2")))
	require.Equal(t, driver.VerdictUnreachable, out.Verdict, "error: %v", out.Err)
	require.Error(t, c.Driver.(driver.Checker).Check(t.Context())) //nolint:forcetypeassert // it is one
	cluster.StartServer(t)
	require.NoError(t, c.Driver.(driver.Checker).Check(t.Context())) //nolint:forcetypeassert // it is one
	b.edit(t, configMaps, "a", "kubectl-edit", `{"data": {"a": "9"}}`)
	require.Contains(t, c.drifted(t), "web")
	w = c.watch(t)
	w.names("apps/web") // it was missed, and this process knows how the member was
	c.done(t, "web", configMap("a", one("2")))
	require.Equal(t, one("2"), b.data(t, "a"))
	require.Nil(t, b.data(t, "b"))

	cluster.StopEtcd()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	spec, err := json.Marshal(configMap("a", one("3")))
	require.NoError(t, err)
	out = c.Driver.Apply(ctx, driver.Object{Ref: c.ref("web"), Spec: spec})
	require.NotEqual(t, driver.VerdictDone, out.Verdict)
	require.NotEqual(t, driver.VerdictTerminal, out.Verdict, "error: %v", out.Err)
	cluster.StartEtcd(t)
	c.becomesDone(t, func() driver.Outcome { return c.apply(t, "web", configMap("a", one("3"))) })
	require.Equal(t, one("3"), b.data(t, "a"))
	require.NotContains(t, c.drifted(t), "web")
}

// kubeconfigOf writes a kubeconfig with the credentials of a client, in a token file.
func kubeconfigOf(t *testing.T, config *rest.Config) string {
	t.Helper()
	tokenFile := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(tokenFile, []byte(config.BearerToken), 0o600))
	all := clientcmdapi.NewConfig()
	all.Clusters["test"] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthority: config.CAFile, CertificateAuthorityData: config.CAData}
	all.AuthInfos["test"] = &clientcmdapi.AuthInfo{TokenFile: tokenFile}
	all.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "test"}
	all.CurrentContext = "test"
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, clientcmd.WriteToFile(*all, kubeconfig))
	return kubeconfig
}

func TestMissingRightIsNamedAndStopsNoOther(t *testing.T) {
	t.Parallel()
	cluster := kubetest.Start(t)
	admin, err := dynamic.NewForConfig(cluster.Config())
	require.NoError(t, err)
	b := &bed{admin: admin, namespace: cluster.Namespace(t)}
	user := cluster.User(t, b.namespace, "reconciler", false, rbac.PolicyRule{
		APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get", "list", "watch", "create", "patch", "delete"},
	})
	b.kubeconfig = kubeconfigOf(t, user)
	c := b.open(t, "prod", driver.Options{"namespaces": []any{b.namespace}})
	c.done(t, "web", configMap("a", one("1")))
	out := c.apply(t, "api", configMap("b", one("1")), deployment("web", 1))
	require.Equal(t, driver.VerdictBackoff, out.Verdict)
	require.ErrorContains(t, out.Err, `Deployment.apps web in `+b.namespace+`: deployments.apps "web" is forbidden: User "system:serviceaccount:`+
		b.namespace+`:reconciler" cannot patch resource "deployments" in API group "apps" in the namespace "`+b.namespace+`"`)
	require.Equal(t, one("1"), b.data(t, "b"))
}

// A token whose account is gone is one fact about the target, and not one for each object.
func TestExpiredTokenMakesTheTargetUnreachable(t *testing.T) {
	t.Parallel()
	cluster := kubetest.Start(t)
	admin, err := dynamic.NewForConfig(cluster.Config())
	require.NoError(t, err)
	b := &bed{admin: admin, namespace: cluster.Namespace(t)}
	rule := rbac.PolicyRule{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get", "create", "patch"}}
	user := cluster.User(t, b.namespace, "reconciler", false, rule)
	b.kubeconfig = kubeconfigOf(t, user)
	c := b.open(t, "prod", nil)
	c.done(t, "web", configMap("a", one("1")))
	accounts := admin.Resource(schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}).Namespace(b.namespace)
	require.NoError(t, accounts.Delete(t.Context(), "reconciler", metav1.DeleteOptions{}))
	n := 1
	require.NoError(t, pgtest.Poll(t.Context(), callPatience, func() error { // servers remember a token for some seconds
		n++
		out := c.apply(t, "web", configMap("a", one(fmt.Sprint(n))))
		if out.Verdict == driver.VerdictDone {
			return errors.New("the token still counts")
		}
		requireOut(t, driver.VerdictUnreachable, "the cluster refuses the credentials: Unauthorized", out)
		return nil
	}))
}
