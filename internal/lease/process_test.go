package lease

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestProcessRow(t *testing.T) {
	t.Parallel()

	t.Run("SaysWhatRunsWhere", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t)
		f.start(f.replica(quick, []string{"y", "x"}))
		require.Equal(t, `["00000000-0000-4000-8000-000000000001", "host:1", "v1", ["y", "x"]]`,
			value[string](f, "SELECT jsonb_build_array(id, name, version, targets)::text FROM reconciler.instances"))
	})

	t.Run("OfADeadProcessIsRemovedByAnother", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t)
		f.db.Exec(t, `SELECT reconciler.beat('00000000-0000-4000-8000-00000000000a', 'dead', 'v1', '{}', '{}', 7, 0, NULL)`)
		timing := quick
		timing.Gone = quick.MinTTL
		f.start(f.replica(timing, nil))
		f.start(f.replica(timing, nil))
		require.Eventually(t, func() bool {
			return value[int](f, "SELECT count(*) FROM reconciler.heartbeats WHERE instance = '00000000-0000-4000-8000-00000000000a'") == 0
		}, patience, 5*time.Millisecond)
		require.Equal(t, []string{"host:1", "host:2"}, value[[]string](f, "SELECT array_agg(name ORDER BY name) FROM reconciler.instances"))
	})

	t.Run("ComesBackWhenSomebodyRemovedIt", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t)
		a := f.start(f.replica(steadfast, []string{"x"}))
		first := receive(t, a.runs)
		const row = "SELECT coalesce(string_agg(concat_ws(' ', name, version, targets, options), ','), '') FROM reconciler.instances"
		before := value[string](f, row)
		require.Contains(t, before, "{x} {one}")
		f.db.Exec(t, "DELETE FROM reconciler.instances")
		require.Eventually(t, func() bool { return value[string](f, row) == before }, patience, 5*time.Millisecond)
		require.NoError(t, first.ctx.Err())
	})

	// What a process that is listed no more holds goes to another one, whatever is left of its heartbeats.
	t.Run("OfADeadProcessIsRemovedByHand", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t)
		f.db.Exec(t, `SELECT reconciler.beat('00000000-0000-4000-8000-00000000000a', 'dead', 'v1', '{}', '{}', 7, 0, NULL)`)
		f.db.Exec(t, `INSERT INTO reconciler.targets (name, configured, owner, term, lease_ttl) VALUES ('x', true, '00000000-0000-4000-8000-00000000000a', 3, '300 ms')`)
		f.db.Exec(t, `UPDATE reconciler.leases SET owner = '00000000-0000-4000-8000-00000000000a', term = 5, lease_ttl = '300 ms'`)
		f.db.Exec(t, `DELETE FROM reconciler.instances`)
		a := f.start(f.replica(quick, []string{"x"}))
		require.Equal(t, int64(4), receive(t, a.runs).Term)
		require.Equal(t, int64(6), receive(t, a.leads))
	})

	t.Run("IsGoneAfterAStop", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t)
		a := f.start(f.replica(quick, []string{"x"}))
		receive(t, a.runs)
		require.NoError(t, a.Stop(t.Context()))
		require.Zero(t, value[int](f, "SELECT count(*) FROM reconciler.instances"))
		require.Equal(t, "[null, true, 1]", value[string](f, "SELECT jsonb_build_array(owner, clean, term)::text FROM reconciler.targets"))
		require.True(t, value[bool](f, "SELECT owner IS NULL FROM reconciler.leases"))
		require.Zero(t, value[int](f, "SELECT count(*) FROM reconciler.heartbeats"))
	})

	// What the daemon's role is granted is enough for everything here.
	t.Run("IsWrittenByARoleWithTheRightsOfTheDaemon", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t)
		role := f.db.Role(t, "daemon", "")
		f.db.Exec(t, "SELECT reconciler.grant($1, 'runtime')", role)
		f.db.URL = f.db.URLFor(role)
		a := f.start(f.replica(quick, []string{"x"}))
		receive(t, a.runs)
		receive(t, a.leads)
		f.db.Exec(t, "INSERT INTO reconciler.targets (name, configured) VALUES ('unlisted', true)")
		require.Equal(t, "unlisted", receive(t, a.left))
		require.NoError(t, a.Stop(t.Context()))
		require.NotContains(t, a.log.String(), "permission denied")
	})
}

