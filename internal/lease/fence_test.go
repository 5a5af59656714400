package lease

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
	"github.com/pgreconciler/reconciler/internal/store"
)

const me, other = "00000000-0000-4000-8000-00000000000a", "00000000-0000-4000-8000-00000000000b"

// fence is what a write of an owner begins with.
func fence(ctx context.Context, db store.DBTX, g *Grant) error {
	return store.New(db).TargetFence(ctx, store.TargetFenceParams{TargetID: g.ID, Owner: g.Owner, Term: g.Term})
}

// acquire takes target x for an instance that saw it expire in the first term of me, or returns nil.
func acquire(t *testing.T, db store.DBTX, instance string) *Grant {
	t.Helper()
	rows, err := store.New(db).TargetsAcquire(t.Context(), store.TargetsAcquireParams{
		Names: []string{"x"}, Fingerprints: []string{"one"}, Places: []string{""}, PlaceKeys: []string{""}, Ttls: []time.Duration{time.Hour}, Instance: instance,
		SeenOwners: []string{me}, SeenTerms: []int64{1}, SeenBeats: []int64{0},
	})
	require.NoError(t, err)
	if len(rows) == 0 {
		return nil
	}
	return &Grant{Target: rows[0].Name, ID: rows[0].ID, Owner: instance, Term: rows[0].Term, Clean: rows[0].Clean}
}

// expired makes the target x, whose owner let its lease expire a moment ago, and returns the owner's grant.
func expired(t *testing.T, f *fleet) *Grant {
	t.Helper()
	f.db.Exec(t, "INSERT INTO reconciler.targets (name) VALUES ('x')")
	g := acquire(t, f.db.Pool, me)
	return g
}

// I12: targets that fence remember the highest term that they have seen. A row that is made anew (by a dump of before the first start,
// or after somebody has forgotten the target) begins above it, and a clock that was set back takes nothing away.
func TestTermsGrowThoughTheirRowsAreMadeAnew(t *testing.T) {
	t.Parallel()
	f := &fleet{t: t, db: pgtest.New(t)}
	first := expired(t, f)
	f.db.Exec(t, "UPDATE reconciler.targets SET owner = NULL")
	second := acquire(t, f.db.Pool, other)
	require.Greater(t, second.Term, first.Term)
	f.db.Exec(t, "DELETE FROM reconciler.targets")
	require.Greater(t, expired(t, f).Term, second.Term)
	f.db.Exec(t, "UPDATE reconciler.targets SET owner = NULL, term = 9000000000000000") // by a clock that went ahead
	require.Equal(t, int64(9000000000000001), acquire(t, f.db.Pool, other).Term)
	f.db.Exec(t, "INSERT INTO reconciler.cursors (consumer, revision, snapshot) SELECT id, 1, pg_current_snapshot() FROM reconciler.targets")
	f.db.Exec(t, "UPDATE reconciler.targets SET owner = NULL, term = 7") // it does not begin now: as on an old primary that came back
	require.Equal(t, int64(8), acquire(t, f.db.Pool, me).Term)
	require.True(t, value[bool](f, "SELECT to_timestamp($1::bigint / 1e6) BETWEEN now() - interval '1 hour' AND now()", first.Term))
}

// awaitBlocked waits until a backend waits for a lock.
func awaitBlocked(t *testing.T, f *fleet, conn *pgx.Conn) {
	t.Helper()
	require.Eventually(t, func() bool {
		return value[bool](f, "SELECT cardinality(pg_blocking_pids($1)) > 0", int32(conn.PgConn().PID()))
	}, patience, 5*time.Millisecond)
}

func refused(g *Grant) string {
	return fmt.Sprintf("ERROR: target %d was taken over by another process: term %d is over (SQLSTATE RC001)", g.ID, g.Term)
}

// C35, I10.
func TestFence(t *testing.T) {
	t.Parallel()

	t.Run("LetsTheOwnerWriteUntilItIsDeposed", fenceLetsTheOwnerWriteUntilItIsDeposed)
	t.Run("WaitsForATakeoverThatIsNotCommittedAndThenRefuses", fenceWaitsForATakeoverThatIsNotCommittedAndThenRefuses)
	t.Run("LetsAWriteThroughWhenTheTakeoverIsRolledBack", fenceLetsAWriteThroughWhenTheTakeoverIsRolledBack)
	t.Run("KeepsATakeoverAwayWhileAWriteIsUnderWay", fenceKeepsATakeoverAwayWhileAWriteIsUnderWay)
	t.Run("OfTwoWhoTakeAtOnceLetsOneHaveIt", fenceOfTwoWhoTakeAtOnceLetsOneHaveIt)
	t.Run("RefusesAnOlderRunOfTheSameProcess", fenceRefusesAnOlderRunOfTheSameProcess)
	t.Run("EndsARunThatIsToldSo", fenceEndsARunThatIsToldSo)
}

