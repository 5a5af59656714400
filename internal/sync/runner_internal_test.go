package sync

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/apply"
)

// C34: the owner may hear of a stop before the sync does; that it left objects unsettled is then no failure.
func TestSyncThatItsOwnerCutsIsNoError(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan error, 1)
		go func() { result <- (&Runner{}).stopped(ctx, apply.ErrRunCut) }()
		synctest.Wait()
		require.Empty(t, result, "it waits to be told")
		cancel()
		require.NoError(t, <-result)
	})
}
