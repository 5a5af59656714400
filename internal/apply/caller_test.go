package apply

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"golang.org/x/sync/errgroup"

	"github.com/pgreconciler/reconciler/internal/desired"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/throttle"
)

// bench runs the workers of an owner with a dispatcher that reads no rows and a settler that writes nothing.
type bench struct {
	*Owner

	settled chan result
}

func (o *Owner) startBench(t *testing.T) *bench {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	b := &bench{Owner: o, settled: make(chan result, 100_000)}
	var group errgroup.Group
	for range o.cfg.Concurrency {
		group.Go(func() error { return o.caller.work(ctx) })
	}
	group.Go(func() error {
		for {
			items, err := o.queue.Take(ctx, throttle.WindowMost)
			if err != nil {
				close(o.caller.calls[LaneLive])
				close(o.caller.calls[LaneSync])
				return nil
			}
			var looks [2][]look
			for _, it := range items {
				l := look{resource: &desired.Resource{}, item: it, row: wantedRow(), paused: o.orders.paused.Load(), readAt: time.Now(), act: actApply}
				looks[it.Lane] = append(looks[it.Lane], l)
			}
			if err := o.dispatcher.hand(ctx, looks); err != nil {
				return err
			}
		}
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for r := range o.settler.settled {
			o.queue.Done(r.item)
			b.settled <- r
		}
	}()
	t.Cleanup(func() {
		cancel()
		_ = group.Wait()
		close(o.settler.settled)
		<-done
	})
	return b
}

func (b *bench) await(n int) []result {
	results := make([]result, n)
	for i := range results {
		results[i] = <-b.settled
	}
	return results
}

// A rate that is slower than rows become old: each call waits for its turn, and each turn is a call.
func TestSlowRateMakesEveryCallInItsTurn(t *testing.T) {
	t.Parallel()
	for name, rate := range map[string]float64{"OneASecond": 1, "OneInFiveSeconds": 0.2, "TenASecond": 10} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const objects = 30
				started := time.Now()
				var mu sync.Mutex
				var at []time.Duration
				o, _ := testOwner(t, calls(func(context.Context, driver.Ref) driver.Outcome {
					mu.Lock()
					defer mu.Unlock()
					at = append(at, time.Since(started))
					return driver.Done()
				}), func(c *Config) { c.Rate = rate })
				for i := range objects {
					add(t, o.queue, liveItem(fmt.Sprint(i)))
				}
				o.startBench(t).await(objects)
				turn := time.Duration(float64(time.Second) / rate)
				for n, when := range at {
					require.GreaterOrEqual(t, when, time.Duration(n)*turn, "call %d", n)
				}
				require.LessOrEqual(t, at[objects-1], (objects+8)*turn)
			})
		})
	}
}

// What waits for its turn at a slow rate does not keep a target from being given up.
func TestDrainDoesNotWaitForTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o, _ := testOwner(t, calls(func(context.Context, driver.Ref) driver.Outcome { return driver.Done() }), func(c *Config) { c.Rate = 0.001 })
		add(t, o.queue, liveItem("first"), liveItem("second"))
		b := o.startBench(t)
		b.await(1)
		synctest.Wait()
		before := time.Now()
		o.cfg.Grant.Drain()
		synctest.Wait()
		_, _, flying := o.queue.Depth()
		require.Zero(t, flying)
		require.Equal(t, before, time.Now())
	})
}

// C34: a call that has not begun when the owner stops is not made: its object is the next owner's.
func TestCallsThatHaveNotBegunAreNotMadeAfterAStop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var called atomic.Int32
		o, _ := testOwner(t, calls(func(context.Context, driver.Ref) driver.Outcome {
			called.Add(1)
			<-release
			return driver.Done()
		}), nil)
		o.queue.SetWindow(100)
		run := &Run{}
		for i := range 50 {
			run.add(false)
			it := liveItem(fmt.Sprint(i))
			it.Payload.runs = []*Run{run}
			add(t, o.queue, it)
		}
		b := o.startBench(t)
		synctest.Wait()
		require.EqualValues(t, 4, called.Load())
		o.queue.Stop()
		close(release)
		b.await(4)
		synctest.Wait()
		require.EqualValues(t, 4, called.Load())
		require.True(t, run.cut)
	})
}

// C36: calls that were handed out before a pause, and have not begun, are not made.
func TestPauseStopsCallsThatWereHandedOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var called atomic.Int32
		o, _ := testOwner(t, calls(func(context.Context, driver.Ref) driver.Outcome {
			called.Add(1)
			<-release
			return driver.Done()
		}), nil)
		group := []look{{resource: &desired.Resource{}, item: liveItem("a"), row: wantedRow(), readAt: time.Now(), act: actApply}}
		add(t, o.queue, group[0].item)
		tryTake(o.queue, 1)
		o.orders.paused.Store(true)
		o.caller.callGroup(t.Context(), group)
		require.Zero(t, called.Load())
		live, _, flying := o.queue.Depth()
		require.Equal(t, []int{1, 0}, []int{live, flying}, "it is looked at once more")
	})
}

