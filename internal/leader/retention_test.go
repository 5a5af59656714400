package leader

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/outbox"
	"github.com/pgreconciler/reconciler/internal/store"
)

// retain does what the steward does every half minute, with limits of the test's.
func (b *bed) retain(maxAge time.Duration, maxRows int64) (done []string) {
	b.t.Helper()
	for {
		what, err := store.New(b.db.Pool).OutboxRetain(b.t.Context(), store.OutboxRetainParams{MaxAge: maxAge, MaxRows: maxRows, RotateAfter: 0})
		require.NoError(b.t, err)
		if what == "" {
			return done
		}
		done = append(done, what)
		require.Less(b.t, len(done), 20, "it does not come to an end")
	}
}

func (b *bed) rows() string {
	b.t.Helper()
	return b.text(`SELECT count(*)::text FROM reconciler.outbox`)
}

// consumer makes a target that stands at a tick.
func (b *bed) consumer(name string, at outbox.Tick) {
	b.t.Helper()
	b.exec(`INSERT INTO reconciler.targets (name) VALUES ($1) ON CONFLICT DO NOTHING`, name)
	b.exec(`SELECT reconciler.write_cursor(id, $2, $3::text::pg_snapshot) FROM reconciler.targets WHERE name = $1`, name, at.Revision, at.Snapshot)
}

// age makes every tick older.
func (b *bed) age(by string) {
	b.t.Helper()
	b.exec(`UPDATE reconciler.ticks SET at = at - $1::text::interval`, by)
}

const day = 24 * time.Hour

// Rows that everybody has read go, part by part; the parts take turns.
func TestPartsOfTheOutboxTakeTurns(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.consumer("eu", b.latest())
	for turn := range 9 {
		b.change("a")
		tick := b.tick()
		require.Equal(t, []string{fmt.Sprintf("moved on to outbox_%d", (turn+1)%4)}, b.retain(day, 1_000_000), "the part in use is never emptied")
		b.consumer("eu", tick)
		require.Equal(t, []string{fmt.Sprintf("emptied reconciler.outbox_%d: everybody has read it", turn%4)}, b.retain(day, 1_000_000))
		require.Equal(t, "0", b.rows())
	}
}

// The server's clock was 30 days ahead for a while: parts go on taking turns.
func TestRetentionDoesNotWaitForAClockThatWasAhead(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.change("a")
	tick := b.tick()
	b.consumer("eu", tick)
	retain := func() string {
		what, err := store.New(b.db.Pool).OutboxRetain(t.Context(), store.OutboxRetainParams{MaxAge: day, MaxRows: 1_000_000, RotateAfter: time.Hour})
		require.NoError(t, err)
		return what
	}
	b.exec(`UPDATE reconciler.installation SET rotated_at = clock_timestamp() - interval '59 minutes'`)
	require.Empty(t, retain())
	b.exec(`UPDATE reconciler.installation SET rotated_at = clock_timestamp() + interval '30 days'`)
	require.Equal(t, "moved on to outbox_1", retain())
	require.Equal(t, "emptied reconciler.outbox_0: everybody has read it", retain())
}

// C24: while a consumer is away its rows stay; back within retention it reads exactly what it had not read.
func TestConsumerWithinRetentionCatchesUp(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	away := b.latest()
	b.consumer("away", away)
	var want []string
	var latest outbox.Tick
	for i := range 12 {
		open := b.begin()
		b.in(open, `INSERT INTO apps (id) VALUES ($1)`, fmt.Sprintf("late %d", i))
		b.change(fmt.Sprint(i))
		latest = b.tick()
		b.consumer("here", latest)
		b.retain(day, 1_000_000)
		b.commit(open)
		want = append(want, fmt.Sprint(i), fmt.Sprintf("late %d", i))
	}
	latest = b.tick()
	b.consumer("here", latest)
	b.retain(day, 1_000_000)
	b.unprimed()
	page, err := b.feed.Read(t.Context(), away, latest, outbox.Position{})
	require.NoError(t, err)
	got := keys(page)
	slices.Sort(got)
	slices.Sort(want)
	require.Equal(t, want, got)

	b.consumer("away", latest)
	b.retain(day, 1_000_000)
	b.retain(day, 1_000_000)
	require.Equal(t, "0", b.rows())
}

