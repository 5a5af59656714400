package leader

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/outbox"
	"github.com/pgreconciler/reconciler/internal/pgtest"
)

func TestListenerHearsAndPassesOn(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.listen()
	b.listens()
	require.InDelta(t, 1, b.series("listening", ""), 0)
	control, wake := b.listener.Subscribe(outbox.ChannelControl), b.listener.Subscribe(outbox.ChannelWake)
	b.exec(`SELECT pg_notify('reconciler_control', '')`)
	b.reach("a command is heard", control)
	require.Empty(t, wake)
	for range 3 {
		b.exec(`SELECT pg_notify('reconciler_wake', '')`)
	}
	b.eventually("three calls are counted", func() bool { return b.listener.Wakes() == 3 })
	require.Len(t, wake, 1, "they are merged into one signal")

	b.listener.Wake()
	require.EqualValues(t, 3, b.listener.Wakes(), "its own call is no writer's")
}

func TestListenerForgetsWhoUnsubscribed(t *testing.T) {
	t.Parallel()
	l := &outbox.Listener{}
	one, other := l.Subscribe(outbox.ChannelWake), l.Subscribe(outbox.ChannelWake)
	l.Unsubscribe(outbox.ChannelWake, one)
	l.Unsubscribe(outbox.ChannelWake, one)
	l.Unsubscribe(outbox.ChannelTick, other)
	l.Wake()
	require.Empty(t, one)
	require.Len(t, other, 1)
}

// C21: the LISTEN connection is killed. Everybody is told to look, and what is committed arrives.
func TestKilledListenerIsReplaced(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.listen()
	b.lead()
	r := b.read()
	b.reach("the leader sleeps", b.asleep)
	const kill = `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'bed listen'`
	for _, key := range []string{"a", "b", "c"} {
		b.listens()
		control := b.listener.Subscribe(outbox.ChannelControl)
		b.exec(kill)
		b.change(key)
		b.reach("subscribers are told", control)
		r.gets(key)
		b.listener.Unsubscribe(outbox.ChannelControl, control)
	}
	b.listens()
}

// C21, C14: a pooler in transaction mode swallows notifications. LISTEN is found not to work; changes are found by
// polling, and commands within a second. When LISTEN works one day, it is used.
func TestSwallowedNotificationsAreNoticed(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	line := pgtest.NewLine(t, b.url)
	line.Mute(true)
	b.url = line.URL
	b.listen(func(l *outbox.Listener) { l.RetestEvery = 100 * time.Millisecond })
	b.url = b.db.URL
	b.lead()
	r := b.read()
	control := b.listener.Subscribe(outbox.ChannelControl)
	b.change("a")
	r.gets("a")
	b.eventually("the test of LISTEN has failed once", func() bool { return line.Sessions("bed listen") >= 2 })
	require.False(t, b.listener.Works())
	require.Zero(t, b.series("listening", ""))
	require.Equal(t, "0", b.text(sleepers), "a leader that nobody can call does not sleep")
	writer := b.db.Conn(t)
	require.Zero(t, b.heard(writer, func() { b.write(writer, "b") }))
	r.gets("b")
	b.reach("commands are looked for", control)

	line.Mute(false)
	b.listens()
	b.reach("the leader sleeps", b.asleep)
	require.Equal(t, 1, b.heard(writer, func() { b.write(writer, "c") }))
	r.gets("c")
}

// LISTEN stops working while the leader sleeps: it looks at once, and polls from then on.
func TestSleepingLeaderPollsWhenListenIsLost(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	line := pgtest.NewLine(t, b.url)
	b.url = line.URL
	b.listen(func(l *outbox.Listener) { l.RetestEvery = time.Hour })
	b.url = b.db.URL
	b.lead()
	r := b.read()
	b.reach("the leader sleeps", b.asleep)
	line.Mute(true)
	b.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'bed listen'`)
	b.eventually("the leader gives the sleep lock back", func() bool { return b.text(sleepers) == "0" })
	b.change("a")
	r.gets("a")
	polls := b.polls()
	b.eventually("the leader polls", func() bool { return b.polls() >= polls+10 })
}

// A listener that is off opens no connection; commands are looked for all the same.
func TestListenerThatIsOffConnectsNowhere(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	line := pgtest.NewLine(t, b.url)
	b.url = line.URL
	stop := b.listen(func(l *outbox.Listener) { l.Off = true })
	b.reach("commands are looked for", b.listener.Subscribe(outbox.ChannelControl))
	require.Zero(t, line.Sessions("bed listen"))
	require.False(t, b.listener.Works())
	require.NoError(t, stop())
}

// A connection that is half open is found by a ping.
func TestListenerReplacesAConnectionThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	line := pgtest.NewLine(t, b.url)
	b.url = line.URL
	b.listen(func(l *outbox.Listener) { l.PingEvery = 200 * time.Millisecond })
	b.listens()
	line.Freeze("bed listen")
	b.eventually("LISTEN is found not to work", func() bool { return !b.listener.Works() })
	line.Thaw()
	b.listens()
}

// Follow keeps the feed of a process that is not the leader up to date.
func TestFollowerLearnsOfTicks(t *testing.T) {
	t.Parallel()
	for name, off := range map[string]bool{"ByNotification": false, "ByPolling": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t)
			b.listen(func(l *outbox.Listener) { l.Off = off })
			b.background(b.ticker().Follow)
			if !off {
				b.listens()
			}
			b.eventually("the first tick is known", func() bool { latest, _ := b.feed.Latest(); return latest.Revision == 1 })
			b.exec(`INSERT INTO reconciler.ticks (revision, snapshot) SELECT 2, pg_current_snapshot()`)
			b.exec(`SELECT pg_notify('reconciler_tick', '')`)
			b.eventually("the second tick is known", func() bool { latest, _ := b.feed.Latest(); return latest.Revision == 2 })
		})
	}
}
