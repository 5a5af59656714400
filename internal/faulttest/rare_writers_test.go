//go:build long

package faulttest_test

import (
	"context"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// rareChance returns a source of chance, and says how to have the same again.
func rareChance(t *testing.T) *rand.Rand {
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

// rareWriters change the fleet at random, each on a connection of its own.
type rareWriters struct {
	t      *testing.T
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu      sync.Mutex // guards what follows
	written int        // transactions
	slowest time.Duration
}

const (
	rareWriterCount = 3
	rareWriterPause = 15 * time.Millisecond
	// rareWriterWaits is less than any time after which the server frees the locks of a process that is lost.
	rareWriterWaits = 9 * time.Second
)

// write starts writers, who share apps 1 to objects.
func (w *rareWorld) write(r *rand.Rand, objects int, regions ...string) *rareWriters {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
	x := &rareWriters{t: w.t, cancel: cancel}
	for range rareWriterCount {
		conn, own := w.db.Conn(w.t), rand.New(rand.NewPCG(r.Uint64(), 1))
		x.done.Go(func() { x.run(ctx, conn, own, objects, regions) })
	}
	w.t.Cleanup(func() {
		cancel()
		x.done.Wait()
	})
	return x
}

// stop ends the writers after the transactions that they are in. I8: none of them failed or was kept waiting.
func (x *rareWriters) stop() {
	x.t.Helper()
	x.cancel()
	x.done.Wait()
	x.t.Logf("%d transactions written, the slowest took %v", x.written, x.slowest)
	require.Greater(x.t, x.written, 20, "the writers wrote next to nothing")
	require.Less(x.t, x.slowest, rareWriterWaits, "I8: a writer was kept waiting")
}

func (x *rareWriters) run(ctx context.Context, conn *pgx.Conn, r *rand.Rand, objects int, regions []string) {
	ticker := time.NewTicker(rareWriterPause)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		began := time.Now()
		if err := rareTransaction(context.WithoutCancel(ctx), conn, r, objects, regions); err != nil {
			x.t.Errorf("I8: a writer failed: %v", err)
			return
		}
		x.mu.Lock()
		x.written, x.slowest = x.written+1, max(x.slowest, time.Since(began))
		x.mu.Unlock()
	}
}

// rareTransaction makes one change.
func rareTransaction(ctx context.Context, conn *pgx.Conn, r *rand.Rand, objects int, regions []string) error {
	id, region := 1+r.IntN(objects), regions[r.IntN(len(regions))]
	var err error
	switch n := r.IntN(100); {
	case n < 45:
		_, err = conn.Exec(ctx, `UPDATE apps SET version = nextval('versions') WHERE id = $1`, id)
	case n < 70:
		_, err = conn.Exec(ctx, `INSERT INTO apps (id, region) VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET version = nextval('versions'), region = excluded.region`, id, region)
	case n < 80:
		_, err = conn.Exec(ctx, `DELETE FROM apps WHERE id = $1`, id)
	case n < 92:
		_, err = conn.Exec(ctx, `UPDATE apps SET version = nextval('versions'), state = CASE state WHEN 'running' THEN 'stopped' ELSE 'running' END WHERE id = $1`, id)
	default:
		_, err = conn.Exec(ctx, `BEGIN; UPDATE apps SET version = -1; ROLLBACK`)
	}
	return err
}
