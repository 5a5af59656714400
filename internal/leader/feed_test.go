package leader

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/outbox"
	"github.com/pgreconciler/reconciler/internal/store"
)

// counting counts the pages that are read, and makes reads wait where a test wants it.
type counting struct {
	outbox.Beginner

	reads  atomic.Int32
	before func(ctx context.Context) error // nil: nothing
}

func (c *counting) SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults {
	reads := slices.ContainsFunc(batch.QueuedQueries, func(q *pgx.QueuedQuery) bool { return strings.Contains(q.SQL, "-- name: OutboxDelta") })
	if reads {
		c.reads.Add(1)
		if c.before != nil {
			if err := c.before(ctx); err != nil {
				return failed{err: err}
			}
		}
	}
	return c.Beginner.SendBatch(ctx, batch)
}

// failed is a batch that was not sent.
type failed struct {
	pgx.BatchResults

	err error
}

func (f failed) Exec() (pgconn.CommandTag, error) { return pgconn.CommandTag{}, f.err }

func (f failed) Close() error { return f.err }

// tick makes a revision by hand.
func (b *bed) tick() outbox.Tick {
	b.t.Helper()
	l := &leader{Ticker: b.ticker(), term: 1, queries: store.New(b.db.Pool)}
	before, _ := b.feed.Latest()
	require.NoError(b.t, l.tick(b.t.Context()))
	latest, _ := b.feed.Latest()
	require.Greater(b.t, latest.Revision, before.Revision, "nothing was new")
	return latest
}

// latest returns the newest tick of the database, which the feed then knows too.
func (b *bed) latest() outbox.Tick {
	b.t.Helper()
	require.NoError(b.t, b.feed.Refresh(b.t.Context()))
	latest, _ := b.feed.Latest()
	return latest
}

// unprimed makes the feed forget pages that came with ticks.
func (b *bed) unprimed() *counting {
	c := &counting{Beginner: b.db.Pool}
	latest, _ := b.feed.Latest()
	b.feed = outbox.NewFeed(c, b.metrics)
	b.feed.Publish(latest)
	return c
}

func keys(page *outbox.Page) []string {
	var keys []string
	for _, e := range page.Events {
		if e.Key != nil {
			keys = append(keys, *e.Key)
		}
	}
	return keys
}

func TestPageIsReadOnceForAllConsumers(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	from := b.latest()
	b.change("a")
	to := b.tick()
	db := b.unprimed()
	arrived := make(chan struct{}, 100)
	release := make(chan struct{})
	db.before = func(context.Context) error { <-release; return nil }
	var wg sync.WaitGroup
	pages := make([]*outbox.Page, 20)
	for i := range pages {
		wg.Go(func() {
			arrived <- struct{}{}
			page, err := b.feed.Read(t.Context(), from, to, outbox.Position{})
			if err == nil {
				pages[i] = page
			}
		})
	}
	for range pages {
		b.reach("a consumer asks", arrived)
	}
	close(release)
	wg.Wait()
	for _, page := range pages {
		require.Same(t, pages[0], page)
	}
	require.Equal(t, []string{"a"}, keys(pages[0]))
	require.EqualValues(t, 1, db.reads.Load())

	_, err := b.feed.Read(t.Context(), from, to, pages[0].Last)
	require.NoError(t, err)
	require.EqualValues(t, 2, db.reads.Load(), "another place is another page")
}