// Changes of an apply that somebody holds stay until they are its operations and tasks, though every consumer has read them. Where the
// outbox must not grow any more they go, and the apply fails and says so.
func TestRetentionKeepsWhatAppliesAreToBeOpenedFrom(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	released := func() {
		b.exec(`BEGIN; SELECT reconciler.begin_apply('of an app'); INSERT INTO apps VALUES (gen_random_uuid(), 'eu'); COMMIT`)
		b.consumer("eu", b.tick())
	}
	open := func(id int) {
		require.Equal(t, "true", b.text(`SELECT reconciler.open_apply($1, 1, $2::int, 1, 1000)::text`, instance, id))
	}
	b.exec(`INSERT INTO reconciler.targets (name) VALUES ('eu')`)
	released()
	require.Equal(t, []string{"moved on to outbox_1"}, b.retain(day, 1_000_000))
	require.Empty(t, b.retain(day, 1_000_000))
	open(1)
	require.Equal(t, []string{"emptied reconciler.outbox_0: everybody has read it"}, b.retain(day, 1_000_000))
	require.Equal(t, "1", b.text(`SELECT count(*)::text FROM reconciler.tasks`))

	released()
	require.Equal(t, []string{"moved on to outbox_2"}, b.retain(day, 1_000_000))
	require.Equal(t, []string{"emptied reconciler.outbox_1: the outbox was longer than 0 rows"}, b.retain(day, 0))
	open(2)
	require.Equal(t, "failed: it could not be opened, and its changes are applied as if there was none: the outbox was emptied, as it had grown too long or too old, before its changes were read",
		b.text(`SELECT state || ': ' || error_message FROM reconciler.applies WHERE id = 2`))
}

// Whoever nobody knew of is told when rows that he has not read are gone; whoever has read them reads on, wherever he stands.
func TestF64_RetentionTellsUnknownConsumersWhatIsGone(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	var ticks []outbox.Tick
	for i := range 8 {
		b.change(fmt.Sprint(i))
		ticks = append(ticks, b.tick())
	}
	b.consumer("eu", ticks[0])
	require.Equal(t, []string{"moved on to outbox_1"}, b.retain(day, 1_000_000))
	b.change("later")
	latest := b.tick()
	b.consumer("eu", ticks[len(ticks)-1])
	require.Equal(t, []string{"emptied reconciler.outbox_0: everybody has read it"}, b.retain(day, 1_000_000)[:1])
	b.unprimed()
	for i, tick := range ticks {
		page, err := b.feed.Read(t.Context(), tick, latest, outbox.Position{})
		if i < len(ticks)-1 {
			require.ErrorIs(t, err, outbox.ErrBelowFloor, "revision %d", tick.Revision)
			continue
		}
		require.NoError(t, err, "revision %d has read what is gone", tick.Revision)
		require.Equal(t, []string{"later"}, keys(page))
	}
	require.Equal(t, "false", b.text(`SELECT below_floor::text FROM reconciler.outbox_lag`))
}

// Revisions are forgotten, and the one that a consumer stands at may be among them: it has read what is gone all the same.
func TestF64_ConsumerThatHasReadEverythingIsNotCutOff(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.change("a")
	at := b.tick()
	b.consumer("eu", at)
	require.Equal(t, []string{"moved on to outbox_1"}, b.retain(0, 1_000_000)[:1])
	b.change("b")
	latest := b.tick()
	b.exec(`DELETE FROM reconciler.ticks WHERE revision < $1`, latest.Revision)
	b.retain(day, 1_000_000)
	require.Equal(t, "1", b.rows(), "a is gone")
	require.Equal(t, fmt.Sprint(at.Revision), b.text(`SELECT floor_revision::text FROM reconciler.installation`))
	page, err := b.feed.Read(t.Context(), at, latest, outbox.Position{})
	require.NoError(t, err)
	require.Equal(t, []string{"b"}, keys(page))
}

