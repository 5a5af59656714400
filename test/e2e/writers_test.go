package e2e_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// chance returns a source of chance for a test, and says how to have the same again.
func chance(t *testing.T) *rand.Rand {
	t.Helper()
	seed := rand.Uint64()
	if given := os.Getenv("RECONCILER_TEST_SEED"); given != "" {
		var err error
		seed, err = strconv.ParseUint(given, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("RECONCILER_TEST_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// between returns a duration of at least least and less than most.
func between(r *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(r.Int64N(int64(most-least)))
}

// pass lets time go by: it is what the test measures out, such as the moment of a kill. It ends early with done.
func pass(d time.Duration, done <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-done:
	}
}

// versions numbers the states of rows: of two states of one row, the later one has the higher version.
const versions = `CREATE SEQUENCE versions START 2; ALTER TABLE apps ALTER version SET DEFAULT nextval('versions')`

// writers change the fleet at random, each on a connection of its own, until they are stopped.
type writers struct {
	t      testing.TB
	cancel context.CancelFunc
	done   sync.WaitGroup
	mu     sync.Mutex
	counts map[string]int // statements by what they did; guarded by mu
}

// load is how writers write.
type load struct {
	writers int
	every   time.Duration // pause of each writer between two transactions
	objects int           // how many keys they share
	regions []string
}

// write starts writers. The table must have versions.
func (w *world) write(r *rand.Rand, l load) *writers {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
	x := &writers{t: w.t, cancel: cancel, counts: map[string]int{}}
	for range l.writers {
		conn, own := w.db.Conn(w.t), rand.New(rand.NewPCG(r.Uint64(), 1))
		x.done.Go(func() { x.run(ctx, conn, own, l) })
	}
	w.t.Cleanup(func() {
		cancel()
		x.done.Wait()
	})
	return x
}

// stop ends all writers after the transaction that they are in. I8: none of them may have failed.
func (x *writers) stop() {
	x.t.Helper()
	eventually(x.t, patience, func() error {
		x.mu.Lock()
		defer x.mu.Unlock()
		if n := x.counts["update"]; n <= 10 {
			return fmt.Errorf("only %d updates", n)
		}
		return nil
	}, "the writers write more than next to nothing")
	x.cancel()
	x.done.Wait()
	x.t.Logf("written: %v", x.counts)
}

func (x *writers) run(ctx context.Context, conn *pgx.Conn, r *rand.Rand, l load) {
	ticker := time.NewTicker(l.every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		// A transaction that has begun is finished: the connection is the test's.
		what, err := x.transaction(context.WithoutCancel(ctx), conn, r, l)
		if err != nil {
			x.t.Errorf("I8: a writer failed: %s: %v", what, err)
			return
		}
		x.mu.Lock()
		x.counts[what]++
		x.mu.Unlock()
	}
}

const upsert = `INSERT INTO apps (id, region) VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET version = nextval('versions'), region = excluded.region`

// transaction makes one change.
func (*writers) transaction(ctx context.Context, conn *pgx.Conn, r *rand.Rand, l load) (what string, err error) {
	id, region := 1+r.IntN(l.objects), l.regions[r.IntN(len(l.regions))]
	switch n := r.IntN(100); {
	case n < 45:
		_, err = conn.Exec(ctx, `UPDATE apps SET version = nextval('versions') WHERE id = $1`, id)
		return "update", err
	case n < 65:
		_, err = conn.Exec(ctx, upsert, id, region)
		return "upsert", err
	case n < 75:
		_, err = conn.Exec(ctx, `DELETE FROM apps WHERE id = $1`, id)
		return "delete", err
	case n < 85:
		_, err = conn.Exec(ctx, `UPDATE apps SET version = nextval('versions'), state = CASE state WHEN 'running' THEN 'stopped' ELSE 'running' END WHERE id = $1`, id)
		return "switch", err
	case n < 90:
		return "roll back", rolledBack(ctx, conn, id)
	default:
		return "several", several(ctx, conn, r, l)
	}
}

func rolledBack(ctx context.Context, conn *pgx.Conn, id int) error {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `UPDATE apps SET version = -1 WHERE id = $1`, id)
	if rollback := tx.Rollback(ctx); err == nil {
		err = rollback
	}
	return err
}

// several changes some rows in one transaction that stays open for a while, so that commits come in another order than
// their numbers. Rows are taken in the order of their keys: writers must not deadlock.
func several(ctx context.Context, conn *pgx.Conn, r *rand.Rand, l load) error {
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		for id := 1 + r.IntN(l.objects); id <= l.objects; id += 1 + r.IntN(l.objects/3) {
			if _, err := tx.Exec(ctx, upsert, id, l.regions[r.IntN(len(l.regions))]); err != nil {
				return err
			}
			pass(between(r, 0, 50*time.Millisecond), nil)
		}
		return nil
	})
}