// What came with a tick is the page that a consumer would read, and is not read again.
func TestPageThatCameWithATickIsWhatAReadGives(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	open := b.begin()
	b.in(open, `INSERT INTO apps (id) VALUES ('late 1'), ('late 2')`)
	from := b.latest()
	for round := range 4 {
		b.exec(`INSERT INTO apps (id, region) SELECT $1 || i, 'us' FROM generate_series(1, 5) AS i`, fmt.Sprintf("round %d/", round))
		still := b.begin()
		b.in(still, `INSERT INTO apps (id) VALUES ($1)`, fmt.Sprintf("still %d", round))
		if round == 2 {
			b.commit(open)
		}
		to := b.tick()
		primed, err := b.feed.Read(t.Context(), from, to, outbox.Position{})
		require.NoError(t, err)
		read, err := outbox.NewFeed(b.db.Pool, b.metrics).Read(t.Context(), from, to, outbox.Position{})
		require.NoError(t, err)
		require.Equal(t, read, primed)
		require.Len(t, read.Events, 5+2*map[int]int{2: 1}[round])
		from = to
		require.NoError(t, still.Rollback(t.Context()))
	}
}

// Consumers that were away for some ticks read them as one batch, without those in between.
func TestBatchSpansSeveralTicks(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	first := b.latest()
	open := b.begin()
	b.in(open, `INSERT INTO apps (id) VALUES ('open')`)
	var ticks []outbox.Tick
	for i := range 5 {
		b.change(fmt.Sprint(i))
		if i == 3 {
			b.commit(open)
		}
		ticks = append(ticks, b.tick())
	}
	page, err := b.feed.Read(t.Context(), first, ticks[4], outbox.Position{})
	require.NoError(t, err)
	got := keys(page)
	slices.Sort(got)
	require.Equal(t, []string{"0", "1", "2", "3", "4", "open"}, got)

	page, err = b.feed.Read(t.Context(), ticks[1], ticks[3], outbox.Position{})
	require.NoError(t, err)
	got = keys(page)
	slices.Sort(got)
	require.Equal(t, []string{"2", "3", "open"}, got)
}

// I9, C20: a transaction with more rows than a page has is read in pieces, each row once, in order of its numbers.
func TestLargeTransactionIsReadInPages(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	from := b.latest()
	early, late := b.begin(), b.begin()
	b.in(early, `INSERT INTO apps (id) VALUES ('early')`)
	const rows = 2*outbox.PageRows + 345
	b.exec(fmt.Sprintf(`INSERT INTO apps (id) SELECT 'row ' || i FROM generate_series(1, %d) AS i`, rows))
	b.in(late, `INSERT INTO apps (id) VALUES ('late')`)
	b.commit(late)
	to := b.tick()
	read := func(from, to outbox.Tick) (got []string, sizes []int) {
		for at, more := (outbox.Position{}), true; more; {
			page, err := b.feed.Read(t.Context(), from, to, at)
			require.NoError(t, err)
			require.LessOrEqual(t, len(page.Events), outbox.PageRows)
			got, sizes = append(got, keys(page)...), append(sizes, len(page.Events))
			at, more = page.Last, page.More
		}
		return got, sizes
	}
	got, sizes := read(from, to)
	require.Equal(t, []int{outbox.PageRows, outbox.PageRows, 346}, sizes)
	require.Len(t, got, rows+1)
	for i := range rows {
		require.Equal(t, fmt.Sprintf("row %d", i+1), got[i])
	}
	require.Equal(t, "late", got[rows])

	b.commit(early)
	got, _ = read(to, b.tick())
	require.Equal(t, []string{"early"}, got)
}

func TestPageKnowsWhichTargetsItConcerns(t *testing.T) {
	t.Parallel()
	page := outbox.NewPage(outbox.Position{})
	eu, us := "eu", "us"
	key := func(k string) *string { return &k }
	for i, e := range []outbox.Event{
		{ResourceID: 1, Target: &eu, Key: key("a")}, {ResourceID: 1, Target: &us, Key: key("b")}, {ResourceID: 1, Key: key("c")}, {ResourceID: 2},
		{ResourceID: 3, DependencyID: new(int32), Image: []byte(`{}`)},
	} {
		page.Add(int64(i+1), 7, e)
	}
	page.Add(0, 0, outbox.Event{})
	concerns := func(target string) (got []string) {
		page.For(target, func(e outbox.Event) {
			switch {
			case e.Whole():
				got = append(got, "whole")
			case e.Key == nil:
				got = append(got, "base table")
			default:
				got = append(got, *e.Key)
			}
		})
		return got
	}
	require.Equal(t, []string{"a", "c", "whole", "base table"}, concerns("eu"))
	require.Equal(t, []string{"b", "c", "whole", "base table"}, concerns("us"))
	require.Equal(t, []string{"c", "whole", "base table"}, concerns("nowhere"))
	require.Len(t, page.Names(), 2)
	require.Equal(t, outbox.Position{Xid: 7, Seq: 5}, page.Last)
	require.False(t, page.More)
}