// C24: a consumer that is away for longer than max_age is cut off and told so; whoever is not that late reads on.
func TestConsumerBeyondMaxAgeIsCutOff(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	old := b.latest()
	b.consumer("old", old)
	b.change("a")
	middle := b.tick()
	b.consumer("late", middle)
	require.Equal(t, []string{"moved on to outbox_1"}, b.retain(day, 1_000_000))
	b.age("23 hours")
	require.Empty(t, b.retain(day, 1_000_000), "it is not that old")
	b.age("2 hours")
	b.change("b")
	latest := b.tick()
	require.Equal(t, []string{"emptied reconciler.outbox_0: its rows were older than 24:00:00", "moved on to outbox_2"}, b.retain(day, 1_000_000))
	require.Equal(t, "2", b.text(`SELECT floor_revision::text FROM reconciler.installation`))
	b.unprimed()
	_, err := b.feed.Read(t.Context(), old, latest, outbox.Position{})
	require.ErrorIs(t, err, outbox.ErrBelowFloor)
	page, err := b.feed.Read(t.Context(), middle, latest, outbox.Position{})
	require.NoError(t, err)
	require.Equal(t, []string{"b"}, keys(page))
}

// I9: the outbox is bounded in rows, whatever a consumer does. Rows are counted, not their numbers: every turn of the
// parts skips a million of those.
func TestConsumerBeyondMaxRowsIsCutOff(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	old := b.latest()
	b.consumer("old", old)
	for i := range 3 {
		b.exec(`INSERT INTO apps (id) SELECT $1 || n FROM generate_series(1, 40) AS n`, fmt.Sprintf("%d/", i))
		b.tick()
		require.Equal(t, []string{fmt.Sprintf("moved on to outbox_%d", i+1)}, b.retain(day, 1000))
	}
	b.change("last")
	latest := b.tick()
	require.Empty(t, b.retain(day, 1000), "a hundred rows, with numbers three millions apart")
	b.unprimed()
	page, err := b.feed.Read(t.Context(), old, latest, outbox.Position{})
	require.NoError(t, err)
	require.Len(t, page.Events, 121)

	require.Equal(t, []string{
		"emptied reconciler.outbox_0: the outbox was longer than 100 rows",
		"emptied reconciler.outbox_1: everybody has read it", // who is cut off holds nothing back any more
		"emptied reconciler.outbox_2: everybody has read it",
		"moved on to outbox_0",
		"emptied reconciler.outbox_3: everybody has read it",
	}, b.retain(day, 100))
	require.Equal(t, "0", b.rows())
	b.unprimed()
	_, err = b.feed.Read(t.Context(), old, latest, outbox.Position{})
	require.ErrorIs(t, err, outbox.ErrBelowFloor)
}

// I1: what no tick has covered is never dropped: nobody could know that it is missing.
func TestRowsWithoutARevisionStay(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	first := b.latest()
	b.consumer("eu", first)
	b.change("a")
	require.Equal(t, []string{"moved on to outbox_1"}, b.retain(0, 0))
	b.age("2 days")
	require.Empty(t, b.retain(0, 0))
	page, err := b.feed.Read(t.Context(), first, b.tick(), outbox.Position{})
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, keys(page))
}

// I8: a transaction that is open in a part is not waited for, does not wait, and loses nothing.
func TestOpenWriterAndRetentionDoNotMeet(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.latest()
	b.change("a")
	open := b.begin()
	b.in(open, `INSERT INTO apps (id) VALUES ('open')`)
	latest := b.tick()
	require.Equal(t, []string{"moved on to outbox_1"}, b.retain(0, 0), "the part of the open transaction is left alone")
	b.in(open, `INSERT INTO apps (id) VALUES ('open too')`)
	b.commit(open)
	to := b.tick()
	page, err := b.feed.Read(t.Context(), latest, to, outbox.Position{})
	require.NoError(t, err)
	require.Equal(t, []string{"open", "open too"}, keys(page))
	require.Contains(t, b.retain(0, 1_000_000), "emptied reconciler.outbox_0: everybody has read it")
}

