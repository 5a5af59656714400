package measure

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"
)

// Load says what is written: one-row updates of a table.
type Load struct {
	Pool    *pgxpool.Pool // of Writers connections at least
	Table   string        // in the schema public
	Rows    int           // of the table
	Writers int
	Length  time.Duration
}

func (l Load) update() string {
	return "UPDATE " + pgx.Identifier{"public", l.Table}.Sanitize() + " SET n = n + 1 WHERE id = $1"
}

// Commits has the writers commit as fast as they can, and returns how many commits a second came of it, and how long
// each took, in order of length. Every writer is connected and has its statement prepared before the clock starts.
func Commits(ctx context.Context, load Load) (rate float64, times []time.Duration, err error) {
	conns, release, err := load.connect(ctx)
	defer release()
	if err != nil {
		return 0, nil, err
	}
	each := make([][]time.Duration, load.Writers)
	group, groupCtx := errgroup.WithContext(ctx)
	began := time.Now()
	for w, conn := range conns {
		group.Go(func() (err error) {
			each[w], err = load.write(groupCtx, conn, began.Add(load.Length))
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return 0, nil, err
	}
	times = slices.Concat(each...)
	took := time.Since(began)
	slices.Sort(times)
	return float64(len(times)) / took.Seconds(), times, nil
}

// connect takes the connections from the pool, and writes once on each. release is never nil.
func (l Load) connect(ctx context.Context) (conns []*pgxpool.Conn, release func(), err error) {
	release = func() {
		for _, conn := range conns {
			conn.Release()
		}
	}
	for range l.Writers {
		conn, err := l.Pool.Acquire(ctx)
		if err != nil {
			return conns, release, fmt.Errorf("connect a writer: %w", err)
		}
		conns = append(conns, conn)
		if _, err := conn.Exec(ctx, l.update(), 1); err != nil {
			return conns, release, fmt.Errorf("update %s: %w", l.Table, err)
		}
	}
	return conns, release, nil
}

// write commits until the end, and at least once.
func (l Load) write(ctx context.Context, conn *pgxpool.Conn, end time.Time) ([]time.Duration, error) {
	sql := l.update()
	var times []time.Duration
	for {
		began := time.Now()
		if _, err := conn.Exec(ctx, sql, rand.IntN(l.Rows)+1); err != nil {
			return nil, fmt.Errorf("update %s: %w", l.Table, err)
		}
		times = append(times, time.Since(began))
		if !time.Now().Before(end) {
			return times, nil
		}
	}
}
