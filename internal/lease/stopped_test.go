package lease

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const configured = `SELECT coalesce(string_agg(t.name || coalesce(' ' || c.revision, ''), ', ' ORDER BY t.name), '')
	FROM reconciler.targets t JOIN reconciler.target_cursors c ON c.target_id = t.id WHERE t.configured`

// A process that is away changes nothing about which targets exist, nor about their cursors.
func TestF139_StoppedIsNotRemoved(t *testing.T) {
	t.Parallel()
	sooner := quick
	sooner.Gone = quick.MinTTL

	// away starts a process with x and one that leads, has the first one end, and waits until the leader has acted on that.
	away := func(t *testing.T, end func(f *fleet, gone *replica)) (*fleet, *replica) {
		t.Helper()
		f := newFleet(t)
		gone := f.start(f.replica(sooner, []string{"x", "shared"}, func(c *Config) { c.RunLeader, c.Name = nil, "there:1" }))
		receiveAll(t, gone.runs, 2)
		f.db.Exec(t, `SELECT reconciler.write_cursor(id, 7, '10:10:') FROM reconciler.targets`)
		leader := f.start(f.replica(sooner, []string{"y"}))
		receive(t, leader.leads)
		end(f, gone)
		require.Eventually(t, func() bool { return value[int](f, "SELECT count(*) FROM reconciler.instances") == 1 }, patience, 5*time.Millisecond)
		leader.lives(t, 3*quick.Heartbeat)
		return f, leader
	}
	stop := func(f *fleet, gone *replica) { require.NoError(f.t, gone.Stop(f.t.Context())) }

	t.Run("AfterATerm", func(t *testing.T) {
		t.Parallel()
		f, leader := away(t, stop)
		require.Empty(t, leader.left)
		require.Equal(t, "shared 7, x 7, y", value[string](f, configured))
	})

	t.Run("AfterAKill", func(t *testing.T) {
		t.Parallel()
		f, leader := away(t, func(_ *fleet, gone *replica) { gone.wire.cut() })
		require.Empty(t, leader.left)
		require.Equal(t, "shared 7, x 7, y", value[string](f, configured))
	})

	t.Run("WhenOthersStart", func(t *testing.T) {
		t.Parallel()
		f, leader := away(t, stop)
		f.start(f.replica(quick, []string{"y", "shared"}))
		leader.lives(t, 3*quick.Heartbeat)
		require.Empty(t, leader.left)
		require.Equal(t, "shared 7, x 7, y", value[string](f, configured))
	})

	t.Run("WhenOneOfAnotherHostWithTheSameNameStarts", func(t *testing.T) {
		t.Parallel()
		f, leader := away(t, stop)
		f.start(f.replica(quick, []string{"z"}, func(c *Config) { c.Source = "there:1" }))
		leader.lives(t, 3*quick.Heartbeat)
		require.Empty(t, leader.left)
		require.Equal(t, "shared 7, x 7, y, z", value[string](f, configured))
	})

	t.Run("UntilItStartsWithoutIt", func(t *testing.T) {
		t.Parallel()
		f, leader := away(t, stop)
		f.start(f.replica(quick, []string{"shared", "renamed"}, func(c *Config) { c.Source = "there:1" }))
		require.Equal(t, "x", receive(t, leader.left))
		require.Equal(t, "renamed, shared 7, y", value[string](f, configured))
	})

	t.Run("UntilAPersonForgetsIt", func(t *testing.T) {
		t.Parallel()
		f, leader := away(t, stop)
		f.db.Exec(t, "SELECT reconciler.release('x')")
		f.db.Exec(t, "INSERT INTO reconciler.targets (name) VALUES ('x')") // as for rows that name it
		leader.lives(t, 3*quick.Heartbeat)
		require.Equal(t, "shared 7, y", value[string](f, configured))
	})

	t.Run("AfterARestoreFromBeforeItStarted", func(t *testing.T) {
		t.Parallel()
		f, leader := away(t, func(f *fleet, gone *replica) {
			f.db.Exec(f.t, "DELETE FROM reconciler.configs")
			f.db.Exec(f.t, "SELECT reconciler.start_over('restored')")
			receiveAll(f.t, gone.runs, 2)
			require.NoError(f.t, gone.Stop(f.t.Context()))
		})
		require.Empty(t, leader.left)
		require.Equal(t, "shared, x, y", value[string](f, configured))
	})
}

// Rows of stopped processes do not pile up: a process takes the place of those that had none but its targets.
func TestF139_ConfigsOfStoppedProcessesAreReplaced(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	for range 3 {
		r := f.start(f.replica(quick, []string{"x", "y"}))
		receiveAll(t, r.runs, 2)
		require.NoError(t, r.Stop(t.Context()))
	}
	require.Equal(t, "host:3 {x,y}", value[string](f, "SELECT string_agg(source || ' ' || targets::text, ', ') FROM reconciler.configs"))
	f.start(f.replica(quick, []string{"y"}))
	require.Equal(t, "host:3 {x,y}, host:4 {y}", value[string](f, "SELECT string_agg(source || ' ' || targets::text, ', ' ORDER BY source) FROM reconciler.configs"))
}
