//go:build kubernetes

package fakeapi_test

import (
	"os"
	"testing"

	"github.com/pgreconciler/reconciler/internal/driver/kubernetes/kubetest"
)

func TestMain(m *testing.M) {
	code := m.Run()
	kubetest.Stop()
	os.Exit(code)
}

func TestFactsOfTheRealServer(t *testing.T) {
	t.Parallel()
	checkFacts(t, kubetest.Start(t).Config())
}
