package sync

import (
	"context"
	"fmt"
	"iter"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/apply"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/loop"
	"github.com/pgreconciler/reconciler/internal/metrics"
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

// silent is a target whose listing stops after an object, until it is let go on.
type silent struct{ goOn chan struct{} }

func (s silent) List(context.Context, []string) iter.Seq2[driver.Listed, error] {
	return func(yield func(driver.Listed, error) bool) {
		for _, key := range []string{"1", "2"} {
			if !yield(driver.Listed{Key: key}, nil) {
				return
			}
			<-s.goOn
		}
	}
}

// F104: a listing that does not go on is a loop that fails. The time that its reader takes does not count.
func TestF104_SilentListingIsALoopThatFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		loops := loop.New(nil, metrics.New(prometheus.NewRegistry()), "eu")
		go loops.Run(t.Context())
		target := silent{make(chan struct{})}
		var read []string
		done := make(chan struct{})
		go func() {
			defer close(done)
			for one, err := range (heard{target, loops.Loop(loop.Sync, "eu")}).List(t.Context(), []string{"app"}) {
				read = append(read, fmt.Sprint(one.Key, err))
				time.Sleep(time.Hour)
			}
		}()
		time.Sleep(time.Hour)
		require.Empty(t, loops.Failing(0))
		time.Sleep(time.Minute)
		require.Len(t, loops.Failing(0), 1)
		require.Contains(t, loops.Failing(0)[0].String(), "loop sync of target eu has been failing for 1m0s: no answer for ")
		target.goOn <- struct{}{}
		synctest.Wait()
		require.Empty(t, loops.Failing(0))
		time.Sleep(time.Hour)
		target.goOn <- struct{}{}
		<-done
		time.Sleep(time.Hour)
		require.Empty(t, loops.Failing(0))
		require.Equal(t, []string{"1<nil>", "2<nil>"}, read)
	})
}
