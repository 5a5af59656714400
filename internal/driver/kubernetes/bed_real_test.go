//go:build kubernetes

package kubernetes

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/dynamic"

	"github.com/pgreconciler/reconciler/internal/driver/kubernetes/kubetest"
)

func init() {
	realBed = func(t testing.TB) *bed {
		t.Helper()
		cluster := kubetest.Start(t)
		admin, err := dynamic.NewForConfig(cluster.Config())
		require.NoError(t, err)
		return &bed{kubeconfig: cluster.Kubeconfig(t), admin: admin}
	}
	stopReal = kubetest.Stop
}
