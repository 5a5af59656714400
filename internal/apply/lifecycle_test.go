package apply

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/desired"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/lease"
	"github.com/pgreconciler/reconciler/internal/pgtest"
	"github.com/pgreconciler/reconciler/internal/store"
	"github.com/pgreconciler/reconciler/internal/throttle"
)

// owner makes an owner of the target on the real database, under its next term.
func (d *ledgerDB) owner(t *testing.T, drv driver.Driver) *Owner {
	t.Helper()
	var term int64
	require.NoError(t, d.Pool.QueryRow(t.Context(), `UPDATE reconciler.targets SET term = term + 1 RETURNING term`).Scan(&term))
	catalog := &desired.Catalog{}
	_, err := catalog.Reload(t.Context(), d.Pool)
	require.NoError(t, err)
	o, _ := testOwner(t, drv, func(c *Config) {
		c.Pool, c.Catalog = d.Pool, catalog
		c.Grant = lease.NewGrant("eu", d.target, ledgerOwner, term, time.Hour)
		c.Backoff = throttle.Backoff{Min: 5 * time.Millisecond, Max: 20 * time.Millisecond}
	})
	o.queries = store.New(d.Pool)
	require.NoError(t, o.Load(t.Context()))
	return o
}

// I6: objects that untrack() leaves in a target do not raise the number of deletes that may pass, in the current window neither.
func TestUntrackedObjectsDoNotRaiseTheGuard(t *testing.T) {
	t.Parallel()
	d := newLedgerDB(t)
	d.Exec(t, `CREATE TABLE many (id text PRIMARY KEY)`)
	d.Exec(t, `SELECT reconciler.track('many', 'many', '{id}', '''eu''')`)
	d.Exec(t, `INSERT INTO apps SELECT i::text FROM generate_series(1, 20) AS i; INSERT INTO many SELECT i::text FROM generate_series(1, 1000) AS i`)
	d.Exec(t, `INSERT INTO reconciler.ledger (target_id, resource_id, key, state, wanted, present, applied_hash) SELECT 1, r.id, x.key, 'applied', true, true, substr(sha256('x'), 1, 16)
		FROM (SELECT 'app', id FROM apps UNION ALL SELECT 'many', id FROM many) AS x(name, key) JOIN reconciler.resources r USING (name)`)
	o := d.owner(t, calls(func(context.Context, driver.Ref) driver.Outcome { return driver.Done() }))
	require.EqualValues(t, 204, o.guard.Remaining())
	require.True(t, o.guard.Take(1))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- o.Run(ctx) }()
	d.Exec(t, `SELECT reconciler.untrack('many')`)
	_, err := o.cfg.Catalog.Reload(ctx, d.Pool)
	require.NoError(t, err)
	require.NoError(t, o.Refresh(ctx))
	require.Eventually(t, func() bool { return o.guard.Remaining() == 9 }, pgtest.Patience, time.Millisecond)
	d.Exec(t, `UPDATE reconciler.ledger SET state = 'held', held_by = 'guard', wanted = false WHERE resource_id = $1 AND key = '1'`, d.resource)
	require.Equal(t, "1", d.line(t, `SELECT reconciler.count_guard(1)::text`))
	require.Equal(t, "20", d.line(t, `SELECT guard_objects::text FROM reconciler.targets`), "what people see")
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
}

// An owner may be stopped at any time, by a drain or by the end of its context, and whatever its calls do. Run returns
// when no call is running any more; whoever waits for objects learns what has become of them; nothing can be added.
func TestOwnerStopsAtAnyTime(t *testing.T) {
	t.Parallel()
	d := newLedgerDB(t)
	d.Exec(t, `INSERT INTO apps SELECT i::text FROM generate_series(1, 200) AS i`)
	seed := pgtest.Pick(1, rand.Uint64())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for round := range 30 {
		stopAfter, hard := random.Int32N(250), random.IntN(2) == 0
		t.Run(fmt.Sprintf("Round%dAfter%dHard%t", round, stopAfter, hard), func(t *testing.T) {
			d.stopOwner(t, rand.New(rand.NewPCG(seed, uint64(round+1))), stopAfter, hard)
		})
	}
}

func (d *ledgerDB) stopOwner(t *testing.T, random *rand.Rand, stopAfter int32, hard bool) {
	t.Helper()
	why := errors.New("stopped by the test")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	var made, running atomic.Int32
	enough := make(chan struct{}, 1)
	moods := make([]int, 1000)
	for i := range moods {
		moods[i] = random.IntN(20)
	}
	o := d.owner(t, calls(func(ctx context.Context, _ driver.Ref) driver.Outcome {
		running.Add(1)
		defer running.Add(-1)
		n := made.Add(1)
		if n >= stopAfter {
			signal(enough)
		}
		switch moods[int(n)%len(moods)] {
		case 0:
			return driver.Backoff(errors.New("no"))
		case 1:
			return driver.Unreachable(errors.New("gone"))
		case 2:
			panic("boom")
		case 3:
			select {
			case <-time.After(5 * time.Millisecond):
			case <-ctx.Done():
				return driver.Backoff(ctx.Err())
			}
		}
		return driver.Done()
	}))
	ended := make(chan error, 1)
	go func() { ended <- o.Run(ctx) }()
	run := &Run{}
	added := make(chan error, 1)
	go func() {
		var err error
		for i := 1; i <= 200 && err == nil; i++ {
			err = o.Enqueue(ctx, ObjectID{ResourceID: d.resource, Key: fmt.Sprint(i)}, true, false, run)
		}
		added <- err
	}()
	if stopAfter > 0 {
		select {
		case <-enough:
		case err := <-added: // all of them were called, or wait for the circuit
			added <- err
		}
	}
	want := error(nil)
	if hard {
		want = why
		cancel(why)
	} else {
		o.cfg.Grant.Drain()
	}
	patient, giveUp := context.WithTimeout(t.Context(), pgtest.Patience)
	defer giveUp()
	select {
	case err := <-ended:
		require.ErrorIs(t, err, want)
	case <-patient.Done():
		require.FailNow(t, "Run does not return")
	}
	require.Zero(t, running.Load())
	if err := <-added; err != nil && !errors.Is(err, why) {
		require.ErrorIs(t, err, ErrRunCut)
	}
	if err := run.Wait(patient); err != nil {
		require.ErrorIs(t, err, ErrRunCut)
	}
	require.ErrorIs(t, o.Enqueue(t.Context(), object("late"), false, false, run), ErrRunCut)
	require.Zero(t, run.pending)
}
