package apply

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/desired"
	"github.com/pgreconciler/reconciler/internal/driver"
)

// C8: an object that has its ledger row for the first call is deleted once that call has begun; before, there is nothing to
// delete when its row goes, and nothing that is present when it is held.
func TestWhatIsRecordedForItsFirstCallIsThereWhenThatBegins(t *testing.T) {
	t.Parallel()
	o, _ := testOwner(t, calls(func(context.Context, driver.Ref) driver.Outcome { return driver.Unreachable(context.Canceled) }), nil)
	entry := func() *desired.Entry { return &desired.Entry{State: desired.Pending, Wanted: true, Present: true} }
	it := o.fly(t, "a").item
	again := func(row desired.Row, at steering) look {
		row.Ledger = entry()
		return o.look(it, row, 1, at)
	}
	row := wantedRow()
	row.First = true
	first := again(row, steering{})
	require.Equal(t, "apply", verdict(decide(first)))
	require.Equal(t, "gone", verdict(decide(again(desired.Row{Key: "a"}, steering{}))))
	require.Equal(t, "gone", verdict(decide(again(wantedRow(), steering{drain: true}))))
	require.Equal(t, "held by pause, absent", verdict(decide(again(wantedRow(), steering{paused: true}))))
	first.act = actApply
	o.callGroup(t.Context(), []look{first})
	require.Equal(t, []*Item{it}, o.queue.tryTake(1))
	require.Equal(t, "delete", verdict(decide(again(desired.Row{Key: "a"}, steering{}))))
}
