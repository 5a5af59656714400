package outbox_test

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/metrics"
	"github.com/pgreconciler/reconciler/internal/outbox"
	"github.com/pgreconciler/reconciler/internal/pgtest"
	"github.com/pgreconciler/reconciler/internal/store"
)

const leaderID = "00000000-0000-0000-0000-000000000001"

// cursorWorld is a world whose leader is the test itself: it makes ticks and reads batches when it wants to.
type cursorWorld struct {
	*world
	feed *outbox.Feed
	last outbox.Tick
}

func newCursorWorld(t *testing.T, statements ...string) *cursorWorld {
	t.Helper()
	return cursorWorldOn(t, pgtest.New(t), statements...)
}

func cursorWorldOn(t *testing.T, db *pgtest.DB, statements ...string) *cursorWorld {
	t.Helper()
	w := &cursorWorld{world: worldOn(t, db, statements...)}
	w.Exec(t, `SELECT reconciler.adopt()`)
	w.Exec(t, `UPDATE reconciler.leases SET owner = $1, term = 1, lease_ttl = '1 hour' WHERE name = 'tick'`, leaderID)
	w.feed = outbox.NewFeed(w.Pool, metrics.New(prometheus.NewRegistry()))
	require.NoError(t, w.feed.Refresh(t.Context()))
	w.last, _ = w.feed.Latest()
	w.tick(t)
	return w
}

// makeTick makes a revision if there is something new, and says whether it did.
func makeTick(t *testing.T, db store.DBTX, pageRows int32) (rows []store.TickInsertRow, made bool) {
	t.Helper()
	rows, err := store.New(db).TickInsert(t.Context(), store.TickInsertParams{Owner: leaderID, Term: 1, PageRows: pageRows})
	require.NoError(t, err)
	return rows, len(rows) > 0
}

// tick makes a tick and returns the keys of its batch, nil when nothing was new.
func (w *cursorWorld) tick(t *testing.T) []string {
	t.Helper()
	rows, made := makeTick(t, w.Pool, outbox.PageRows)
	if !made {
		return nil
	}
	next := outbox.Tick{Revision: rows[0].Revision, Snapshot: rows[0].Snapshot, At: rows[0].At}
	require.Equal(t, w.last.Revision+1, next.Revision)
	keys := readBatch(t, w.feed, w.last, next)
	w.last = next
	return keys
}

// readBatch reads all pages between two ticks.
func readBatch(t *testing.T, feed *outbox.Feed, from, to outbox.Tick) []string {
	t.Helper()
	keys := []string{}
	for at, more := (outbox.Position{}), true; more; {
		page, err := feed.Read(t.Context(), from, to, at)
		require.NoError(t, err)
		for _, e := range page.Events {
			if e.Key == nil {
				keys = append(keys, "whole")
			} else {
				keys = append(keys, *e.Key)
			}
		}
		at, more = page.Last, page.More
	}
	return keys
}

const events = `CREATE TABLE events (key text PRIMARY KEY, region text NOT NULL DEFAULT 'eu'); SELECT reconciler.track('event', 'events', '{key}', 'region')`

func (w *cursorWorld) begin(t *testing.T, key string) *pgx.Conn {
	t.Helper()
	conn := w.Conn(t)
	_, err := conn.Exec(t.Context(), `BEGIN; INSERT INTO events VALUES ('`+key+`')`)
	require.NoError(t, err)
	return conn
}

func (w *cursorWorld) end(t *testing.T, conn *pgx.Conn, statement string) {
	t.Helper()
	_, err := conn.Exec(t.Context(), statement)
	require.NoError(t, err)
}

