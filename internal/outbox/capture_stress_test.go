package outbox_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/pgreconciler/reconciler/internal/outbox"
	"github.com/pgreconciler/reconciler/internal/pgtest"
	"github.com/pgreconciler/reconciler/internal/store"
)

const stressWriters = 16

// stressTransactions are those of each writer.
var stressTransactions = pgtest.Pick(10, 40)

// I1, I2, C16, C17, C19: sixteen writers with transactions of every length, savepoints, rollbacks, prepared ones and ones
// that stay open to the end. Three consumers read everything exactly once: one through the feed tick by tick, one in small
// pages, one over several ticks at a time. The fourth reads by the highest number seen, as one would without the
// snapshots: the same oracle says that it lost some.
func TestCursorMissesNothingUnderStress(t *testing.T) {
	t.Parallel()
	seed := pgtest.Pick(1, uint64(time.Now().UnixNano()))
	t.Logf("seed %d", seed)
	s := &stress{cursorWorld: cursorWorldOn(t, pgtest.Holding(t), events), t: t, oracle: newOracle()}
	config := s.Pool.Config()
	config.MaxConns = stressWriters + 4
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	defer pool.Close()
	s.pool = pool

	open := []*pgx.Conn{s.begin(t, "open 0"), s.begin(t, "open 1")}
	s.oracle.wrote([]string{"open 0", "open 1"})
	s.Exec(t, `BEGIN; INSERT INTO events VALUES ('prepared'); PREPARE TRANSACTION '`+s.Name+`'`)
	s.oracle.wrote([]string{"prepared"})

	writers, ctx := errgroup.WithContext(t.Context())
	for n := range stressWriters {
		writers.Go(func() error { return s.write(ctx, n, rand.New(rand.NewPCG(seed, uint64(n)))) })
	}
	done := make(chan error, 1)
	go func() { done <- writers.Wait() }()
	s.read(rand.New(rand.NewPCG(seed, 99)), done)
	// What was open all the time delayed nobody, and arrives as soon as it ends.
	for n, conn := range open {
		s.commit([]string{fmt.Sprint("open ", n)}, func() { s.end(t, conn, `COMMIT`) })
	}
	s.commit([]string{"prepared"}, func() { s.Exec(t, `COMMIT PREPARED '`+s.Name+`'`) })
	s.round(true)

	committed := len(s.lines(t, `SELECT key FROM events`))
	require.Equal(t, verdict{Committed: committed}, s.oracle.judge("feed"), "VIOLATION")
	require.Equal(t, verdict{Committed: committed}, s.oracle.judge("pages"), "VIOLATION")
	several := s.oracle.judge("several")
	require.Equal(t, verdict{Committed: committed, Late: several.Late}, several, "VIOLATION: its batches end later than need be, nothing else")
	// Those that stayed open have the lowest numbers.
	naive := s.oracle.judge("naive")
	require.GreaterOrEqual(t, naive.Lost, 3, "the oracle sees nothing: a cursor by number has lost no transaction")
	t.Logf("%d committed in %d ticks; a cursor by number lost %d", committed, s.last.Revision, naive.Lost)
}

// stress is the test's state. Its reader is one goroutine.
type stress struct {
	*cursorWorld
	t      *testing.T
	pool   *pgxpool.Pool
	oracle *oracle

	several outbox.Tick // where the consumer stands that reads several ticks at a time
	naive   int64       // highest number that the naive consumer has seen
}

// commit encloses a commit for the oracle.
func (s *stress) commit(keys []string, send func()) {
	s.oracle.committing(keys)
	send()
	s.oracle.committed(keys)
}