// A target that no process has in its config holds nothing back.
func TestTargetWithoutACursorHoldsNothingBack(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.latest()
	b.exec(`INSERT INTO reconciler.targets (name) VALUES ('mars')`)
	b.change("a")
	b.tick()
	require.Equal(t, []string{"moved on to outbox_1", "emptied reconciler.outbox_0: everybody has read it"}, b.retain(day, 1_000_000))
}

// Ticks go with the rows; those of the last minutes stay, and always the newest.
func TestOldTicksAreForgotten(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.exec(`DELETE FROM reconciler.ticks`)
	b.exec(`INSERT INTO reconciler.ticks (revision, snapshot, at)
		SELECT i, pg_current_snapshot(), date_trunc('minute', clock_timestamp()) - interval '2 hours' + i * interval '10 seconds' FROM generate_series(1, 720) AS i`)
	forget := func(after, upto int64) {
		done, err := store.New(b.db.Pool).Forget(t.Context(), store.ForgetParams{After: after, Upto: upto, MaxAge: time.Hour, AppliesKept: time.Hour})
		require.NoError(t, err)
		require.Equal(t, store.ForgetRow{Newest: 720, Now: done.Now}, done)
	}
	forget(100, 120)
	require.Equal(t, "100 121 700", b.text(`SELECT concat_ws(' ', max(revision) FILTER (WHERE revision < 110), min(revision) FILTER (WHERE revision > 110), count(*)) FROM reconciler.ticks`))
	forget(-1, math.MaxInt64)
	require.Equal(t, "720", b.text(`SELECT max(revision)::text FROM reconciler.ticks`))
	require.Equal(t, "0", b.text(`SELECT count(*)::text FROM reconciler.ticks WHERE at < clock_timestamp() - interval '1 hour 1 second'`))
	require.Equal(t, "1", b.text(`SELECT max(n)::text FROM (SELECT count(*) AS n FROM reconciler.ticks WHERE at < clock_timestamp() - interval '11 minutes' GROUP BY date_trunc('minute', at)) AS per_minute`))
	require.Equal(t, "6", b.text(`SELECT max(n)::text FROM (SELECT count(*) AS n FROM reconciler.ticks WHERE at > clock_timestamp() - interval '9 minutes' GROUP BY date_trunc('minute', at)) AS per_minute`))
	b.age("10 days")
	forget(-1, math.MaxInt64)
	require.Equal(t, "720", b.text(`SELECT string_agg(revision::text, ' ') FROM reconciler.ticks`))
}

// Times in the future are set to now by a new leader, and when the server's clock was set back.
func TestClockThatIsPutBackIsNoticed(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.exec(`INSERT INTO reconciler.targets (name, lost_at) VALUES ('mars', clock_timestamp() + interval '1 day')`)
	turn := b.steward().forget()
	for _, want := range []string{"true", "false"} { // at the second turn nothing has happened to the clock
		_, err := turn(t.Context())
		require.NoError(t, err)
		require.Equal(t, want, b.text(`SELECT (max(lost_at) < clock_timestamp())::text FROM reconciler.targets`))
		b.exec(`UPDATE reconciler.targets SET lost_at = clock_timestamp() + interval '1 day'`)
	}

	var clock serverClock
	began := time.Now()
	for _, look := range []struct {
		local, server time.Duration // since then
		putBack       bool
	}{
		{0, 0, true}, // by a leader of before
		{30 * time.Second, 30 * time.Second, false},
		{60 * time.Second, time.Hour, false},
		{90 * time.Second, 90 * time.Second, true},
		{120 * time.Second, 119500 * time.Millisecond, false},
		{150 * time.Second, 148 * time.Second, true},
	} {
		require.Equal(t, look.putBack, clock.putBack(began.Add(look.server), began.Add(look.local)), look)
	}
}

