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

// clockWorld is a server whose clock jumps, an owner that sends heartbeats, and an observer who looks. Its time is the
// observer's own.
type clockWorld struct {
	now   time.Duration
	ahead time.Duration // the server's clock, of now
	beat  int64
	sent  time.Duration // when the owner sent its last heartbeat
	at    time.Time     // what the server wrote for it
	watch watch
}

func (w *clockWorld) server() time.Time { return time.Unix(1_800_000_000, 0).Add(w.now + w.ahead) }

func (w *clockWorld) pass(t *rapid.T, most time.Duration, what string) time.Duration {
	d := time.Duration(rapid.Int64Range(0, int64(most)).Draw(t, what))
	w.now += d
	return d
}

func (w *clockWorld) heartbeat(t *rapid.T) {
	w.beat, w.sent = w.beat+1, w.now
	w.pass(t, time.Second, "until the server writes it")
	w.at = w.server()
}

func (w *clockWorld) look(t *rapid.T) {
	sent, beat, at := w.now, w.beat, w.at
	w.pass(t, time.Second, "until the server looks")
	rows := []store.LeaseHeartbeatRow{{Kind: "server", At: w.server()}, {Kind: "instance", Instance: "owner", Beat: beat, At: at}}
	w.pass(t, time.Second, "until it is answered")
	w.watch.look(rows, sent, w.now, time.Minute)
}

// I10: an observer never takes a heartbeat for older than it is, should the clock jump at any time, once between two looks.
func TestF91_NoHeartbeatIsTakenForOlderThanItIs(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := &clockWorld{now: time.Hour}
		w.heartbeat(t)
		w.look(t)
		for range rapid.IntRange(1, 20).Draw(t, "looks") {
			jump := rapid.SampledFrom([]time.Duration{0, 0, 100 * time.Millisecond, -100 * time.Millisecond, 3 * time.Second, -3 * time.Second, time.Hour, -time.Hour}).Draw(t, "jump")
			early := rapid.Bool().Draw(t, "it jumps before the heartbeat")
			w.pass(t, 4*time.Second, "pause")
			if early {
				w.ahead += jump
			}
			w.pass(t, 4*time.Second, "pause")
			if rapid.Bool().Draw(t, "the owner lives") {
				w.heartbeat(t)
			}
			w.pass(t, 4*time.Second, "pause")
			if !early {
				w.ahead += jump
			}
			w.look(t)
			require.GreaterOrEqual(t, w.watch.seen["owner"].at, w.sent)
			require.LessOrEqual(t, w.watch.seen["owner"].at, w.now)
		}
	})
}

// With a clock that goes steadily a takeover comes when the lease is over, not when whoever takes over first missed it.
func TestAHeartbeatIsDatedByASteadyClock(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := &clockWorld{now: time.Hour, ahead: time.Duration(rapid.Int64Range(-1e15, 1e15).Draw(t, "ahead"))}
		w.look(t)
		for range rapid.IntRange(1, 20).Draw(t, "looks") {
			w.pass(t, 10*time.Second, "pause")
			w.heartbeat(t)
			written := w.now
			w.pass(t, 10*time.Second, "pause")
			w.look(t)
			require.LessOrEqual(t, w.watch.seen["owner"].at, written+time.Second, "the longest that an answer takes")
		}
	})
}
