package leader

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/outbox"
	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// sleepers are the sessions that hold the sleep lock of this database.
const sleepers = `SELECT count(*)::text FROM pg_locks l JOIN pg_database d ON d.oid = l.database AND d.datname = current_database()
WHERE l.locktype = 'advisory' AND l.granted AND (l.classid::bigint << 32) | l.objid::bigint = reconciler.sleep_lock()`

// shout notifies the leader as a hundred commits do that come at once.
const shout = `SELECT pg_notify('reconciler_wake', i::text) FROM generate_series(1, 100) AS i`

// awaken makes the leader go awake, and keeps it so until stop.
func (b *bed) awaken() (stop func()) {
	b.t.Helper()
	conn := b.db.Conn(b.t)
	n := 0
	halt := b.background(func(ctx context.Context) error {
		for ctx.Err() == nil {
			if _, err := conn.Exec(ctx, shout); err != nil {
				return err
			}
			n++
			if _, err := conn.Exec(ctx, `INSERT INTO apps (id) VALUES ($1)`, fmt.Sprintf("noise %d", n)); err != nil {
				return err
			}
		}
		return nil
	})
	b.reach("the leader goes awake", b.awake)
	return func() { _ = halt() }
}

// heard returns how often a session notifies the leader while fn runs.
func (b *bed) heard(writer *pgx.Conn, fn func()) int {
	b.t.Helper()
	ear := b.db.Conn(b.t)
	// Its session must not stay: once nobody reads what comes it waits to send, and whoever drops a database waits for all sessions.
	defer func() { require.NoError(b.t, ear.Close(b.t.Context())) }()
	_, err := ear.Exec(b.t.Context(), "LISTEN reconciler_wake")
	require.NoError(b.t, err)
	fn()
	// Notifications of a session arrive in the order of its commits.
	_, err = writer.Exec(b.t.Context(), "SELECT pg_notify('reconciler_wake', 'end')")
	require.NoError(b.t, err)
	for n := 0; ; {
		ctx, cancel := context.WithTimeout(b.t.Context(), within)
		notification, err := ear.WaitForNotification(ctx)
		cancel()
		require.NoError(b.t, err)
		switch {
		case notification.PID != writer.PgConn().PID():
		case notification.Payload == "end":
			return n
		default:
			n++
		}
	}
}

// heardAwake is heard for something that happens while the leader is awake all the time; else fn runs once more.
func (b *bed) heardAwake(writer *pgx.Conn, fn func(try int)) int {
	b.t.Helper()
	heard := 0
	try := 0
	b.eventually("the leader stays awake for a while", func() bool {
		for len(b.dozing) > 0 {
			<-b.dozing
		}
		if b.text(sleepers) != "0" {
			return false
		}
		try++
		heard = b.heard(writer, func() { fn(try) })
		return b.text(sleepers) == "0" && len(b.dozing) == 0 // in this order: a signal comes before the lock is given back
	})
	return heard
}

// heardAsleep is heard for something that happens while the leader sleeps all the time; else fn runs once more.
func (b *bed) heardAsleep(writer *pgx.Conn, fn func(try int)) int {
	b.t.Helper()
	heard, try := 0, 0
	b.eventually("the leader stays asleep for a while", func() bool {
		for len(b.awake) > 0 {
			<-b.awake
		}
		if b.text(sleepers) != "1" {
			return false
		}
		try++
		heard = b.heard(writer, func() { fn(try) })
		return b.text(sleepers) == "1" && len(b.awake) == 0
	})
	return heard
}

// write changes a row in a session.
func (b *bed) write(writer *pgx.Conn, id string) {
	b.t.Helper()
	_, err := writer.Exec(b.t.Context(), `INSERT INTO apps (id) VALUES ($1)`, id)
	require.NoError(b.t, err)
}

func TestLeaderSleepsWhenNothingHappens(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.listen()
	b.lead()
	b.reach("the leader sleeps", b.asleep)
	require.Equal(t, "1", b.text(sleepers))
	b.eventually("its metric says so", func() bool { return b.series("awake", "") == 0 })
}

// Asleep, each commit calls the leader: it arrives without a poll.
func TestCommitWakesTheSleepingLeader(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.listen()
	b.lead()
	r := b.read()
	b.reach("the leader sleeps", b.asleep)
	writer, called := b.db.Conn(t), 0
	for i := range 10 {
		polls := b.polls()
		key := ""
		require.Equal(t, 1, b.heardAsleep(writer, func(try int) {
			key = fmt.Sprintf("%d/%d", i, try)
			b.write(writer, key)
		}))
		r.gets(key)
		if polls == b.polls() {
			called++
		}
	}
	require.Positive(t, called, "it found each of them by itself") // one or the other it may, on a busy machine
}

