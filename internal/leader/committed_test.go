package leader

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// I1, I2: writers that commit, roll back and stay open at random. Every row of the outbox arrives exactly once, whatever
// mode the leader is in.
func TestEveryCommittedRowArrivesOnce(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.listen()
	b.lead()
	r := b.read()
	const writers, transactions = 6, 40
	seed := pgtest.Pick(1, rand.Uint64())
	t.Logf("seed %d", seed)
	var wg sync.WaitGroup
	failures := make(chan error, writers)
	for w := range writers {
		conn := b.db.Conn(t)
		random := rand.New(rand.NewPCG(seed, uint64(w)))
		wg.Go(func() {
			for n := range transactions {
				if err := scribble(t.Context(), conn, random, fmt.Sprintf("%d/%d", w, n)); err != nil {
					failures <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(failures)
	require.NoError(t, <-failures)
	b.change("end")
	r.gets("end")
	rows, err := b.db.Pool.Query(t.Context(), `SELECT key FROM reconciler.outbox WHERE key IS NOT NULL`)
	require.NoError(t, err)
	want, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	b.eventually("as many events as rows", func() bool { return len(r.got()) >= len(want) })
	got := r.got()
	slices.Sort(want)
	slices.Sort(got)
	require.Equal(t, want, got, "VIOLATION: what was committed and what arrived")
}

// scribble makes one random transaction.
func scribble(ctx context.Context, conn *pgx.Conn, random *rand.Rand, name string) error {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	batch := &pgx.Batch{}
	for i := range 1 + random.IntN(4) {
		batch.Queue(`INSERT INTO apps (id) VALUES ($1)`, fmt.Sprintf("%s/%d", name, i))
		if random.IntN(3) == 0 {
			batch.Queue(`SELECT pg_sleep($1)`, random.Float64()/20)
		}
	}
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return err
	}
	if random.IntN(5) == 0 {
		return tx.Rollback(ctx)
	}
	return tx.Commit(ctx)
}