func TestTargetRow(t *testing.T) {
	t.Parallel()
	ten, half := int64(10), 0.5

	t.Run("IsMadeAndKeptAsTheConfigSays", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t)
		f.db.Exec(t, "INSERT INTO reconciler.targets (name, driver, max_deletes, paused_at) VALUES ('x', 'exec', 7, clock_timestamp())")
		f.start(f.replica(quick, []string{"y", "x"}, func(c *Config) { c.Targets[0].MaxDeletes, c.Targets[0].MaxFraction = &ten, &half }))
		require.Equal(t, `[["x", true, "file", null, null, true], ["y", true, "file", 10, 0.5, false]]`,
			value[string](f, "SELECT jsonb_agg(jsonb_build_array(name, configured, driver, max_deletes, max_fraction, paused_at IS NOT NULL) ORDER BY name)::text FROM reconciler.targets"))
	})

	t.Run("IsMadeAgainWhenAPersonRemovedIt", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t)
		a := f.start(f.replica(quick, []string{"x"}))
		first := receive(t, a.runs)
		f.forget() // terms begin anew with the row
		f.db.Exec(t, "DELETE FROM reconciler.targets")
		second := receive(t, a.runs)
		require.NotEqual(t, first.ID, second.ID)
		<-first.ended
		require.Equal(t, ErrLost, context.Cause(first.ctx))
	})

	// C39
	t.Run("IsNoLongerConfiguredOnceItsProcessWasReplacedAndNobodyOwnsIt", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t)
		old := f.start(f.replica(quick, []string{"x", "y"}, func(c *Config) { c.RunLeader, c.Source = nil, "one" }))
		receiveAll(t, old.runs, 2)
		f.db.Exec(t, `SELECT reconciler.write_cursor(id, 7, '10:10:', 8, '11:11:', '10', 1) FROM reconciler.targets`)
		a := f.start(f.replica(quick, []string{"y"}, func(c *Config) { c.Source = "one" }))
		receive(t, a.leads)
		for range 3 {
			receive(t, a.planned)
		}
		require.Empty(t, a.left, "a process lists it")
		require.NoError(t, old.Stop(t.Context()))
		require.Equal(t, "x", receive(t, a.left))
		require.Equal(t, `[["x", false, "file", null, null], ["y", true, "file", 7, 8]]`,
			value[string](f, "SELECT jsonb_agg(jsonb_build_array(t.name, t.configured, t.driver, c.revision, c.batch_revision) ORDER BY t.name)::text FROM reconciler.targets t JOIN reconciler.target_cursors c ON c.target_id = t.id"))
		require.Equal(t, 1, value[int](f, "SELECT count(*) FROM reconciler.cursors"))
		require.False(t, receive(t, a.runs).Fresh)

		b := f.start(f.replica(quick, []string{"x"}))
		require.True(t, receive(t, b.runs).Fresh)
		require.True(t, value[bool](f, "SELECT configured FROM reconciler.targets WHERE name = 'x'"))
	})

	// I1: the owner reads on from a cursor in memory.
	t.Run("KeepsItsCursorWhileSomebodyOwnsIt", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t)
		f.db.Exec(t, `INSERT INTO reconciler.targets (name, configured, owner, lease_ttl) VALUES ('x', true, '00000000-0000-4000-8000-00000000000a', '1 hour')`)
		f.db.Exec(t, `SELECT reconciler.write_cursor(id, 7, '10:10:') FROM reconciler.targets`)
		a := f.start(f.replica(quick, nil))
		receive(t, a.leads)
		for range 5 {
			receive(t, a.planned)
		}
		require.Equal(t, int64(7), value[int64](f, "SELECT c.revision FROM reconciler.target_cursors c JOIN reconciler.targets t ON t.id = c.target_id WHERE t.configured"))
		f.db.Exec(t, "UPDATE reconciler.targets SET lease_ttl = '0'")
		require.Equal(t, "x", receive(t, a.left))
	})

	t.Run("IsConfiguredAgainByTheLeaderWhenItShouldBe", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t)
		f.start(f.replica(quick, []string{"x"}))
		f.db.Exec(t, "UPDATE reconciler.targets SET configured = false")
		require.Eventually(t, func() bool { return value[bool](f, "SELECT configured FROM reconciler.targets") }, patience, 5*time.Millisecond)
	})
}

// C51.
func TestChangedOptionsAreReportedOnceAndASyncIsAskedFor(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	with := func(fingerprint string) *Grant {
		r := f.start(f.replica(quick, []string{"x"}, func(c *Config) { c.Targets[0].Fingerprint = fingerprint }))
		g := receive(t, r.runs).Grant
		require.NoError(t, r.Stop(t.Context()))
		return g
	}
	syncs := func() string {
		return value[string](f, "SELECT coalesce(jsonb_agg(jsonb_build_array(reason, verify, state) ORDER BY id), '[]')::text FROM reconciler.sync_runs")
	}
	first := with("one")
	require.True(t, first.Fresh)
	require.False(t, first.OptionsChanged)
	f.db.Exec(t, "SELECT reconciler.write_cursor(id, 1, '10:10:') FROM reconciler.targets")
	same := with("one")
	require.False(t, same.Fresh)
	require.False(t, same.OptionsChanged)
	require.Equal(t, "[]", syncs())

	require.True(t, with("two").OptionsChanged)
	require.False(t, with("two").OptionsChanged)
	require.Equal(t, `[["options changed", true, "requested"]]`, syncs())
	f.db.Exec(t, "UPDATE reconciler.sync_runs SET verify = false, reason = 'asked for'")
	require.True(t, with("one").OptionsChanged)
	require.Equal(t, `[["asked for", true, "requested"]]`, syncs())
}

// C55.
func TestTheClockOfAClientIsIrrelevant(t *testing.T) {
	t.Parallel()

	t.Run("WhateverItSays", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t)
		off := func(by time.Duration) func(*Config) {
			return func(c *Config) { c.Clock = func() time.Duration { return sinceStart() + by } }
		}
		a, b := f.replica(quick, []string{"x"}, off(-time.Hour)), f.replica(quick, []string{"x"}, off(time.Hour))
		f.start(a)
		first := receive(t, a.runs)
		f.start(b)
		receive(t, b.planned)
		require.LessOrEqual(t, first.Remaining(), quick.MinTTL)
		a.wire.cut()
		second := receive(t, b.runs)
		require.Equal(t, first.Term+1, second.Term)
	})

	t.Run("BecauseNothingAsksIt", func(t *testing.T) {
		t.Parallel()
		files, err := filepath.Glob("*.go")
		require.NoError(t, err)
		var asking []string
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
			require.NoError(t, err)
			ast.Inspect(file, func(n ast.Node) bool {
				if sel, ok := n.(*ast.SelectorExpr); ok && sel.Sel.Name == "Now" {
					asking = append(asking, name)
				}
				return true
			})
		}
		require.Equal(t, []string{"clock.go"}, asking) // where Go's monotonic clock begins
	})
}
