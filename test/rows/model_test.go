package rows_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/server/servertest"
)

// I1, I3, I4: a thousand objects in two targets that are inserted, changed, moved, stopped and deleted at random, in
// transactions of random length of which some are rolled back, while calls fail in every way and a process is replaced.
// In the end both targets are as the rows ask.
func TestRandomChangesConverge(t *testing.T) {
	t.Parallel()
	w, _ := servertest.Fleet(t, 1000)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	eu, us := servertest.NewPlace(), servertest.NewPlace()
	for i, p := range []*servertest.Place{eu, us} {
		p.Set(moody(rand.New(rand.NewPCG(seed, uint64(100+i)))))
	}
	change := func(c *config.Target) {
		c.Concurrency, c.Timeout = 16, 300*time.Millisecond
		c.Guard.MaxFraction = new(1.0)
		c.Backoff = config.Backoff{Min: 10 * time.Millisecond, Max: 50 * time.Millisecond}
	}
	first := w.Start(servertest.Named("eu", eu, change), servertest.Named("us", us, change))
	const writers, transactions = 4, 60
	var wg sync.WaitGroup
	failures := make(chan error, writers)
	for n := range writers {
		conn, random := w.DB.Conn(t), rand.New(rand.NewPCG(seed, uint64(n)))
		wg.Go(func() {
			var err error
			for range transactions {
				if err == nil {
					err = disturb(w, conn, random)
				}
			}
			failures <- err
		})
	}
	w.Eventually("much has happened", func() bool { return w.Text(`SELECT (last_value > 1000)::text FROM reconciler.outbox_seq`) == "true" })
	w.Settled("2", `SELECT count(*)::text FROM reconciler.targets WHERE owner IS NOT NULL`) // by the first server
	w.Start(servertest.Named("eu", eu, change), servertest.Named("us", us, change))
	first.Stop(t)
	wg.Wait()
	for range writers {
		require.NoError(t, <-failures)
	}
	eu.Set(nil)
	us.Set(nil)
	w.DB.Exec(t, `SELECT * FROM reconciler.wait('2 min')`)                // calls that were on their way may still end for good
	w.DB.Exec(t, `SELECT reconciler.retry(name) FROM reconciler.targets`) // what has
	w.Converged()
}

// moody answers in every way, mostly well.
func moody(random *rand.Rand) func(context.Context, servertest.Call) driver.Outcome {
	var mu sync.Mutex
	return func(ctx context.Context, _ servertest.Call) driver.Outcome {
		mu.Lock()
		mood, pause := random.IntN(100), time.Duration(random.IntN(3))*time.Millisecond
		mu.Unlock()
		<-time.After(pause)
		switch {
		case mood < 3:
			return driver.Backoff(errors.New("flaky"))
		case mood < 5:
			return driver.RetryAfter(20*time.Millisecond, errors.New("busy"))
		case mood < 6:
			return driver.Unreachable(errors.New("gone"))
		case mood < 7:
			return driver.Terminal(errors.New("never"))
		case mood < 8:
			panic("moody")
		case mood < 9:
			<-ctx.Done()
			return driver.Backoff(ctx.Err())
		}
		return driver.Done()
	}
}

// disturb makes one random transaction.
func disturb(w *servertest.World, conn *pgx.Conn, random *rand.Rand) error {
	ctx := context.Background()
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }() // does nothing after a commit
	// In order of their keys, so that transactions do not wait for each other in a circle.
	id := random.IntN(200)
	for range 1 + random.IntN(15) {
		id += 1 + random.IntN(80)
		image := fmt.Sprintf("image %d", random.IntN(20))
		var sql string
		args := []any{id, image}
		switch random.IntN(7) {
		case 0:
			sql, args = `DELETE FROM apps WHERE id = $1`, args[:1]
		case 1:
			sql, args = `UPDATE apps SET running = NOT running WHERE id = $1`, args[:1]
		case 2:
			sql, args = `UPDATE apps SET region = CASE region WHEN 'eu' THEN 'us' ELSE 'eu' END WHERE id = $1`, args[:1]
		default:
			sql = `INSERT INTO apps VALUES ($1, 'eu', $2) ON CONFLICT (id) DO UPDATE SET image = excluded.image`
		}
		if _, err := tx.Exec(ctx, sql, args...); err != nil {
			return err
		}
		if random.IntN(20) == 0 {
			if _, err := tx.Exec(ctx, `SELECT pg_sleep($1)`, random.Float64()/10); err != nil {
				return err
			}
		}
	}
	if random.IntN(6) == 0 {
		return tx.Rollback(ctx)
	}
	return tx.Commit(ctx)
}