// C16, C17, I1, I2: commits in the opposite order of their numbers, beside transactions that stay open.
func TestCursorOverCommitsOutOfOrder(t *testing.T) {
	t.Parallel()
	w := newCursorWorld(t, events)
	require.Nil(t, w.tick(t), "nothing new makes no revision")
	open := w.begin(t, "open") // the oldest, to the end
	first, second, third := w.begin(t, "first"), w.begin(t, "second"), w.begin(t, "third")
	require.Nil(t, w.tick(t))
	w.end(t, third, `COMMIT`)
	require.Equal(t, []string{"third"}, w.tick(t))
	w.end(t, first, `COMMIT`)
	w.end(t, second, `SAVEPOINT s; INSERT INTO events VALUES ('second again'); COMMIT`)
	require.Equal(t, []string{"first", "second", "second again"}, w.tick(t))
	w.end(t, first, `BEGIN; INSERT INTO events VALUES ('rolled back'); ROLLBACK`)
	require.Nil(t, w.tick(t))
	for n := range 20 {
		key := fmt.Sprint("quick ", n)
		w.Exec(t, `INSERT INTO events VALUES ($1)`, key)
		require.Equal(t, []string{key}, w.tick(t), "an open transaction delays nobody")
	}
	w.end(t, open, `INSERT INTO events VALUES ('open again'); COMMIT`)
	require.Equal(t, []string{"open", "open again"}, w.tick(t))
	require.Nil(t, w.tick(t))
}

// C19, C14: savepoints by the hundred, and a prepared transaction that stays.
func TestCursorOverSavepointsAndPreparedTransactions(t *testing.T) {
	t.Parallel()
	w := newCursorWorld(t, events)
	gid := `'` + w.Name + `'`
	w.Exec(t, `BEGIN; INSERT INTO events VALUES ('prepared'); SAVEPOINT s; INSERT INTO events VALUES ('prepared in savepoint'); PREPARE TRANSACTION `+gid)
	// More sub-transactions than fit into shared memory: then only the top-level id of one is known there.
	many := `DO $$ BEGIN FOR n IN 1..200 LOOP BEGIN INSERT INTO events VALUES ('s' || to_char(n, 'FM000')); IF n % 2 = 0 THEN RAISE 'back'; END IF; EXCEPTION WHEN raise_exception THEN NULL; END; END LOOP; END $$`
	savepoints := w.begin(t, "s000")
	w.end(t, savepoints, many)
	w.Exec(t, `INSERT INTO events VALUES ('beside')`)
	require.Equal(t, []string{"beside"}, w.tick(t))
	w.end(t, savepoints, `COMMIT`)
	want := append([]string{"s000"}, w.lines(t, `SELECT 's' || to_char(n, 'FM000') FROM generate_series(1, 199, 2) AS n`)...)
	require.Equal(t, want, w.tick(t))
	require.Nil(t, w.tick(t))
	w.Exec(t, `COMMIT PREPARED `+gid)
	require.Equal(t, []string{"prepared", "prepared in savepoint"}, w.tick(t))
	require.Nil(t, w.tick(t))
}

// A cursor that stands at any earlier tick reads on from there, over any number of ticks, in pages.
func TestCursorReadsOnFromAnyTick(t *testing.T) {
	t.Parallel()
	w := newCursorWorld(t, events)
	ticks := []outbox.Tick{w.last}
	batches := [][]string{nil}
	open := w.begin(t, "open")
	w.Exec(t, `INSERT INTO events SELECT 'bulk ' || n FROM generate_series(1, $1) AS n`, outbox.PageRows+1)
	for n := range 4 {
		if n > 0 {
			w.Exec(t, `INSERT INTO events VALUES ($1), ($2)`, fmt.Sprint("a", n), fmt.Sprint("b", n))
		}
		if n == 2 {
			w.end(t, open, `INSERT INTO events VALUES ('open again'); COMMIT`)
		}
		batches = append(batches, w.tick(t))
		ticks = append(ticks, w.last)
	}
	require.Len(t, batches[1], outbox.PageRows+1)
	for from := range ticks {
		for to := from + 1; to < len(ticks); to++ {
			var want []string
			for _, batch := range batches[from+1 : to+1] {
				want = append(want, batch...)
			}
			require.ElementsMatch(t, want, readBatch(t, w.feed, ticks[from], ticks[to]), "from %d to %d", from, to)
		}
	}
}

// A leader that was deposed makes no revision.
func TestCursorOfADeposedLeader(t *testing.T) {
	t.Parallel()
	w := newCursorWorld(t, events, `INSERT INTO events VALUES ('a')`)
	w.Exec(t, `UPDATE reconciler.leases SET term = 2; INSERT INTO events VALUES ('b')`)
	_, made := makeTick(t, w.Pool, 10)
	require.False(t, made)
	w.Exec(t, `UPDATE reconciler.leases SET term = 1`)
	require.Equal(t, []string{"b"}, w.tick(t))
}