// Awake, nobody is asked to call, and what is committed arrives. When the noise stops, the leader sleeps again.
func TestWritersDoNotNotifyAnAwakeLeader(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.listen()
	b.lead()
	r := b.read()
	b.reach("the leader sleeps", b.asleep)
	writer := b.db.Conn(t)
	hush := b.awaken()
	last := ""
	require.Zero(t, b.heardAwake(writer, func(try int) {
		for i := range 3 {
			last = fmt.Sprintf("awake %d/%d", try, i)
			b.write(writer, last)
		}
	}))
	r.gets(last)
	hush()
	b.eventually("the leader sleeps", func() bool { return b.text(sleepers) == "1" && len(b.asleep) > 0 })
	require.Equal(t, 1, b.heardAsleep(writer, func(try int) {
		last = fmt.Sprintf("last %d", try)
		b.write(writer, last)
	}))
	r.gets(last)
}

// C18: a transaction that found the leader awake notifies nobody, even if the leader sleeps when it commits. Until it
// has ended the leader dozes: it polls.
func TestTransactionOlderThanTheSleepIsFoundByTheDoze(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.listener = &outbox.Listener{Logger: b.log, Metrics: b.metrics}
	b.lead() // nobody can hear the writers: it stays awake
	r := b.read()
	tx := b.begin()
	b.in(tx, `INSERT INTO apps (id) VALUES ('old')`)
	b.listener.URL, b.listener.Name = b.url, "bed"
	b.background(b.listener.Run)
	b.reach("the leader takes the sleep lock", b.dozing)
	require.Equal(t, "1", b.text(sleepers))

	polls := b.polls()
	b.eventually("the leader polls", func() bool { return b.polls() >= polls+5 })
	require.Empty(t, b.asleep, "the transaction is open: it must not sleep")
	// Others notify already, and are not held up.
	writer := b.db.Conn(t)
	require.Equal(t, 1, b.heard(writer, func() { b.write(writer, "new") }))
	r.gets("new")
	require.Empty(t, b.asleep)

	require.Zero(t, b.heard(tx.Conn(), func() { b.commit(tx) }), "it found the leader awake")
	r.gets("old")
	b.reach("the leader sleeps", b.asleep)
}

// C71: a transaction that has woken the leader and stays open keeps it from nothing.
func TestOpenTransactionThatWokeTheLeaderDoesNotKeepItAsleep(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.listen()
	b.lead()
	r := b.read()
	b.reach("the leader sleeps", b.asleep)
	tx := b.begin()
	b.in(tx, `INSERT INTO apps (id) VALUES ('open')`)
	hush := b.awaken()
	writer, last := b.db.Conn(t), ""
	require.Zero(t, b.heardAwake(writer, func(try int) {
		last = fmt.Sprintf("later %d", try)
		b.write(writer, last)
	}))
	r.gets(last)
	hush()
	b.reach("the leader dozes", b.dozing)
	require.NotContains(t, r.got(), "open")
	require.Equal(t, 1, b.heard(tx.Conn(), func() { b.commit(tx) }), "the call that it queued")
	r.gets("open")
	b.reach("the leader sleeps", b.asleep)
}

// C14: with notify off a transaction can be prepared, delays nobody, and arrives when it is committed.
func TestPreparedTransactionArrivesWhenItIsCommitted(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.exec(`SELECT reconciler.set_notify(false)`)
	b.listen(func(l *outbox.Listener) { l.Off = true })
	b.lead()
	r := b.read()
	name := b.db.Name
	tx := b.begin()
	b.in(tx, `INSERT INTO apps (id) VALUES ('prepared')`)
	b.in(tx, fmt.Sprintf(`PREPARE TRANSACTION '%s'`, name))
	b.change("other")
	r.gets("other")
	require.NotContains(t, r.got(), "prepared")
	b.exec(fmt.Sprintf(`COMMIT PREPARED '%s'`, name))
	r.gets("prepared")
}

// C14: told that writers do not notify, a leader that could hear them polls; and sleeps again when they do.
func TestLeaderPollsWhileWritersDoNotNotify(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.listen()
	b.listens()
	b.lead()
	b.reach("the leader sleeps", b.asleep)
	b.exec(`SELECT reconciler.set_notify(false)`)
	polls := b.polls()
	b.eventually("the leader polls", func() bool { return b.polls() >= polls+50 })
	r := b.read()
	b.change("1")
	r.gets("1")
	b.exec(`SELECT reconciler.set_notify(true)`)
	b.reach("the leader sleeps again", b.asleep)
}

// C16, C17, I2: commits in the opposite order of their numbers both arrive; one that stays open delays nobody.
func TestOrderOfCommitsDoesNotMatter(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.listen()
	b.lead()
	r := b.read()
	open, first, second := b.begin(), b.begin(), b.begin()
	b.in(open, `INSERT INTO apps (id) VALUES ('open')`)
	b.in(first, `INSERT INTO apps (id) VALUES ('first')`)
	b.in(second, `INSERT INTO apps (id) VALUES ('second')`)
	b.commit(second)
	r.gets("second")
	b.commit(first)
	r.gets("first")
	b.change("third")
	r.gets("third")
	b.commit(open)
	r.gets("open")
	require.Equal(t, []string{"second", "first", "third", "open"}, r.got())
}