// A row that was read too long ago is read once more.
func TestOldRowIsReadAgainBeforeItsCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o, _ := testOwner(t, calls(func(context.Context, driver.Ref) driver.Outcome { panic("called") }), nil)
		group := []look{{resource: &desired.Resource{}, item: liveItem("a"), row: wantedRow(), readAt: time.Now(), act: actApply}}
		add(t, o.queue, group[0].item)
		tryTake(o.queue, 1)
		elapse(staleAfter + time.Nanosecond)
		o.caller.callGroup(t.Context(), group)
		live, _, flying := o.queue.Depth()
		require.Equal(t, []int{1, 0}, []int{live, flying})
	})
}

// I11: a live flood leaves a quarter of the calls to the sync lane, and a flood of the sync lane leaves workers for live
// changes.
func TestWorkersServeBothLanes(t *testing.T) {
	t.Parallel()
	for _, concurrency := range []int{1, 2, 4, 16} {
		t.Run(fmt.Sprintf("Concurrency%d", concurrency), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const call = 100 * time.Millisecond
				o, _ := testOwner(t, calls(func(context.Context, driver.Ref) driver.Outcome {
					<-time.After(call)
					return driver.Done()
				}), func(c *Config) { c.Concurrency = concurrency })
				for i := range 4000 {
					add(t, o.queue, liveItem(fmt.Sprintf("live %d", i)), syncItem(fmt.Sprintf("sync %d", i)))
				}
				started := time.Now()
				b := o.startBench(t)
				n := 100 * concurrency
				var lanes [2]int
				for _, r := range b.await(n) {
					lanes[r.item.Lane]++
				}
				require.GreaterOrEqual(t, lanes[LaneSync], n/8)
				require.GreaterOrEqual(t, lanes[LaneLive], n/2)
				require.LessOrEqual(t, time.Since(started), 2*100*call, "workers are not idle")
			})
		})
	}
}

// C29: however answers and failures interleave, the queue is paused exactly while the circuit is open.
func TestCircuitAndQueueAgree(t *testing.T) {
	t.Parallel()
	for range 200 {
		o, _ := testOwner(t, calls(nil), nil)
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() { o.circuit.failed(t.Context(), o.breaker.Unreached, errors.New("refused")) })
		}
		for range 3 {
			wg.Go(func() { o.circuit.answered(t.Context()) })
		}
		wg.Wait()
		add(t, o.queue, liveItem("a"))
		require.Equal(t, o.breaker.IsOpen(), len(tryTake(o.queue, 1)) == 0)
	}
}

// A panic of a driver is a failed attempt with its stack; a panic of its check is a check that failed.
func TestPanicsOfADriverAreFailures(t *testing.T) {
	t.Parallel()
	o, _ := testOwner(t, checkedPanic{calls(func(context.Context, driver.Ref) driver.Outcome { panic("boom") })}, nil)
	group := []look{{resource: &desired.Resource{}, item: liveItem("a"), row: wantedRow(), act: actApply}}
	out := o.caller.call(t.Context(), group)
	require.Len(t, out, 1)
	require.Equal(t, driver.VerdictBackoff, out[0].Verdict)
	require.ErrorContains(t, out[0].Err, "the driver panicked: boom\n")
	require.ErrorContains(t, out[0].Err, "caller_test.go")
	require.ErrorContains(t, o.circuit.check(t.Context(), o.cfg.Driver.(driver.Checker)), "the driver panicked: check\n")
}

type checkedPanic struct{ driver.Driver }

func (checkedPanic) Check(context.Context) error { panic("check") }

// A driver that gives fewer outcomes than it got objects has failed for all of them.
func TestBatchWithMissingOutcomesFails(t *testing.T) {
	t.Parallel()
	o, _ := testOwner(t, batching{outcomes: 1}, nil)
	group := []look{{resource: &desired.Resource{}, item: liveItem("a"), row: wantedRow(), act: actApply}, {resource: &desired.Resource{}, item: liveItem("b"), row: wantedRow(), act: actApply}}
	for _, out := range o.caller.call(t.Context(), group) {
		require.EqualError(t, out.Err, "the driver gave 1 outcomes for 2 objects")
		require.Equal(t, driver.VerdictBackoff, out.Verdict)
	}
}

type batching struct {
	calls

	outcomes int
}

func (b batching) ApplyBatch(context.Context, []driver.Object) []driver.Outcome {
	return make([]driver.Outcome, b.outcomes)
}

func TestCallsAreGroupedForDriversThatTakeMany(t *testing.T) {
	t.Parallel()
	var looks []look
	for i := range 1001 {
		act := actApply
		if i%100 == 0 {
			act = actDelete
		}
		looks = append(looks, look{resource: &desired.Resource{}, item: liveItem(fmt.Sprint(i)), act: act})
	}
	sizes := func(o *Owner, looks []look) map[int]int {
		n := map[int]int{}
		for _, group := range o.dispatcher.groups(looks) {
			n[len(group)]++
		}
		return n
	}
	single, _ := testOwner(t, calls(nil), nil)
	require.Equal(t, map[int]int{1: 1001}, sizes(single, looks))
	many, _ := testOwner(t, batching{}, nil)
	require.Equal(t, map[int]int{1: 11, 200: 4, 190: 1}, sizes(many, looks), "deletes go one by one")
	require.Equal(t, map[int]int{2: 4}, sizes(many, looks[1:9]), "every worker gets something")
	require.Empty(t, sizes(many, nil))
}
