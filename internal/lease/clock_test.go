package lease

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pgreconciler/reconciler/internal/store"
)

// jumpingClock gives the server a clock that the test can set: statements find another clock_timestamp() first.
func (f *fleet) jumpingClock() {
	f.t.Helper()
	f.db.Exec(f.t, `CREATE SCHEMA clock`)
	f.db.Exec(f.t, `CREATE TABLE clock.ahead (by interval NOT NULL); INSERT INTO clock.ahead VALUES ('0');
		CREATE FUNCTION clock.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql VOLATILE AS
			$$ BEGIN RETURN pg_catalog.clock_timestamp() + (SELECT by FROM clock.ahead); END $$;
		ALTER TABLE reconciler.heartbeats ALTER COLUMN at SET DEFAULT clock.clock_timestamp()`)
	f.db.Exec(f.t, `ALTER DATABASE `+f.db.Name+` SET search_path = clock, pg_catalog`)
}

// jump sets the server's clock.
func (f *fleet) jump(ahead time.Duration) {
	f.t.Helper()
	f.db.Exec(f.t, "UPDATE clock.ahead SET by = $1", ahead)
}

// The clock was two days ahead for a moment, and its owner died meanwhile.
func TestF90_ALeaseOfAClockThatWasAheadEndsInTime(t *testing.T) {
	t.Parallel()

	for name, days := range map[string]time.Duration{"Ahead": 48 * time.Hour, "Behind": -48 * time.Hour} {
		for _, who := range []string{"ForWhoWasThere", "ForANewcomer"} {
			t.Run(name+who, func(t *testing.T) {
				t.Parallel()
				f := newFleet(t)
				f.jumpingClock()
				a, b := f.start(f.replica(quick, []string{"x"})), f.replica(quick, []string{"x"})
				first := receive(t, a.runs)
				require.Equal(t, int64(1), receive(t, a.leads))
				if who == "ForWhoWasThere" {
					f.start(b)
					receive(t, b.planned)
				}
				f.jump(days)
				a.lives(t, 2*quick.Heartbeat)
				a.wire.cut()
				<-first.ended
				f.jump(0)
				if who == "ForANewcomer" {
					f.start(b)
				}
				second := receive(t, b.runs)
				require.Greater(t, second.Term, first.Term)
				require.False(t, second.Clean)
				require.Greater(t, receive(t, b.leads), int64(1))
			})
		}
	}
}

// I10: an owner that is well keeps what it has, whatever the server's clock does. Its heartbeats are hours apart, so that
// nobody sees one after the jump. The fleet checks that no two own a target at once.
func TestF91_AJumpOfTheServersClockDeposesNobody(t *testing.T) {
	t.Parallel()

	for name, by := range map[string]time.Duration{"Forward": 72 * time.Hour, "Back": -72 * time.Hour} {
		for _, who := range []string{"ForWhoWasThere", "ForANewcomer"} {
			t.Run(name+who, func(t *testing.T) {
				t.Parallel()
				f := newFleet(t)
				f.jumpingClock()
				a, b := f.start(f.replica(still, []string{"x"})), f.replica(steadfast, []string{"y"})
				b.Manager.cfg.Targets = append(b.Manager.cfg.Targets, Target{Name: "x", Driver: "file", Fingerprint: "one"})
				first := receive(t, a.runs)
				require.Equal(t, int64(1), receive(t, a.leads))
				if who == "ForWhoWasThere" {
					f.start(b)
					require.Equal(t, "y", receive(t, b.runs).Target)
				}
				f.jump(by)
				if who == "ForANewcomer" {
					f.start(b)
					require.Equal(t, "y", receive(t, b.runs).Target)
				}
				b.lives(t, 2*quick.MinTTL)
				require.Empty(t, b.runs)
				require.Empty(t, b.leads)
				require.NoError(t, first.ctx.Err())
				require.Equal(t, 2, value[int](f, "SELECT count(*) FROM reconciler.instances"), "a process that lives is removed")
			})
		}
	}
}

// A leader whose clock jumps takes no target for one that nobody lists.
func TestF91_AJumpOfTheServersClockLeavesTargetsConfigured(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.jumpingClock()
	a := f.start(f.replica(still, []string{"x"}, func(c *Config) { c.RunLeader = nil }))
	receive(t, a.runs)
	b := f.start(f.replica(steadfast, nil))
	receive(t, b.leads)
	f.jump(72 * time.Hour)
	b.lives(t, 2*quick.MinTTL)
	require.Empty(t, b.left)
	require.True(t, value[bool](f, "SELECT configured FROM reconciler.targets WHERE name = 'x'"))
}

// I10: an observer never takes a heartbeat for older than it is, whatever the server's clock does, also between two looks.
func TestF120_NoHeartbeatIsTakenForOlderThanItIs(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		pass := func() time.Duration { return time.Duration(rapid.Int64Range(0, 1e10).Draw(t, "pause")) }
		server := func(now time.Duration) time.Time {
			ahead := rapid.SampledFrom([]time.Duration{0, 100 * time.Millisecond, 3 * time.Second, -3 * time.Second, time.Hour, -time.Hour}).Draw(t, "the server's clock is ahead by")
			return time.Unix(1_800_000_000, 0).Add(now + ahead)
		}
		var w watch
		var beat int64
		var written time.Time
		var sent, seen time.Duration
		now, fresh := time.Hour, true
		for range rapid.IntRange(1, 20).Draw(t, "looks") {
			now += pass()
			if fresh || rapid.Bool().Draw(t, "the owner lives") {
				beat, sent, written, fresh = beat+1, now, server(now), true
			}
			now += pass()
			w.look([]store.LeaseHeartbeatRow{{Kind: "server", At: server(now)}, {Kind: "instance", Instance: "owner", Beat: beat, At: written}}, now)
			if fresh {
				seen, fresh = now, false
			}
			if rapid.Bool().Draw(t, "start_over() removes heartbeats") {
				now += pass()
				w.look([]store.LeaseHeartbeatRow{{Kind: "target", Instance: "owner"}}, now)
				require.Zero(t, w.seen["owner"].beat)
				fresh = true // the next heartbeat is another one
				beat++
				sent, written = now, server(now)
			}
			require.Equal(t, seen, w.seen["owner"].at)
			require.True(t, fresh || seen >= sent)
		}
	})
}