// C24: whoever stands below the floor is told so, also when there is nothing to read.
func TestConsumerBelowTheFloorIsTold(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	old := b.latest()
	b.change("a")
	middle := b.tick()
	b.change("b")
	to := b.tick()
	b.unprimed()
	b.exec(`UPDATE reconciler.installation SET floor_revision = $1`, middle.Revision)
	b.exec(`TRUNCATE reconciler.outbox`)
	_, err := b.feed.Read(t.Context(), old, to, outbox.Position{})
	require.ErrorIs(t, err, outbox.ErrBelowFloor)
	page, err := b.feed.Read(t.Context(), middle, to, outbox.Position{})
	require.NoError(t, err)
	require.Empty(t, page.Events)
	_, err = b.feed.Read(t.Context(), old, to, outbox.Position{})
	require.ErrorIs(t, err, outbox.ErrBelowFloor, "an error is not kept as a page")
}

// A read that ends because its consumer stops is no error for those that waited for the same page.
func TestReadThatIsCutShortIsMadeByAnother(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	from := b.latest()
	b.change("a")
	to := b.tick()
	db := b.unprimed()
	began := make(chan struct{}, 2)
	db.before = func(ctx context.Context) error {
		if db.reads.Load() > 1 {
			return nil
		}
		began <- struct{}{}
		<-ctx.Done()
		return context.Cause(ctx)
	}
	why := errors.New("why")
	ctx, cancel := context.WithCancelCause(t.Context())
	first, second := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := b.feed.Read(ctx, from, to, outbox.Position{})
		first <- err
	}()
	b.reach("the first read begins", began)
	go func() {
		page, err := b.feed.Read(t.Context(), from, to, outbox.Position{})
		if err == nil && len(page.Events) != 1 {
			err = errors.New("not the page")
		}
		second <- err
	}()
	third, cancelThird := context.WithCancelCause(t.Context())
	cancelThird(why)
	_, err := b.feed.Read(third, from, to, outbox.Position{})
	require.ErrorIs(t, err, why, "waiting ends with its own context")
	cancel(why)
	require.ErrorIs(t, <-first, why)
	require.NoError(t, <-second)
}

// C24: a page belongs to a snapshot and not to a revision alone. A cursor that was raised to the floor has an older one; and
// a page that was read with the tick is the next one only for those who stand at the newest tick known here.
func TestFeedTellsPlacesOfOneRevisionApart(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	feed := outbox.NewFeed(b.db.Pool, b.metrics)
	const snapshot = `SELECT pg_current_snapshot()::text`
	old := b.text(snapshot)
	b.change("a")
	floor := outbox.Tick{Revision: 7, Snapshot: b.text(snapshot)}
	feed.Publish(floor)
	next := outbox.Tick{Revision: 8, Snapshot: floor.Snapshot}
	primed := outbox.NewPage(outbox.Position{})
	feed.Prime(9, outbox.NewPage(outbox.Position{})) // there is a tick that is not known here
	feed.Prime(8, primed)
	page, err := feed.Read(t.Context(), floor, next, outbox.Position{})
	require.NoError(t, err)
	require.Same(t, primed, page)
	page, err = feed.Read(t.Context(), outbox.Tick{Revision: 7, Snapshot: old}, next, outbox.Position{})
	require.NoError(t, err)
	require.Len(t, page.Events, 1, "what was written between the snapshots")
}

