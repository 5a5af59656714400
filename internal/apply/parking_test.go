package apply

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/desired"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/guard"
	"github.com/pgreconciler/reconciler/internal/store"
)

// beforeQuery does something before the first query, which fails if that returns an error.
type beforeQuery struct {
	store.DBTX
	do func() error
}

func (b *beforeQuery) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if do := b.do; do != nil {
		b.do = nil
		if err := do(); err != nil {
			return nil, err
		}
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
	o.rows = &beforeQuery{DBTX: o.rows, do: func() error {
		taken, err := o.queue.Take(t.Context(), 10)
		require.NoError(t, err)
		go func() { <-o.caller.calls[LaneLive] }()
		return o.dispatcher.dispatchItems(t.Context(), taken)
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
	require.True(t, o.guard.Take(1))
	require.Equal(t, []string{"2", "3"}, parked(page))
}

const heldLine = `SELECT coalesce(string_agg(concat_ws(' ', n, by), ', ' ORDER BY by), '') FROM (SELECT held_by AS by, count(*) AS n FROM reconciler.ledger WHERE state = 'held' GROUP BY held_by) AS h`

// I6: the deletes of one transaction may be counted twice at once: by the reader and by an apply, or by a sync. What the first count
// leaves to the second one is not let go because it is little.
func TestDeletesThatTwoCountsShareAreDecidedOnTogether(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		first          func(t *testing.T, o *Owner, ids []ObjectID) *Run
		between, after string
		calls          int32
	}{
		"GuardFirst": {first: func(t *testing.T, o *Owner, ids []ObjectID) *Run {
			t.Helper()
			o.count(t, ids, nil)
			return nil
		}, between: "10 guard"},
		"SyncFirst": {first: func(t *testing.T, o *Owner, ids []ObjectID) *Run {
			t.Helper()
			run := &Run{}
			for _, id := range ids {
				require.NoError(t, o.Enqueue(t.Context(), id, false, true, run))
			}
			return run
		}, between: "2 guard, 8 sync", after: "10 guard"},
		"OthersAreHeld": {first: func(t *testing.T, o *Owner, _ []ObjectID) *Run {
			t.Helper()
			_, err := o.cfg.Pool.Exec(t.Context(), `UPDATE reconciler.ledger SET key = 'other ' || key, state = 'held', held_by = 'guard', wanted = false WHERE key <= '8'`)
			require.NoError(t, err)
			return nil
		}, between: "8 guard", calls: 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newLedgerDB(t)
			keys := []string{"1", "2", "3", "4", "5", "6", "7", "8", "91", "92"}
			d.settle(t, appliedRecord, keys...)
			var made atomic.Int32
			o := d.owner(t, calls(func(context.Context, driver.Ref) driver.Outcome {
				made.Add(1)
				return driver.Done()
			}))
			o.guard = guard.New(guard.Limits{MaxDeletes: 3, MaxFraction: 1, Window: time.Hour}, 10)
			sync := c.first(t, o, ids(d, keys[:8]))
			batch := o.count(t, ids(d, keys), &Run{})
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- o.Run(ctx) }()
			o.parking.endBatch(ctx, &batch)
			d.await(t, c.between, heldLine)
			if sync != nil {
				require.NoError(t, sync.Wait(ctx))
				_, err := o.DecideParked(ctx, sync)
				require.NoError(t, err)
				d.await(t, c.after, heldLine)
			}
			d.await(t, fmt.Sprint(10-c.calls), `SELECT count(*)::text FROM reconciler.ledger`)
			cancel()
			require.ErrorIs(t, <-ended, context.Canceled)
			require.Equal(t, c.calls, made.Load())
		})
	}
}

// count counts objects and puts them into the queue: as a page that is alone, or as one of a batch.
func (o *Owner) count(t *testing.T, ids []ObjectID, batch *Run) *Run {
	t.Helper()
	items := make([]*Item, len(ids))
	for i, id := range ids {
		items[i] = &Item{ObjectID: id}
	}
	require.NoError(t, o.parking.countDeletes(t.Context(), items, false, &batch))
	for _, it := range items {
		require.NoError(t, o.queue.Push(t.Context(), it))
	}
	return batch
}

