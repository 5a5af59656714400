package database

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// I3: a pooler may lead to another server with each transaction. What is read through it says where it is.
func TestF89_PoolerThatLeadsToAnOldPrimaryIsNoticed(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	f := NewFleet(nil)
	pool, err := NewPool(t.Context(), db.Pooler(t, "").URL, Options{Fleet: f, Simple: true})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	here := f.Known()
	require.NotZero(t, here)
	var n int
	require.NoError(t, Rows(pool).QueryRow(t.Context(), "SELECT 1").Scan(&n))

	failedOver := here
	failedOver.Timeline++
	require.NoError(t, f.judge(failedOver))
	err = Rows(pool).QueryRow(t.Context(), "SELECT 1").Scan(&n)
	require.Error(t, err)
	require.True(t, IsUnavailable(err))
	require.Error(t, Walk(pool).QueryRow(t.Context(), "SELECT 1").Scan(&n))
	var old *OldServerError
	require.ErrorAs(t, refusal(err), &old)
}

// The first server counts, a later timeline of it is a failover, everything else is refused.
func TestF88_ServersAreJudged(t *testing.T) {
	t.Parallel()
	f := NewFleet(nil)
	old := Server{System: 1, Timeline: 9, Database: 5, Addr: "old"}
	promoted := Server{System: 1, Timeline: 10, Database: 5, Addr: "new"}
	require.NoError(t, f.judge(old))
	require.NoError(t, f.judge(old))
	require.Equal(t, &OtherServerError{Server{System: 2, Timeline: 99, Database: 5}, old}, f.judge(Server{System: 2, Timeline: 99, Database: 5}))
	require.Equal(t, &OtherServerError{Server{System: 1, Timeline: 9, Database: 6}, old}, f.judge(Server{System: 1, Timeline: 9, Database: 6}))
	require.NoError(t, f.judge(promoted))
	require.Equal(t, &OldServerError{old, promoted}, f.judge(old))
	require.Equal(t, promoted, f.Known())
	newest, err := NewFleet(nil).compare([]Server{old, promoted})
	require.NoError(t, err)
	require.Equal(t, promoted, newest)
	_, err = NewFleet(nil).compare([]Server{old, {System: 2, Timeline: 99, Database: 5}})
	require.Error(t, err)
}
