package apply

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/desired"
	"github.com/pgreconciler/reconciler/internal/driver"
)

// What the target answered counts, however late its answer ended; only silence is a timeout, and feeds the breaker.
func TestF85_AnAnswerThatEndsLateIsNoTimeout(t *testing.T) {
	t.Parallel()
	answer := errors.New("PUT http://x: 422")
	for name, c := range map[string]struct {
		said driver.Outcome
		want driver.Outcome
	}{
		"Terminal":   {driver.Terminal(answer), driver.Terminal(answer)},
		"RetryAfter": {driver.RetryAfter(time.Minute, answer), driver.RetryAfter(time.Minute, answer)},
		"Backoff":    {driver.Backoff(answer), driver.Backoff(answer)},
		"Done":       {driver.Done(), driver.Done()},
		"Silence":    {driver.Backoff(fmt.Errorf("PUT http://x: %w", errCallTimeout)), driver.Backoff(&timeoutError{after: 5 * time.Second})},
		"NoAnswer":   {driver.Unreachable(context.DeadlineExceeded), driver.Backoff(&timeoutError{after: 5 * time.Second})},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				o, _ := testOwner(t, calls(func(ctx context.Context, _ driver.Ref) driver.Outcome {
					<-ctx.Done()
					return c.said
				}), nil)
				callCtx, cancel, err := o.caller.mayCall(t.Context(), 1)
				require.NoError(t, err)
				defer cancel()
				require.Equal(t, []driver.Outcome{c.want}, o.caller.call(callCtx, []look{{resource: &desired.Resource{}, item: liveItem("a"), row: wantedRow(), act: actApply}}))
			})
		})
	}
}

// Objects that were told to come back at one time come back one after the other, and none before.
func TestF86_RetryAfterIsSpread(t *testing.T) {
	t.Parallel()
	for _, after := range []time.Duration{time.Second, time.Minute} {
		seen := map[float64]bool{}
		latest := 0.0
		for range 1000 {
			rec := testLook(wantedRow(), "unknown", "plain").outcome(actApply, driver.RetryAfter(after, errors.New("busy")), testBackoff)
			require.GreaterOrEqual(t, rec.delay, after.Seconds())
			seen[rec.delay], latest = true, max(latest, rec.delay)
		}
		require.Greater(t, len(seen), 900)
		require.InEpsilon(t, (after + max(time.Second, after/5)).Seconds(), latest, 0.1)
	}
}

// A target that is called too often is not called at all for as long as it asks for, a minute at most; who is to be told, is.
func TestF86_ATargetThatIsCalledTooOftenIsLeftAlone(t *testing.T) {
	t.Parallel()
	for after, pause := range map[time.Duration]time.Duration{3 * time.Second: 3 * time.Second, 20 * time.Second: 20 * time.Second, time.Hour: time.Minute} {
		t.Run(after.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const objects, shown = 30, 5 * time.Second // in trouble after so long
				began := time.Now()
				var at []time.Duration
				o, _ := testOwner(t, calls(func(context.Context, driver.Ref) driver.Outcome {
					at = append(at, time.Since(began))
					if len(at) == 1 {
						return driver.SlowDown(after, errors.New("429"))
					}
					return driver.Done()
				}), func(c *Config) { c.Concurrency = 1 })
				for i := range objects {
					add(t, o.queue, liveItem(fmt.Sprint(i)))
				}
				b := o.startBench(t)
				b.await(1)
				synctest.Wait()
				if pause > shown {
					require.Equal(t, "it asks to be called less often (set rate to what it takes): 429", o.caller.slow.Trouble())
				} else {
					require.Empty(t, o.caller.slow.Trouble())
				}
				b.await(objects - 1)
				require.Len(t, at, objects)
				require.Zero(t, at[0])
				require.GreaterOrEqual(t, at[1], pause)
				require.Less(t, at[objects-1], pause+2*time.Second)
				elapse(2 * shown)
				require.Empty(t, o.caller.slow.Trouble())
			})
		})
	}
}
