package server_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/server/servertest"
)

// I1, I3: a resource is untracked, with its objects kept, and tracked again in one transaction, while calls for its objects wait for
// their turn. None of them is made, and no call has another name than that of the resource.
func TestResourceThatIsTrackedAgainWhileCallsWait(t *testing.T) {
	t.Parallel()
	w := servertest.New(t)
	w.DB.Exec(t, tracked)
	w.DB.Exec(t, `INSERT INTO apps SELECT n, 'eu', 'v1' FROM generate_series(1, 20) AS n`)
	eu := servertest.NewPlace()
	w.Start(servertest.Named("eu", eu, func(c *config.Target) { c.Concurrency = 1 }))
	w.Converged()
	begun, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	eu.Set(func(ctx context.Context, _ servertest.Call) driver.Outcome {
		once.Do(func() { close(begun) })
		select {
		case <-release:
		case <-ctx.Done():
		}
		return driver.Done()
	})
	w.DB.Exec(t, `UPDATE apps SET image = 'v2'`)
	<-begun
	w.DB.Exec(t, `BEGIN; SELECT reconciler.untrack('app', 'keep'); SELECT reconciler.track('app', 'apps', '{id}', 'region', spec => 'to_jsonb(image)'); COMMIT`)
	// Its sync has read a page: the process knows the new definitions.
	w.Settled("true", `SELECT (count(*) > 0)::text FROM reconciler.sync_runs s JOIN reconciler.resources r ON r.id = s.resource_id WHERE s.at_key IS NOT NULL`)
	close(release)
	w.Converged()
	_, calls, _ := eu.Snapshot()
	for _, c := range calls {
		require.Equal(t, "app", c.Resource, c.Action+" "+c.Key)
	}
	require.LessOrEqual(t, len(calls), 20+1+20, "for the rows, for the one change whose call had begun, and for the resource that is tracked again")
}
