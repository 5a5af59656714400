package apply

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/guard"
	"github.com/pgreconciler/reconciler/internal/store"
)

// beforeQuery does something before the first query.
type beforeQuery struct {
	store.DBTX
	do func()
}

func (b *beforeQuery) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if do := b.do; do != nil {
		b.do = nil
		do()
	}
	return b.DBTX.Query(ctx, sql, args...) //nolint:wrapcheck // of a test
}

// I6: a delete that passes the guard while the deletes of a page are counted is not counted twice.
func TestDeleteThatPassesDuringACountCountsOnce(t *testing.T) {
	t.Parallel()
	d := newLedgerDB(t)
	d.Exec(t, `INSERT INTO apps VALUES ('wanted')`)
	d.settle(t, appliedRecord, "1", "2", "3")
	o := d.owner(t, calls(func(context.Context, driver.Ref) driver.Outcome { return driver.Done() }))
	o.guard = guard.New(guard.Limits{MaxDeletes: 3, MaxFraction: 1, Window: time.Hour}, 3)
	object := func(key string) *Item { return &Item{ObjectID: ObjectID{ResourceID: d.resource, Key: key}} }

	require.NoError(t, o.queue.Push(t.Context(), object("1")))
	o.rows = &beforeQuery{DBTX: o.rows, do: func() {
		taken, err := o.queue.Take(t.Context(), 10)
		require.NoError(t, err)
		go func() { <-o.caller.calls[LaneLive] }()
		require.NoError(t, o.dispatcher.dispatchItems(t.Context(), taken))
	}}
	page := []*Item{object("1"), object("2"), object("3"), object("wanted")}
	parked := func(items []*Item) (keys []string) {
		var batch *Run
		require.NoError(t, o.parking.countDeletes(t.Context(), items, false, &batch))
		for _, it := range items {
			if it.Payload.park != "" {
				keys = append(keys, it.Key)
			}
		}
		return keys
	}
	require.Empty(t, parked(page))
	require.EqualValues(t, 2, o.guard.Remaining())
	require.Empty(t, parked(page), "1 is being deleted")
	require.True(t, o.guard.Take())
	require.Equal(t, []string{"2", "3"}, parked(page))
}
