package apply

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/lease"
	"github.com/pgreconciler/reconciler/internal/throttle"
)

// I10: a call begins only while the lease outlives it. What is left then is the next owner's.
func TestNoCallBeginsThatMayOutliveTheLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const timeout, lives = 5 * time.Second, 7500 * time.Millisecond
		var began []time.Duration
		started := time.Now()
		o, _ := testOwner(t, calls(func(context.Context, driver.Ref) driver.Outcome {
			began = append(began, time.Since(started))
			<-time.After(time.Second)
			return driver.Done()
		}), func(c *Config) {
			c.Concurrency, c.Timeout = 1, timeout
			c.Grant = lease.NewGrant("eu", 1, c.Instance, 1, lives)
		})
		for i := range 20 {
			add(t, o.queue, liveItem(fmt.Sprint(i)))
		}
		b := o.startBench(t)
		elapse(time.Minute)
		require.Len(t, b.settled, 3)
		require.Equal(t, []time.Duration{0, time.Second, 2 * time.Second}, began)
	})
}

// I11: slow calls of a sync, handed out while calls were fast and the window wide, leave a quarter of the workers to live
// changes.
func TestSlowSyncLeavesWorkersToLiveChanges(t *testing.T) {
	t.Parallel()
	for _, concurrency := range []int{2, 4, 16} {
		t.Run(fmt.Sprintf("Concurrency%d", concurrency), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var hanging atomic.Int64
				o, _ := testOwner(t, calls(func(ctx context.Context, ref driver.Ref) driver.Outcome {
					if strings.HasPrefix(ref.Key, "sync") {
						hanging.Add(1)
						<-ctx.Done()
						return driver.Backoff(ctx.Err())
					}
					return driver.Done()
				}), func(c *Config) { c.Concurrency, c.Timeout = concurrency, time.Hour })
				o.queue.SetWindow(throttle.WindowMost)
				for i := range 100 {
					add(t, o.queue, syncItem(fmt.Sprintf("sync %d", i)))
				}
				b := o.startBench(t)
				elapse(time.Second)
				require.EqualValues(t, concurrency-max(1, concurrency/4), hanging.Load())
				add(t, o.queue, liveItem("live"))
				elapse(time.Second)
				require.Len(t, b.settled, 1)
				require.Equal(t, "live", (<-b.settled).item.Key)
			})
		})
	}
}

// I11: live changes without end, with calls so fast that some are always handed out and waiting, leave a sync its share.
func TestFastLiveChangesLeaveASyncItsShare(t *testing.T) {
	t.Parallel()
	for _, concurrency := range []int{1, 4} {
		t.Run(fmt.Sprintf("Concurrency%d", concurrency), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				o, _ := testOwner(t, calls(func(context.Context, driver.Ref) driver.Outcome {
					<-time.After(time.Millisecond)
					return driver.Done()
				}), func(c *Config) { c.Concurrency = concurrency })
				for i := range 8000 {
					add(t, o.queue, liveItem(fmt.Sprintf("live %d", i)), syncItem(fmt.Sprintf("sync %d", i)))
				}
				b := o.startBench(t)
				b.await(2000) // until it is known how long a call takes
				const n = 1000
				var lanes [2]int
				for _, r := range b.await(n) {
					lanes[r.item.Lane]++
				}
				require.GreaterOrEqual(t, lanes[LaneSync], n/8)
				require.GreaterOrEqual(t, lanes[LaneLive], n/2)
			})
		})
	}
}
