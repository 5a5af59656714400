package database

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// fleetPool returns a pool of a fleet's.
func fleetPool(t *testing.T, f *Fleet, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := NewPool(t.Context(), url, Options{Name: "fleet", Fleet: f})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// ask begins a statement that does not end by itself, and returns what becomes of it once its connection waits for the answer.
func ask(t *testing.T, pool *pgxpool.Pool, sql string) <-chan error {
	t.Helper()
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	s, ok := conn.Conn().PgConn().Conn().(*socket)
	require.True(t, ok)
	answer := make(chan error, 1)
	go func() {
		defer conn.Release()
		_, err := conn.Exec(context.WithoutCancel(t.Context()), sql)
		answer <- err
	}()
	require.Eventually(t, func() bool { return s.since() != 0 }, pgtest.Patience, time.Millisecond)
	return answer
}

// ended looks, as if it were later, until a statement ends, and returns how.
func ended(t *testing.T, f *Fleet, later time.Duration, answer <-chan error) (err error) {
	t.Helper()
	require.Eventually(t, func() bool {
		f.look(f.elapsed() + later) // between writing and reading nobody waits
		select {
		case err = <-answer:
			return true
		default:
			return false
		}
	}, pgtest.Patience, time.Millisecond)
	return err
}

// I1: connections on which an answer was due when the server was found silent, and still is seconds after it has answered elsewhere,
// are ended, and idle ones are dropped. Newer ones stay.
func TestF77_SilentConnectionsAreEnded(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	line := pgtest.NewLine(t, db.URL)
	f := NewFleet(nil)
	pool, healthy := fleetPool(t, f, line.URL), fleetPool(t, f, db.URL)
	require.Eventually(t, func() bool { return pool.Stat().IdleConns() == 1 }, pgtest.Patience, time.Millisecond)
	idle, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	held, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	idle.Release()
	held.Release()
	require.Eventually(t, func() bool { return pool.Stat().IdleConns() == 2 }, pgtest.Patience, time.Millisecond)
	line.Swallow()
	hung := ask(t, pool, "SELECT 1")

	f.Suspect()
	f.look(f.elapsed())
	require.NoError(t, pool.Ping(t.Context()), "the idle connections of before are gone")
	slow := ask(t, healthy, "SELECT pg_sleep(3600)")
	f.Heard()
	err = ended(t, f, suspectFor, hung)
	require.True(t, IsUnavailable(err), "%v", err)
	require.Empty(t, slow, "the slow one goes on")

	err = ended(t, f, maxSilence, slow)
	require.True(t, IsUnavailable(err), "nothing takes that long: %v", err)
	require.NoError(t, healthy.Ping(t.Context()))
}

// A connection that rests in its pool is kept, though pgx may read from it: after a write that took long, pgx reads in the background.
// From the next statement on an answer is due.
func TestRestingConnectionIsNotSilent(t *testing.T) {
	t.Parallel()
	line := pgtest.NewLine(t, pgtest.Empty(t).URL)
	f := NewFleet(nil)
	pool := fleetPool(t, f, line.URL)
	require.Eventually(t, func() bool { return pool.Stat().IdleConns() == 1 }, pgtest.Patience, time.Millisecond)
	f.mu.Lock()
	s := slices.Collect(maps.Keys(f.sockets))[0]
	f.mu.Unlock()
	kept := func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.sockets[s]
	}
	line.Swallow()
	read := make(chan error, 1)
	go func() {
		_, err := s.Read(make([]byte, 1))
		read <- err
	}()
	require.Eventually(t, func() bool { return s.reading.Load() != 0 }, pgtest.Patience, time.Millisecond)
	f.look(f.elapsed() + maxSilence)
	require.True(t, kept())

	begun := f.elapsed()
	_, err := s.Write([]byte{'S', 0, 0, 0, 4})
	require.NoError(t, err)
	f.look(begun + maxSilence - 1)
	require.True(t, kept())
	f.look(f.elapsed() + maxSilence)
	require.ErrorIs(t, <-read, errSilent)
}

// F113: while a server that stands still answers on no connection, those on which an answer is due are kept: ending them would end
// the owners of targets, whose leases may survive it.
func TestF113_StalledServerKeepsItsConnections(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	line := pgtest.NewLine(t, db.URL)
	f := NewFleet(nil)
	pool := fleetPool(t, f, line.URL)
	t.Cleanup(func() { f.End() }) // else the pool waits for its connection
	// While the connection is being released, ask would open another one, which answers.
	require.Eventually(t, func() bool { return pool.Stat().IdleConns() == 1 }, pgtest.Patience, time.Millisecond)
	f.Heard() // after a silence of before
	line.Swallow()
	hung := ask(t, pool, "SELECT 1")
	f.mu.Lock()
	s, kept := slices.Collect(maps.Keys(f.sockets))[0], true // not that of pgconn, which asks the server to cancel when s ends
	f.mu.Unlock()
	f.Suspect()
	require.Eventually(t, func() bool {
		since := s.since()
		f.look(f.elapsed() + 2*suspectFor)
		f.mu.Lock()
		defer f.mu.Unlock()
		kept = f.sockets[s]
		return !kept || since != 0 && s.since() == since // between writing and reading, no answer is due
	}, pgtest.Patience, time.Millisecond)
	require.True(t, kept)
	require.True(t, IsUnavailable(ended(t, f, maxSilence, hung)))
}

// What a role or database sets for its sessions does not reach ours.
func TestF27_IdleSessionTimeoutOfARoleIsOverruled(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	role := db.Role(t, "impatient", "")
	db.Exec(t, "ALTER ROLE "+role+" SET idle_session_timeout = '3s'")
	pool, err := NewPool(t.Context(), db.URLFor(role), Options{})
	require.NoError(t, err)
	defer pool.Close()
	var value string
	const show = "SHOW idle_session_timeout"
	require.NoError(t, pool.QueryRow(t.Context(), show).Scan(&value))
	require.Equal(t, "0", value)
	for _, settings := range []map[string]string{nil, Session(), WalkSession()} {
		want := "0"
		if settings != nil {
			want = "15s"
		}
		conn, err := Connect(t.Context(), db.URLFor(role), Options{Settings: settings})
		require.NoError(t, err)
		require.NoError(t, conn.QueryRow(t.Context(), show).Scan(&value))
		require.Equal(t, want, value)
		require.NoError(t, conn.Close(t.Context()))
	}
}

// F93: a fleet that has ended has no connections, and none begins.
func TestF93_AnEndedFleetHasNoConnections(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	f := NewFleet(nil)
	pool := fleetPool(t, f, db.URL)
	answer := ask(t, pool, "SELECT pg_sleep(3600)")
	require.Positive(t, f.End())
	require.Error(t, <-answer)
	require.ErrorContains(t, pool.Ping(t.Context()), errEnded.Error())
	require.Zero(t, f.End())
}
