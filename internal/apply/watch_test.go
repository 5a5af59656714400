package apply

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

func TestDriverThatCannotWatchIsNotWatched(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o, db := testOwner(t, calls(nil), nil)
		require.NoError(t, o.watcher.watch(t.Context()))
		require.NoError(t, o.watcher.recheck(t.Context()))
		require.Empty(t, db.asked)
	})
}
