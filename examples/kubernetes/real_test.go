//go:build kubernetes

package kubernetes_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/pgreconciler/reconciler/internal/driver/kubernetes/kubetest"
)

var pods = schema.GroupVersionResource{Version: "v1", Resource: "pods"}

func init() {
	newCluster = func(t *testing.T) string {
		t.Helper()
		return kubetest.New(t).Kubeconfig(t)
	}
	startPods = func(t *testing.T, cluster dynamic.Interface, app string) {
		t.Helper()
		require.Eventually(t, func() bool {
			all, err := cluster.Resource(pods).Namespace("shop").List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + app})
			require.NoError(t, err)
			for _, pod := range all.Items {
				// A pod may be gone by now: a rollout replaces them.
				_, _ = cluster.Resource(pods).Namespace("shop").Patch(t.Context(), pod.GetName(), types.MergePatchType,
					[]byte(`{"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}`), metav1.PatchOptions{}, "status")
				if pod.GetDeletionTimestamp() != nil { // nor is there a kubelet that would end it
					_ = cluster.Resource(pods).Namespace("shop").Delete(t.Context(), pod.GetName(), metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))})
				}
			}
			live, err := cluster.Resource(deployments).Namespace("shop").Get(t.Context(), app, metav1.GetOptions{})
			require.NoError(t, err)
			observed, _, _ := unstructured.NestedInt64(live.Object, "status", "observedGeneration")
			updated, _, _ := unstructured.NestedInt64(live.Object, "status", "updatedReplicas")
			available, _, _ := unstructured.NestedInt64(live.Object, "status", "availableReplicas")
			total, _, _ := unstructured.NestedInt64(live.Object, "status", "replicas")
			wanted, _, _ := unstructured.NestedInt64(live.Object, "spec", "replicas")
			return observed == live.GetGeneration() && updated == wanted && available == wanted && total == wanted
		}, patience, poll)
	}
	admitted = func(t *testing.T, cluster dynamic.Interface) {
		t.Helper()
		for _, app := range []string{"reconciler", "reconciler-agent"} {
			require.Eventually(t, func() bool {
				all, err := cluster.Resource(pods).Namespace("reconciler").List(t.Context(), metav1.ListOptions{LabelSelector: "app=" + app})
				require.NoError(t, err)
				return len(all.Items) > 0
			}, patience, poll)
		}
	}
	restrict = func(t *testing.T, kubeconfig, roles string) {
		t.Helper()
		cluster := clientOf(t, kubeconfig)
		const account = `{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "reconciler", "namespace": "default"}}`
		for one := range strings.SplitSeq(account+"\n---\n"+roles, "---\n") {
			apply(t, cluster, one)
		}
		config, err := clientcmd.LoadFromFile(kubeconfig)
		require.NoError(t, err)
		token, err := (&kubetest.Client{Interface: cluster}).Token(t.Context(), "default", "reconciler")
		require.NoError(t, err)
		for _, user := range config.AuthInfos {
			user.Token = token
		}
		require.NoError(t, clientcmd.WriteToFile(*config, kubeconfig))
	}
}
