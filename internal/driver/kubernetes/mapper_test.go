package kubernetes

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver/kubernetes/fakeapi"
)

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
