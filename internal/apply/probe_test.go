package apply

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/desired"
	"github.com/pgreconciler/reconciler/internal/driver"
)

// The probe is called also while other objects rest or are on their way to the ledger.
func TestF83_ProbesAreCalledWhileObjectsRest(t *testing.T) {
	t.Parallel()
	var called []string
	o, _ := testOwner(t, calls(func(_ context.Context, ref driver.Ref) driver.Outcome {
		called = append(called, ref.Key)
		return driver.Done()
	}), nil)
	o.queue.SetWindow(10)
	add(t, o.queue, liveItem("resting"), liveItem("recorded"), liveItem("called before"), liveItem("probe"))
	items := tryTake(o.queue, 3)
	require.True(t, o.queue.Rest(items[0]))
	o.queue.Looked(items[1], false, 0)
	for !o.breaker.IsOpen() {
		o.circuit.failed(t.Context(), o.breaker.Unreached, errors.New("refused"))
	}
	o.caller.callGroup(t.Context(), []look{o.dispatcher.look(&desired.Resource{}, items[2], wantedRow(), 1, steering{})})
	require.Empty(t, called, "it is no probe")
	o.queue.AllowProbe()
	probe := tryTake(o.queue, 10)
	require.Equal(t, []string{"called before"}, keysOf(probe))
	o.caller.callGroup(t.Context(), []look{o.dispatcher.look(&desired.Resource{}, probe[0], wantedRow(), 1, steering{})})
	require.Equal(t, []string{"called before"}, called)
	require.False(t, o.breaker.IsOpen())
}