// write is one writer.
func (s *stress) write(ctx context.Context, n int, random *rand.Rand) error {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	exec := func(sql string, args ...any) {
		if err == nil {
			_, err = conn.Exec(ctx, sql, args...)
		}
	}
	for transaction := range stressTransactions {
		var keys, kept []string
		for i := range 1 + random.IntN(4) {
			keys = append(keys, fmt.Sprintf("%d/%d/%d", n, transaction, i))
		}
		s.oracle.wrote(keys)
		exec(`BEGIN`)
		for i, key := range keys {
			nested := random.IntN(3) == 0
			if nested {
				exec(`SAVEPOINT s`)
			}
			exec(`INSERT INTO events VALUES ($1)`, key)
			switch back := nested && random.IntN(2) == 0; {
			case back:
				exec(`ROLLBACK TO s`)
			case nested:
				exec(`RELEASE s`)
				fallthrough
			default:
				kept = append(kept, key)
			}
			if i == 0 && random.IntN(3) > 0 {
				exec(`SELECT pg_sleep($1)`, random.Float64()*random.Float64()*0.08)
			}
		}
		switch gid := fmt.Sprintf("'%s %d %d'", s.Name, n, transaction); random.IntN(10) {
		case 0:
			exec(`ROLLBACK`)
		case 1:
			exec(`PREPARE TRANSACTION ` + gid)
			exec(`SELECT pg_sleep($1)`, random.Float64()*0.05)
			s.commit(kept, func() { exec(`COMMIT PREPARED ` + gid) })
		default:
			s.commit(kept, func() { exec(`COMMIT`) })
		}
		if err != nil {
			return fmt.Errorf("writer %d, transaction %d: %w", n, transaction, err)
		}
	}
	return nil
}

// read makes ticks and reads them until the writers are done.
func (s *stress) read(random *rand.Rand, done <-chan error) {
	s.t.Helper()
	s.several = s.last
	for {
		select {
		case err := <-done:
			require.NoError(s.t, err)
			s.round(true)
			return
		default:
			s.round(random.IntN(4) == 0)
		}
	}
}

// round makes one tick and lets every consumer read.
func (s *stress) round(several bool) {
	s.t.Helper()
	s.oracle.begin()
	rows, made := makeTick(s.t, s.Pool, 3)
	from, to := s.last, s.last
	if made {
		to = outbox.Tick{Revision: rows[0].Revision, Snapshot: rows[0].Snapshot, At: rows[0].At}
	}
	s.oracle.end(to.Revision)
	if made {
		s.oracle.saw("feed", readBatch(s.t, s.feed, from, to), to.Revision)
		s.oracle.saw("pages", s.readPages(rows, from, to), to.Revision)
		s.last = to
	}
	if several && s.several.Revision < to.Revision {
		s.oracle.saw("several", readBatch(s.t, s.feed, s.several, to), to.Revision)
		s.several = to
	}
	s.readNaive(to.Revision)
}

// readPages goes on after the page of three rows that came with the tick, in pages of one to four rows.
func (s *stress) readPages(first []store.TickInsertRow, from, to outbox.Tick) (keys []string) {
	var xid uint64
	var seq int64
	for _, row := range first {
		keys, xid, seq = append(keys, *row.Key), row.Xid, row.Seq
	}
	for size, read := int32(1), 3; read > 0; size = size%4 + 1 {
		rows, err := store.New(s.Pool).OutboxDelta(s.t.Context(), store.OutboxDeltaParams{
			FromSnapshot: from.Snapshot, ToSnapshot: to.Snapshot, AfterXid: strconv.FormatUint(xid, 10), AfterSeq: seq, PageRows: size,
		})
		require.NoError(s.t, err)
		read = 0
		for _, row := range rows {
			if row.Seq > 0 { // the row that stands for no row
				keys, xid, seq, read = append(keys, *row.Key), row.Xid, row.Seq, read+1
			}
		}
	}
	return keys
}

// readNaive is the cursor that this product does not have: everything above the highest number seen.
func (s *stress) readNaive(revision int64) {
	rows, err := s.Pool.Query(s.t.Context(), `SELECT seq, key FROM reconciler.outbox WHERE seq > $1 AND key IS NOT NULL ORDER BY seq`, s.naive)
	require.NoError(s.t, err)
	var key string
	var keys []string
	_, err = pgx.ForEachRow(rows, []any{&s.naive, &key}, func() error {
		keys = append(keys, key)
		return nil
	})
	require.NoError(s.t, err)
	s.oracle.saw("naive", keys, revision)
}