func fenceLetsTheOwnerWriteUntilItIsDeposed(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	a := f.start(f.replica(quick, []string{"x"}))
	first := receive(t, a.runs)
	require.NoError(t, fence(t.Context(), f.db.Pool, first.Grant))
	b := f.start(f.replica(quick, []string{"x"}))
	a.wire.cut()
	second := receive(t, b.runs)
	err := fence(t.Context(), f.db.Pool, first.Grant)
	require.EqualError(t, err, refused(first.Grant))
	require.True(t, IsFenced(fmt.Errorf("write: %w", err)))
	require.NoError(t, fence(t.Context(), f.db.Pool, second.Grant))
	require.False(t, IsFenced(nil))
	require.False(t, IsFenced(ErrLost))
}

func fenceWaitsForATakeoverThatIsNotCommittedAndThenRefuses(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	deposed := expired(t, f)
	taking, err := f.db.Conn(t).Begin(t.Context())
	require.NoError(t, err)
	taken := acquire(t, taking, other)
	require.Equal(t, deposed.Term+1, taken.Term)

	conn := f.db.Conn(t)
	result := make(chan error, 1)
	go func() { result <- fence(context.WithoutCancel(t.Context()), conn, deposed) }()
	awaitBlocked(t, f, conn)
	require.NoError(t, taking.Commit(t.Context()))
	require.EqualError(t, receive(t, result), refused(deposed))
}

func fenceLetsAWriteThroughWhenTheTakeoverIsRolledBack(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	owner := expired(t, f)
	taking, err := f.db.Conn(t).Begin(t.Context())
	require.NoError(t, err)
	require.NotNil(t, acquire(t, taking, other))

	conn := f.db.Conn(t)
	result := make(chan error, 1)
	go func() { result <- fence(context.WithoutCancel(t.Context()), conn, owner) }()
	awaitBlocked(t, f, conn)
	require.NoError(t, taking.Rollback(t.Context()))
	require.NoError(t, receive(t, result))
}

func fenceKeepsATakeoverAwayWhileAWriteIsUnderWay(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	owner := expired(t, f)
	writing, err := f.db.Conn(t).Begin(t.Context())
	require.NoError(t, err)
	require.NoError(t, fence(t.Context(), writing, owner))
	require.Nil(t, acquire(t, f.db.Pool, other))
	require.NoError(t, writing.Commit(t.Context()))
	taken := acquire(t, f.db.Pool, other)
	require.Equal(t, owner.Term+1, taken.Term)
	require.False(t, taken.Clean)
}

func fenceOfTwoWhoTakeAtOnceLetsOneHaveIt(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	expired(t, f)
	first, err := f.db.Conn(t).Begin(t.Context())
	require.NoError(t, err)
	require.NotNil(t, acquire(t, first, me))
	require.Nil(t, acquire(t, f.db.Pool, other))
	require.NoError(t, first.Commit(t.Context()))
	require.Nil(t, acquire(t, f.db.Pool, other))
}

func fenceRefusesAnOlderRunOfTheSameProcess(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	first := expired(t, f)
	second := acquire(t, f.db.Pool, me)
	require.Equal(t, first.Term+1, second.Term)
	require.False(t, second.Clean)
	require.EqualError(t, fence(t.Context(), f.db.Pool, first), refused(first))
}

func fenceEndsARunThatIsToldSo(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	writes := make(chan struct{})
	a := f.start(f.replica(quick, []string{"x"}, func(c *Config) {
		own := c.RunTarget
		c.RunTarget = func(ctx context.Context, g *Grant) error {
			if g.Term > 1 {
				return own(ctx, g)
			}
			<-writes
			return fence(ctx, f.db.Pool, g)
		}
	}))
	require.Eventually(t, func() bool { return len(f.owners()) == 1 }, patience, 5*time.Millisecond)
	f.db.Exec(t, "UPDATE reconciler.targets SET owner = NULL, term = term + 10")
	close(writes)
	require.Equal(t, int64(12), receive(t, a.runs).Term)
	require.Empty(t, a.resting, "a deposed run is no failure")
}