// All ticks are looked at first and every hour; between these, those that have grown old since the last look.
func TestOldTicksAreLookedAtOnce(t *testing.T) {
	t.Parallel()
	start := time.Now()
	var seen past
	look := func(minutes float64, newest int64) (after, upto int64) {
		now := start.Add(time.Duration(minutes * float64(time.Minute)))
		after, upto = seen.due(now)
		seen.did(now, upto, newest)
		return after, upto
	}
	type span struct{ after, upto int64 }
	var spans []span
	for minute := range 75 {
		after, upto := look(float64(minute), int64(100*(minute+1)))
		spans = append(spans, span{after, upto})
	}
	all := span{-1, math.MaxInt64}
	require.Equal(t, all, spans[0])
	require.Equal(t, span{0, 0}, spans[10], "the first is not old enough")
	require.Equal(t, []span{{0, 100}, {100, 200}, {200, 300}}, spans[11:14])
	require.Equal(t, all, spans[60])
	require.Equal(t, []span{{4900, 5100}, {5100, 5200}}, spans[61:63])
	require.Len(t, seen.marks, 11)
	require.Equal(t, mark{start.Add(74 * time.Minute), 7500}, seen.marks[10])
}

// I1, I8: parts are emptied and turned as fast as can be while writers write and a consumer reads. Nobody fails, and every
// row is read.
func TestRetentionUnderLoadLosesNothing(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.listen()
	b.lead()
	b.consumer("eu", b.latest())
	r := b.read()
	stop := b.background(func(ctx context.Context) error {
		for ctx.Err() == nil {
			_, err := store.New(b.db.Pool).OutboxRetain(ctx, store.OutboxRetainParams{MaxAge: day, MaxRows: 1_000_000})
			if err != nil && ctx.Err() == nil {
				return err
			}
			read := r.cursor()
			_, err = b.db.Pool.Exec(ctx, `SELECT reconciler.write_cursor(id, $1, $2::text::pg_snapshot) FROM reconciler.targets`, read.Revision, read.Snapshot)
			if err != nil && ctx.Err() == nil {
				return err
			}
		}
		return nil
	})
	// They write until each part has had its turn.
	var wg sync.WaitGroup
	var written atomic.Int64
	failures := make(chan error, 4)
	for w := range cap(failures) {
		conn := b.db.Conn(t)
		wg.Go(func() { failures <- writeRows(t.Context(), conn, w, &written) })
	}
	wg.Wait()
	for range cap(failures) {
		require.NoError(t, <-failures)
	}
	b.change("end")
	r.gets("end")
	require.NoError(t, stop())
	got := r.got()
	slices.Sort(got)
	require.Len(t, slices.Compact(got), int(written.Load())+1, "VIOLATION: rows were lost")
}

// writeRows commits three rows at a time until the parts of the outbox have turned once, and at least 60 times.
func writeRows(ctx context.Context, conn *pgx.Conn, writer int, written *atomic.Int64) error {
	const rows = 3
	for n, turned := 0, false; n < 60 || !turned; n++ {
		batch := &pgx.Batch{}
		for i := range rows {
			batch.Queue(`INSERT INTO apps (id) VALUES ($1)`, fmt.Sprintf("%d/%d/%d", writer, n, i))
		}
		if err := conn.SendBatch(ctx, batch).Close(); err != nil {
			return err
		}
		written.Add(rows)
		if err := conn.QueryRow(ctx, `SELECT (last_value >> 20) > 4 FROM reconciler.outbox_seq`).Scan(&turned); err != nil {
			return err
		}
	}
	return nil
}

// C25: a leader with nothing to do asks the database next to nothing.
func TestIdleLeaderAsksNextToNothing(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.listen()
	b.lead()
	b.reach("the leader sleeps", b.asleep)
	polls, began := b.polls(), time.Now()
	b.eventually("it looks by itself", func() bool { return b.polls() >= polls+2 })
	require.GreaterOrEqual(t, time.Since(began), fallbackPoll)
}