// C19: rows of many savepoints are rows of one transaction; those that were rolled back never were.
func TestSavepointsBelongToTheirTransaction(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.listen()
	b.lead()
	r := b.read()
	tx := b.begin()
	var want []string
	for i := range 150 {
		inner, err := tx.Begin(t.Context())
		require.NoError(t, err)
		b.in(inner, `INSERT INTO apps (id) VALUES ($1)`, fmt.Sprint(i))
		if i%3 == 0 {
			require.NoError(t, inner.Rollback(t.Context()))
			continue
		}
		b.commit(inner)
		want = append(want, fmt.Sprint(i))
	}
	b.change("meanwhile")
	r.gets("meanwhile")
	b.commit(tx)
	r.gets("149")
	require.Equal(t, append([]string{"meanwhile"}, want...), r.got())
}

// A process that froze while it held the sleep lock loses its session, and with it the lock: writers must not call
// somebody who does not listen.
func TestFrozenLeaderLosesTheSleepLock(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	line := pgtest.NewLine(t, b.url)
	line.Startup = func(m *pgproto3.StartupMessage) {
		if m.Parameters["application_name"] == "bed leader" {
			require.Equal(t, "15000ms", m.Parameters["idle_session_timeout"])
			m.Parameters["idle_session_timeout"] = "1500ms"
		}
	}
	b.listen()
	b.url = line.URL
	b.lead(func(l *Ticker) { l.testPatience = time.Hour })
	b.reach("the leader sleeps", b.asleep)
	line.Freeze("leader")
	b.eventually("the lock is free", func() bool { return b.text(sleepers) == "0" })
	require.Less(t, fallbackPoll, database.SessionTimeout/2, "a leader that is alive says something often enough")
}

// A connection that is half open (nothing arrives, nothing is refused) is given up after a while.
func TestLeaderGivesUpAConnectionThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	line := pgtest.NewLine(t, b.url)
	b.listen()
	b.url = line.URL
	leader := b.ticker()
	leader.testPatience = 3 * time.Second
	ready, ended := make(chan struct{}), make(chan error, 1)
	b.background(func(ctx context.Context) error {
		err := leader.Run(ctx, 1, ready)
		ended <- err
		return err
	})
	b.reach("leadership", ready)
	b.reach("the leader sleeps", b.asleep)
	line.Freeze("leader")
	b.change("a")
	select {
	case err := <-ended:
		require.ErrorIs(t, err, errSilent)
	case <-time.After(within):
		require.FailNow(t, "the leader waits for an answer that never comes")
	}
}

// The connection of the leader is killed: its term ends with an error, and the next one finds what was committed.
func TestLeaderWhoseConnectionIsKilledBeginsAgain(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.listen()
	leader, ready, ended := b.ticker(), make(chan struct{}), make(chan error, 1)
	b.background(func(ctx context.Context) error {
		err := leader.Run(ctx, 1, ready)
		ended <- err
		return err
	})
	b.reach("leadership", ready)
	r := b.read()
	b.reach("the leader sleeps", b.asleep)
	b.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'bed leader'`)
	b.change("a")
	select {
	case err := <-ended:
		require.True(t, database.IsUnavailable(err), "%v", err)
	case <-time.After(within):
		require.FailNow(t, "the leader did not notice")
	}
	b.eventually("its session is gone", func() bool { return b.text(sleepers) == "0" }) // it says so first, and lets go then
	b.lead()
	r.gets("a")
}

// I10: who is no longer the leader makes no revision, whatever he believes.
func TestDeposedLeaderMakesNoRevision(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.listen()
	b.lead()
	b.reach("the leader sleeps", b.asleep)
	ticks := b.series("ticks_total", "")
	revision := b.text(`SELECT max(revision)::text FROM reconciler.ticks`)
	b.exec(`UPDATE reconciler.leases SET term = 2`)
	before := b.calls()
	b.change("a")
	b.eventually("the old leader is called", func() bool { return b.calls() > before })
	// Once it is called again it has done with the call before.
	before = b.calls()
	b.change("b")
	b.eventually("the old leader is called again", func() bool { return b.calls() > before })
	require.InDelta(t, ticks, b.series("ticks_total", ""), 0)
	require.Equal(t, revision, b.text(`SELECT max(revision)::text FROM reconciler.ticks`))
}

// Other processes are told of each tick.
func TestPeersAreToldOfTicks(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.listen()
	b.listens()
	conn := b.db.Conn(t)
	_, err := conn.Exec(t.Context(), "LISTEN reconciler_tick")
	require.NoError(t, err)
	b.lead(func(l *Ticker) { l.Peers = func() bool { return true } })
	b.change("a")
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	_, err = conn.WaitForNotification(ctx)
	require.NoError(t, err)
}

// A loop whose context has ended returns at once.
func TestLoopsReturnWhenTheirContextHasEnded(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	b.listener = &outbox.Listener{URL: b.url, Name: "bed", Logger: b.log, Metrics: b.metrics}
	require.NoError(t, b.listener.Run(ctx))
	require.NoError(t, b.ticker().Follow(ctx))
	require.Error(t, b.ticker().Run(ctx, 1, make(chan struct{})))
	off := &outbox.Listener{Off: true, Logger: b.log, Metrics: b.metrics}
	require.NoError(t, off.Run(ctx))
}