func TestFeedPublishesNewerTicksOnly(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	feed := outbox.NewFeed(b.db.Pool, b.metrics)
	latest, wake := feed.Latest()
	require.Zero(t, latest.Revision)
	feed.Publish(outbox.Tick{Revision: 5})
	b.reach("consumers are woken", wake)
	_, wake = feed.Latest()
	feed.Publish(outbox.Tick{Revision: 5})
	feed.Publish(outbox.Tick{Revision: 4})
	require.Empty(t, wake)
	latest, _ = feed.Latest()
	require.EqualValues(t, 5, latest.Revision)
	require.InDelta(t, 5, b.series("revision", ""), 0)
}

// What is longer than a page is read to its end.
func TestF17_BatchOfLongTextsIsReadToItsEnd(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.listen()
	b.lead()
	r := b.read()
	b.exec(`INSERT INTO apps SELECT lpad(g::text, 1900, 'k') FROM generate_series(1, 3000) AS g`)
	b.eventually("all arrive", func() bool { return len(r.got()) == 3000 })
}

// I12: a database that knows less than this process lost what was committed. Everybody starts over, once, above all
// revisions that somebody has seen: no number stands for two batches.
func TestFeedNoticesThatItsDatabaseKnowsLess(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	from := b.latest()
	b.change("lost")
	lost := b.tick()
	page, err := b.feed.Read(t.Context(), from, lost, outbox.Position{})
	require.NoError(t, err)
	require.Equal(t, []string{"lost"}, keys(page))
	other := outbox.NewFeed(b.db.Pool, b.metrics)
	require.NoError(t, other.Refresh(t.Context()))
	// Whatever a person may have started over before: revisions may have gone on faster than the time.
	late := outbox.Tick{Revision: time.Now().Add(time.Hour).Unix()}
	b.feed.Publish(late)

	b.exec(`DELETE FROM reconciler.ticks WHERE revision > 1`)
	b.exec(`TRUNCATE reconciler.outbox`)
	_, wake := b.feed.Latest()
	require.ErrorIs(t, b.feed.Refresh(t.Context()), outbox.ErrRestored)
	latest, _ := b.feed.Latest()
	require.Equal(t, late.Revision+1000, latest.Revision)
	b.reach("consumers are woken", wake)
	require.NoError(t, b.feed.Refresh(t.Context()))
	require.NoError(t, other.Refresh(t.Context()))
	have, _ := other.Latest()
	require.Equal(t, latest.Revision, have.Revision)
	require.Equal(t, "1 epoch, 1 tick", b.text(`SELECT format('%s epoch, %s tick', epoch, (SELECT count(*) FROM reconciler.ticks)) FROM reconciler.installation`))

	b.exec(`UPDATE reconciler.leases SET owner = $1, term = 1, lease_ttl = '1 hour'`, instance)
	b.change("other")
	again := b.tick()
	require.Equal(t, latest.Revision+1, again.Revision)
	page, err = b.feed.Read(t.Context(), latest, again, outbox.Position{})
	require.NoError(t, err)
	require.Equal(t, []string{"other"}, keys(page))
}

// overtaken is a database whose answer comes after something else has happened.
type overtaken struct {
	outbox.Beginner

	meanwhile func()
}

func (o *overtaken) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	row := o.Beginner.QueryRow(ctx, sql, args...)
	o.meanwhile()
	return row
}

// A refresh that was overtaken by a tick of this process is no restore.
func TestRefreshThatIsOvertakenChangesNothing(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.latest()
	b.change("a")
	to := b.tick()
	db := &overtaken{Beginner: b.db.Pool}
	feed := outbox.NewFeed(db, b.metrics)
	feed.Publish(to)
	db.meanwhile = func() { feed.Publish(outbox.Tick{Revision: to.Revision + 1}) }
	require.NoError(t, feed.Refresh(t.Context()))
	latest, _ := feed.Latest()
	require.Equal(t, to.Revision+1, latest.Revision)
}
