package apply

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/desired"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/store"
)

// C8: an object with a record of its first call is deleted once that call has begun; before, there is nothing to delete when its
// row goes, and nothing that is present when it is held. Whether the ledger has been told meanwhile changes nothing.
func TestWhatIsRecordedForItsFirstCallIsThereWhenThatBegins(t *testing.T) {
	t.Parallel()
	for name, entry := range map[string]func() *desired.Entry{
		"OnRecord": func() *desired.Entry { return nil },
		"TakenIn":  func() *desired.Entry { return &desired.Entry{State: desired.Pending, Wanted: true, Present: true} },
		"InHand":   func() *desired.Entry { return &desired.Entry{State: desired.Pending, Wanted: true} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o, _ := testOwner(t, calls(func(context.Context, driver.Ref) driver.Outcome { return driver.Unreachable(context.Canceled) }), nil)
			it := o.fly(t, "a").item
			row := wantedRow()
			row.First = 1
			o.dispatcher.firsts.recorded(row.First)
			first := o.dispatcher.look(&desired.Resource{}, it, row, 1, steering{})
			o.dispatcher.firsts.handedOut()
			again := func(row desired.Row, at steering) look {
				row.Ledger = entry()
				return o.dispatcher.look(&desired.Resource{}, it, row, 1, at)
			}
			require.Equal(t, "apply", verdict(decide(first)))
			require.Equal(t, "apply", verdict(decide(again(wantedRow(), steering{}))))
			require.Equal(t, "gone", verdict(decide(again(desired.Row{Key: "a"}, steering{}))))
			require.Equal(t, "gone", verdict(decide(again(wantedRow(), steering{drain: true}))))
			require.Equal(t, "held by pause, absent", verdict(decide(again(wantedRow(), steering{paused: true}))))
			first.act = actApply
			o.caller.callGroup(t.Context(), []look{first})
			require.Equal(t, []*Item{it}, tryTake(o.queue, 1))
			require.Equal(t, "delete", verdict(decide(again(desired.Row{Key: "a"}, steering{}))))
			require.Equal(t, "held by pause", verdict(decide(again(wantedRow(), steering{paused: true}))))
			require.Empty(t, o.dispatcher.firsts.over())
			o.dispatcher.firsts.settles(it)
			require.Equal(t, []int64{1}, o.dispatcher.firsts.over())
			require.Empty(t, o.dispatcher.firsts.left)
		})
	}
}

// A record ends when all of its objects have their results, or nothing was made of what it was read for.
func TestRecordsOfFirstCallsEnd(t *testing.T) {
	t.Parallel()
	f := newFirstCalls()
	a, b := &Item{}, &Item{}
	f.recorded(1)
	f.takes(a, 1)
	f.takes(b, 1)
	f.settles(a)
	f.settles(a)
	f.takes(b, 0)
	f.handedOut()
	require.Empty(t, f.over())
	f.recorded(2)
	f.recorded(3)
	f.takes(b, 2)
	f.handedOut()
	require.Equal(t, []int64{3}, f.over(), "reading it failed")
	f.settles(b)
	require.Equal(t, []int64{1, 2}, f.over())
	require.Empty(t, f.over())
	require.Empty(t, f.left)
}

// inHandDB notes which objects are recorded as in hand and called for.
type inHandDB struct {
	noDB
	called []bool
}

func (db *inHandDB) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	db.called = args[5].([]bool)
	return db.noDB.Exec(ctx, sql, args...)
}

// I7: what is recorded as in hand while its first call may be under way is present; its record may end before there is a result.
func TestWhatIsInHandIsPresentOnceItIsOnRecord(t *testing.T) {
	t.Parallel()
	o, _ := testOwner(t, calls(func(context.Context, driver.Ref) driver.Outcome { return driver.Done() }), nil)
	db := &inHandDB{}
	o.queries = store.New(db)
	a, b := &Item{ObjectID: ObjectID{ResourceID: 1, Key: "a"}}, &Item{ObjectID: ObjectID{ResourceID: 1, Key: "b"}}
	o.dispatcher.firsts.recorded(1)
	o.dispatcher.firsts.takes(a, 1)
	require.NoError(t, o.settler.recordInHand(t.Context(), []ObjectID{a.ObjectID, b.ObjectID}, brokenFor))
	require.Equal(t, []bool{true, false}, db.called)
	o.dispatcher.firsts.settles(a)
	require.NoError(t, o.settler.recordInHand(t.Context(), []ObjectID{a.ObjectID}, brokenFor))
	require.Equal(t, []bool{false}, db.called)
}
