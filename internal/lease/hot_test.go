package lease

import (
	"context"
	"encoding/json"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
	"github.com/pgreconciler/reconciler/internal/store"
)

// What changes, settles and syncs lock and join is written when it changes, not by each heartbeat: while somebody's
// transaction holds dead rows back, each version of a row would be walked.
func TestF94_LeaseRowsAreNotUpdatedByHeartbeats(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	a := f.start(f.replica(steadfast, seven))
	receive(t, a.leads)
	b := f.start(f.replica(steadfast, seven))
	f.awaitShares([]int{4, 3}, a, b)
	a.lives(t, quick.Heartbeat)
	b.lives(t, quick.Heartbeat)
	versions := func() string {
		return value[string](f, `SELECT jsonb_agg(v ORDER BY v)::text FROM (
			SELECT 'target ' || name || ctid || xmin FROM reconciler.targets UNION ALL SELECT 'lease ' || ctid || xmin FROM reconciler.leases
			UNION ALL SELECT 'instance ' || name || ctid || xmin FROM reconciler.instances) AS x(v)`)
	}
	before, beats := versions(), value[int64](f, "SELECT sum(beat) FROM reconciler.heartbeats")
	a.lives(t, quick.MinTTL)
	require.Greater(t, value[int64](f, "SELECT sum(beat) FROM reconciler.heartbeats"), beats+3)
	require.Equal(t, before, versions())
	require.Equal(t, 2, value[int](f, "SELECT count(*) FROM reconciler.heartbeats"), "each deletes the one before")
}

// Hours of heartbeats beside an open transaction: no look at a lease reads more for it.
func TestF94_HeartbeatsCostTheSameBesideAnOldTransaction(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	const beats = 3000
	asked := new(lastStatement)
	pool := asked.pool(t, f.db)
	send := func(beat int64) {
		_, err := store.New(pool).LeaseHeartbeat(t.Context(), store.LeaseHeartbeatParams{
			Instance: me, InstanceName: "host:1", Version: "v1", Listed: []string{"x"}, Options: []string{"one"}, Names: []string{"x"}, Beat: beat, Answered: beat - 1,
		})
		require.NoError(t, err)
	}
	send(1)
	heartbeat, args := asked.get()
	f.db.Exec(t, "INSERT INTO reconciler.targets (name, configured) VALUES ('x', true)")
	g := acquire(t, f.db.Pool, me)
	looks := map[string]func() int{
		"heartbeat": func() int { // it deletes and inserts what was there before
			args[5], args[6] = args[5].(int64)+1, args[5]
			return buffers(t, f, heartbeat, args...)
		},
		"fence": func() int { return buffers(t, f, "SELECT reconciler.fence($1, $2, $3)", g.ID, g.Owner, g.Term) },
		"status": func() int {
			return buffers(t, f, "SELECT reconciler.lease_lives(owner, lease_ttl) FROM reconciler.targets")
		},
		"expired": func() int {
			return buffers(t, f, "SELECT reconciler.unrenewed(owner, term, owner::text, term, 1) FROM reconciler.targets")
		},
	}

	old, err := f.db.Conn(t).BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	require.NoError(t, err)
	_, err = old.Exec(t.Context(), "SELECT count(*) FROM reconciler.targets")
	require.NoError(t, err)
	before := map[string]int{}
	for name, look := range looks {
		look() // what the session reads of the catalog for the first time
		before[name] = look()
	}
	last, _ := args[5].(int64)
	for beat := last + 1; beat <= last+beats; beat++ {
		send(beat)
	}
	args[5] = last + beats
	for name, look := range looks {
		look()
		after := look()
		t.Logf("%s: %d blocks before, %d after %d heartbeats", name, before[name], after, beats)
		require.LessOrEqual(t, after, before[name]+6, "buffers of %s, where a page is full or the index has one level more", name)
	}
	require.NoError(t, old.Rollback(t.Context()))
}

// buffers is how many blocks a statement reads or finds in memory.
func buffers(t *testing.T, f *fleet, sql string, args ...any) int {
	t.Helper()
	var plans []struct {
		Plan struct {
			Hit  int `json:"Shared Hit Blocks"`
			Read int `json:"Shared Read Blocks"`
		}
	}
	require.NoError(t, json.Unmarshal(value[[]byte](f, "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)\n"+sql, args...), &plans))
	return plans[0].Plan.Hit + plans[0].Plan.Read
}

// lastStatement is the last query that a pool has sent.
type lastStatement struct {
	mu   sync.Mutex
	sql  string // guarded by mu
	args []any  // guarded by mu
}

func (s *lastStatement) pool(t *testing.T, db *pgtest.DB) *pgxpool.Pool {
	t.Helper()
	config := db.Pool.Config()
	config.ConnConfig.Tracer = s
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

func (s *lastStatement) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sql, s.args = data.SQL, data.Args
	return ctx
}

func (s *lastStatement) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (s *lastStatement) get() (sql string, args []any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sql, s.args
}
