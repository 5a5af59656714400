package faults_test

import (
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// takesWrites has who connects take the first server that does.
const takesWrites = "&target_session_attrs=read-write"

// newPrimary starts a server for a world whose server fails over: other worlds go on with theirs.
func newPrimary(t *testing.T) *pgtest.Cluster {
	t.Helper()
	primary := pgtest.Server(t)
	rememberCommits(t, primary)
	return primary
}

// rememberCommits has a server know when a transaction was committed, which the model needs.
func rememberCommits(t *testing.T, server *pgtest.Cluster) {
	t.Helper()
	db := server.Empty(t)
	db.Exec(t, `ALTER SYSTEM SET track_commit_timestamp = on`)
	db.Pool.Close()
	server.Restart(t)
}

// startStandby starts the server that takes over in time.
func (w *world) startStandby() {
	w.standby = w.cluster.Standby(w.t)
	w.standby.AwaitReplay(w.t, w.cluster)
}

// url returns the URL of the database as it is now.
func (w *world) url() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

// urls returns the URLs of the servers that processes know.
func (w *world) urls() []string {
	if w.standby == nil {
		return []string{w.db.URL}
	}
	return []string{w.db.URL, pgtest.URLs(w.db.Name, w.standby)}
}

// failOver crashes the primary when a standby has not received everything, and promotes that. Mostly the old primary comes
// back when the fault ends, and takes writes, too.
func (w *world) failOver(f fault) (end func()) {
	if w.stopped || w.promoted {
		return nil
	}
	const lag = 1500 // milliseconds
	old := w.cluster
	w.standby.AwaitReplay(w.t, old)
	w.standby.Detach(w.t)
	pass(time.Duration(f.Choice%lag)*time.Millisecond, w.t.Context().Done())
	w.timeline.ill(partServer)
	w.timeline.ill(partWriters)
	old.StopImmediate(w.t)
	w.note("the primary has crashed")
	w.standby.Promote(w.t)
	require.Greater(w.t, w.standby.Timeline(w.t), 1)
	w.cluster, w.promoted = w.standby, true
	w.judgeFrom = time.Now()
	w.mu.Lock()
	w.now = pgtest.URLs(w.db.Name, w.standby)
	w.mu.Unlock()
	w.pool.Reset()
	w.timeline.well(partServer)
	w.timeline.well(partWriters)
	w.note("the standby is promoted")
	return func() {
		if f.Choice/lag%4 == 0 {
			return // it never comes back
		}
		old.Start(w.t)
		w.old = old
		w.note("the old primary is back")
		// Whoever looks for a server that takes writes finds it first.
		w.terminate("application_name LIKE 'reconciler%'")
		w.count("old primaries that came back", 1)
	}
}

// leftOld reports whether no process uses the old primary any more. A process that started while the new one was down uses it until
// its next survey. Connections of the survey itself do not count.
func (w *world) leftOld() bool {
	if w.old == nil {
		return true
	}
	conn, err := pgx.Connect(w.t.Context(), pgtest.URLs(w.db.Name, w.old))
	require.NoError(w.t, err)
	defer func() { _ = conn.Close(w.t.Context()) }() // nothing is lost with it
	var left bool
	require.NoError(w.t, conn.QueryRow(w.t.Context(), `SELECT NOT EXISTS (SELECT FROM pg_stat_activity
		WHERE datname = current_database() AND application_name LIKE 'reconciler%' AND application_name <> 'reconciler survey')`).Scan(&left))
	return left
}

// isJudged says whether a call belongs to the history that the tester remembers. An owner of before may have read its rows
// then, and called later; its term tells.
func (w *world) isJudged(c call) bool {
	if w.judgeFrom.IsZero() {
		return true
	}
	return c.Begin.After(w.judgeFrom) && c.Term >= w.judgeFrom.UnixMicro()
}

// conflict says whether two kinds cannot strike in one world. The clock, the pooler and the files of the server that fails
// over are not those of the one that takes over; pg_restore cannot drop what was tracked again since the dump; and row
// security that was on in the dump would stay so.
func conflict(a, b string) bool {
	not := map[string][]string{faultFailover: {faultClock, faultPooler, faultReload, faultSecurity}, faultReload: {faultUntrack, faultSecurity}}
	return slices.Contains(not[a], b) || slices.Contains(not[b], a)
}