func ids(d *ledgerDB, keys []string) (ids []ObjectID) {
	for _, key := range keys {
		ids = append(ids, ObjectID{ResourceID: d.resource, Key: key})
	}
	return ids
}

// I6: rows that are locked while their deletes are counted, and not any more when they are read.
func TestDeletesThatCannotBeCountedAheadAreCounted(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		wanted   string
		left     string // in the ledger
		lastLine string
	}{
		"TooMany": {`{}`, "5", "5 guard"},
		"Few":     {`{1,2,3}`, "3", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newLedgerDB(t)
			keys := []string{"1", "2", "3", "4", "5"}
			d.Exec(t, `INSERT INTO apps SELECT unnest($1::text[])`, c.wanted)
			d.settle(t, appliedRecord, keys...)
			o := d.owner(t, calls(func(context.Context, driver.Ref) driver.Outcome { return driver.Done() }))
			o.guard = guard.New(guard.Limits{MaxDeletes: 3, MaxFraction: 1, Window: time.Hour}, 5)
			o.rows = &beforeQuery{DBTX: o.rows, do: func() error { return &pgconn.PgError{Code: lockNotAvailable} }}
			batch := o.count(t, ids(d, keys), nil)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- o.Run(ctx) }()
			o.parking.endBatch(ctx, &batch)
			d.await(t, c.lastLine, heldLine)
			d.await(t, c.left, `SELECT count(*)::text FROM reconciler.ledger`)
			cancel()
			require.ErrorIs(t, <-ended, context.Canceled)
		})
	}
}

// I6: what a process that died has parked is counted with what the guard held then. It does not know which of them belonged together.
func TestParkedDeletesOfAFormerOwnerAreCountedWithThoseHeld(t *testing.T) {
	t.Parallel()
	d := newLedgerDB(t)
	held := func(by string) record { return record{state: desired.Held, heldBy: by, present: true, delay: -1} }
	d.settle(t, held(heldByGuard), "1", "2", "3", "4", "5", "6", "7", "8", "9")
	d.settle(t, held(heldByBatch), "10", "11")
	d.owner(t, calls(nil)) // its guard lets 10 deletes pass
	require.Equal(t, "11 guard", d.line(t, heldLine))
}

// I6: deletes that a pause has held, or rows that could not be read, are counted when they are due: all pages of them, before the first.
func TestDueDeletesAreCountedBeforeTheFirst(t *testing.T) {
	t.Parallel()
	d := newLedgerDB(t)
	d.Exec(t, `INSERT INTO reconciler.ledger (target_id, resource_id, key, state, wanted, present, next_attempt_at)
		SELECT $1, $2, i::text, 'pending', false, true, now() FROM generate_series(1, $3) AS i`, d.target, d.resource, dueRows+500)
	o := d.owner(t, calls(func(_ context.Context, ref driver.Ref) driver.Outcome {
		t.Error("deletes", ref.Key)
		return driver.Done()
	}))
	o.guard = guard.New(guard.Limits{MaxDeletes: dueRows + 100, MaxFraction: 1, Window: time.Hour}, dueRows+500)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- o.Run(ctx) }()
	d.await(t, fmt.Sprint(dueRows+500, " guard"), heldLine)
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
}

// A delete that is counted when it is due is waited for, so it is looked at once more if it is in flight.
func TestDueDeleteThatIsInFlightIsCounted(t *testing.T) {
	t.Parallel()
	d := newLedgerDB(t)
	d.settle(t, appliedRecord, "1")
	o := d.owner(t, calls(nil))
	id := ObjectID{ResourceID: d.resource, Key: "1"}
	flying := &Item{ObjectID: id, Lane: LaneLive}
	require.NoError(t, o.queue.Push(t.Context(), flying))
	require.Equal(t, []*Item{flying}, tryTake(o.queue, 1))
	due := []*Item{{ObjectID: id, Lane: LaneSync, Due: true}}
	require.NoError(t, o.retrier.countAndPush(t.Context(), due, due, true))
	require.EqualValues(t, 1, o.retrier.batch.deletes())
	o.queue.Done(flying)
	_, waiting, _ := o.queue.Depth()
	require.Equal(t, 1, waiting)
}
