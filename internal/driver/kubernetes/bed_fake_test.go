//go:build !kubernetes

package kubernetes

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/dynamic"

	"github.com/pgreconciler/reconciler/internal/driver/kubernetes/fakeapi"
)

// newBed returns a bed on an API server in memory. With the build tag kubernetes the same tests run on a real one.
func newBed(t *testing.T) *bed {
	t.Helper()
	server := fakeapi.New(t)
	admin, err := dynamic.NewForConfig(server.Config())
	require.NoError(t, err)
	b := &bed{kubeconfig: server.Kubeconfig(t), admin: admin, fake: server}
	b.namespace = b.newNamespace(t)
	return b
}
