package apply

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/desired"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/lease"
)

// I3: a call whose time is up must not pass for one that may go on, whatever its timer says.
func TestTimeOfACallIsUpBeforeItsTimerFires(t *testing.T) {
	t.Parallel()
	is := func(over bool) func() bool { return func() bool { return over } }
	require.NoError(t, punctual{t.Context(), is(false)}.Err())
	over := punctual{t.Context(), is(true)}
	require.Equal(t, context.DeadlineExceeded, over.Err())
	require.Equal(t, context.DeadlineExceeded, context.Cause(over), "a driver that returns the cause does not return nil")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(lease.ErrLost)
	require.Equal(t, context.Canceled, punctual{ctx, is(true)}.Err())
	require.Equal(t, lease.ErrLost, context.Cause(punctual{ctx, is(true)}))
}

// I3: the time of a call begins before the look at the lease that lets it start.
func TestTimeOfACallBeginsBeforeTheLookAtTheLease(t *testing.T) {
	t.Parallel()
	o, _ := testOwner(t, calls(nil), nil)
	before := time.Now()
	ctx, cancel, err := o.caller.mayCall(t.Context(), 1)
	require.NoError(t, err)
	defer cancel()
	end, ok := ctx.Deadline()
	require.True(t, ok)
	require.WithinRange(t, end, before.Add(o.cfg.Timeout), time.Now().Add(o.cfg.Timeout))
	require.IsType(t, punctual{}, ctx)
}

// I3: a call that returns after its lease is remembered, for the next owner to make good.
func TestCallThatOutlivesItsLeaseIsRemembered(t *testing.T) {
	t.Parallel()
	var o *Owner
	drv := calls(func(context.Context, driver.Ref) driver.Outcome {
		for ticker := time.NewTicker(time.Millisecond); o.cfg.Grant.Remaining() > 0; <-ticker.C {
		}
		return driver.Done()
	})
	group := []look{{resource: &desired.Resource{}, item: liveItem("a"), row: wantedRow(), act: actApply}}
	o, _ = testOwner(t, drv, func(c *Config) { c.Grant = lease.NewGrant("eu", 1, c.Instance, 1, 20*time.Millisecond) })
	require.False(t, o.Overran())
	o.caller.call(t.Context(), group)
	require.True(t, o.Overran())

	o, _ = testOwner(t, calls(func(context.Context, driver.Ref) driver.Outcome { return driver.Done() }), nil)
	o.caller.call(t.Context(), group)
	require.False(t, o.Overran())
}
