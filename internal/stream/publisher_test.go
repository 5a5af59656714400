package stream_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/drivertest"
	"github.com/pgreconciler/reconciler/internal/pgtest"
	"github.com/pgreconciler/reconciler/internal/stream"
)

// bed is a database with an owned stream target.
type bed struct {
	t         *testing.T
	db        *pgtest.DB
	pool      *pgxpool.Pool // of the publisher, as the product has it
	publisher *stream.Publisher
	target    int32
	instance  string
	revision  int64
}

const (
	target   = "eu"
	deadline = pgtest.Patience
	tick     = 10 * time.Millisecond
)

func setup(t *testing.T) *bed {
	t.Helper()
	b := &bed{t: t, db: pgtest.New(t), instance: uuid.NewString()}
	config, err := pgxpool.ParseConfig(b.db.URL)
	require.NoError(t, err)
	config.ConnConfig.RuntimeParams["synchronous_commit"] = "off"
	b.pool, err = pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(b.pool.Close)
	b.query(`INSERT INTO reconciler.targets (name, configured, driver, owner, term) VALUES ('eu', true, 'stream', $1, 1) RETURNING id`, &b.target, b.instance)
	d, err := stream.Kind().Open(target, driver.Options{}, driver.Env{})
	require.NoError(t, err)
	b.publisher = d.(*stream.Publisher)
	b.own(1)
	return b
}

// own takes the target under a term.
func (b *bed) own(term int64) {
	b.t.Helper()
	b.db.Exec(b.t, `UPDATE reconciler.targets SET term = $1, owner = $2 WHERE id = $3`, term, b.instance, b.target)
	require.NoError(b.t, b.publisher.Own(b.t.Context(), stream.Owner{Pool: b.pool, TargetID: b.target, Instance: b.instance, Term: term}))
}

func (b *bed) query(sql string, into any, args ...any) {
	b.t.Helper()
	require.NoError(b.t, b.db.Pool.QueryRow(b.t.Context(), sql, args...).Scan(into))
}

func (b *bed) text(sql string, args ...any) (text string) {
	b.t.Helper()
	b.query(sql, &text, args...)
	return text
}

func (b *bed) ref(key string) driver.Ref {
	b.revision++
	return driver.Ref{Target: target, Resource: "app", Key: key, Revision: b.revision, Term: 1}
}

func (b *bed) object(key, spec string) driver.Object {
	return driver.Object{Ref: b.ref(key), Spec: []byte(spec), Hash: driver.HashSpec([]byte(spec))}
}

func (b *bed) apply(key, spec string) {
	b.t.Helper()
	require.Equal(b.t, driver.Done(), b.publisher.Apply(b.t.Context(), b.object(key, spec)))
}

func (b *bed) remove(key string) {
	b.t.Helper()
	require.Equal(b.t, driver.Done(), b.publisher.Delete(b.t.Context(), b.ref(key)))
}

// published describes what is published in the order of versions, from a version on.
func (b *bed) published() string {
	b.t.Helper()
	return b.text(`SELECT coalesce(string_agg(key || '=' || coalesce(spec::text, '-'), ' ' ORDER BY version), '') FROM reconciler.published WHERE target_id = $1`, b.target)
}

// termed owns the target anew when a call has another term, as the suite makes them.
type termed struct {
	*stream.Publisher

	b    *bed
	mu   sync.Mutex
	term int64
}

func (d *termed) follow(term int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if term != d.term {
		d.b.own(term)
		d.term = term
	}
}

func (d *termed) Apply(ctx context.Context, obj driver.Object) driver.Outcome {
	d.follow(obj.Term)
	return d.Publisher.Apply(ctx, obj)
}

func (d *termed) Delete(ctx context.Context, ref driver.Ref) driver.Outcome {
	d.follow(ref.Term)
	return d.Publisher.Delete(ctx, ref)
}

func TestConformance(t *testing.T) {
	t.Parallel()
	drivertest.Exercise(t, func(t *testing.T) drivertest.Fixture {
		b := setup(t)
		return drivertest.Fixture{
			Driver: &termed{Publisher: b.publisher, b: b, term: 1}, Target: target,
			Read: func(t *testing.T, resource, key string) (spec string, ok bool) {
				if driver.Storable(driver.Ref{Resource: resource, Key: key}) != nil {
					return "", false
				}
				err := b.db.Pool.QueryRow(t.Context(), `SELECT spec::text FROM reconciler.published WHERE resource = $1 AND key = $2 AND spec IS NOT NULL`, resource, key).Scan(&spec)
				if errors.Is(err, pgx.ErrNoRows) {
					return "", false
				}
				require.NoError(t, err)
				return spec, true
			},
			Count: func(t *testing.T) (n int) {
				require.NoError(t, b.db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM reconciler.published WHERE spec IS NOT NULL`).Scan(&n))
				return n
			},
			Refuses: func(name string) bool { return driver.Storable(driver.Ref{Key: name}) != nil },
		}
	})
}

func TestOptions(t *testing.T) {
	t.Parallel()
	_, err := stream.Kind().Open(target, driver.Options{"history": "1s", "dir": "/x"}, driver.Env{})
	require.Equal(t, driver.Problems{
		{Path: "options.history", Text: "must be between 1m and 8784h"},
		{Path: "options.dir", Text: "unknown option; known here: ack, history"},
	}, err)
}

func TestEachChangeHasANewVersion(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.apply("a", `{"n": 1}`)
	b.apply("b", `{"n": 1}`)
	require.Equal(t, `a={"n": 1} b={"n": 1}`, b.published())
	b.apply("a", `{"n": 2}`)
	require.Equal(t, `b={"n": 1} a={"n": 2}`, b.published())
	b.remove("b")
	require.Equal(t, `a={"n": 2} b=-`, b.published(), "a delete leaves a tombstone")
	b.apply("b", `{"n": 3}`)
	b.remove("never seen")
	require.Equal(t, `a={"n": 2} b={"n": 3}`, b.published(), "what was never published has no tombstone")
}

func TestWhatIsPublishedAlreadyKeepsItsVersion(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.apply("a", `{}`)
	b.apply("b", `{}`)
	b.remove("c")
	b.remove("b")
	before := b.text(`SELECT string_agg(key || version, ' ' ORDER BY key) FROM reconciler.published`)
	b.apply("a", `{}`)
	b.remove("b")
	require.Equal(t, before, b.text(`SELECT string_agg(key || version, ' ' ORDER BY key) FROM reconciler.published`))
}

// S7: what a deposed owner publishes is refused, whatever it believes.
func TestDeposedOwnerPublishesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.apply("a", `{"n": 1}`)
	b.db.Exec(t, `UPDATE reconciler.targets SET term = term + 1, owner = gen_random_uuid()`)
	for _, outcome := range append(b.publisher.ApplyBatch(t.Context(), []driver.Object{b.object("a", `{"n": 2}`), b.object("b", `{}`)}), b.publisher.Delete(t.Context(), b.ref("a"))) {
		require.Equal(t, driver.VerdictBackoff, outcome.Verdict)
		require.ErrorContains(t, outcome.Err, "taken over by another process")
	}
	require.ErrorContains(t, b.publisher.Complete(t.Context()), "taken over by another process")
	require.Equal(t, `a={"n": 1}`, b.published())
	require.Equal(t, "false", b.text(`SELECT complete::text FROM reconciler.streams`))
}

// Another process of another config has removed the stream: what was published is gone, so nothing may count as published.
func TestNothingIsPublishedInAStreamThatIsGone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.apply("a", `{}`)
	b.db.Exec(t, `DELETE FROM reconciler.streams`)
	outcome := b.publisher.Apply(t.Context(), b.object("b", `{}`))
	require.Equal(t, driver.VerdictBackoff, outcome.Verdict)
	require.ErrorContains(t, outcome.Err, "a running process has another driver for its target")
	require.Empty(t, b.published())
}

// A call that a former ownership of this process has left behind is not published under the new term.
func TestCallOfAnOldTermPublishesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	old := b.object("a", `{"old": true}`)
	b.own(2)
	outcome := b.publisher.Apply(t.Context(), old)
	require.Equal(t, driver.VerdictBackoff, outcome.Verdict)
	require.EqualError(t, outcome.Err, "this process does not own the stream, or not under this term")
	require.Empty(t, b.published())
}

// waitsForALock returns when a transaction of the publisher waits for the target's row.
func (b *bed) waitsForALock() {
	b.t.Helper()
	require.Eventually(b.t, func() bool {
		return b.text(`SELECT count(*)::text FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) == "1"
	}, deadline, tick)
}

// Calls that come while a transaction is under way share the next one.
func TestWaitingCallsShareATransaction(t *testing.T) {
	t.Parallel()
	const calls = 50
	b := setup(t)
	b.apply("gone", `{}`)
	person, err := b.db.Pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = person.Rollback(context.Background()) }() // also when the test fails: the pool waits for it
	_, err = person.Exec(t.Context(), `SELECT FROM reconciler.targets FOR UPDATE`)
	require.NoError(t, err)
	outcomes := make(chan driver.Outcome, calls+1)
	for i := range calls {
		obj := b.object(fmt.Sprint(i), `{}`)
		go func() { outcomes <- b.publisher.Apply(t.Context(), obj) }()
		if i == 0 {
			b.waitsForALock() // with this call alone
		}
	}
	gone := b.ref("gone")
	go func() { outcomes <- b.publisher.Delete(t.Context(), gone) }()
	require.Eventually(t, func() bool { return b.publisher.Waiting() == calls }, deadline, tick)
	require.NoError(t, person.Rollback(t.Context()))
	for range calls + 1 {
		require.Equal(t, driver.Done(), <-outcomes)
	}
	require.Equal(t, "2", b.text(`SELECT count(DISTINCT xmin::text)::text FROM reconciler.published`), "one transaction that waited for the lock, one for all others")
}

// A call that has returned is not published later: the next one for the object may be under way.
func TestCallThatWasGivenUpIsNotPublished(t *testing.T) {
	t.Parallel()
	b := setup(t)
	person, err := b.db.Pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = person.Rollback(context.Background()) }() // also when the test fails: the pool waits for it
	_, err = person.Exec(t.Context(), `SELECT FROM reconciler.targets FOR UPDATE`)
	require.NoError(t, err)
	first := make(chan driver.Outcome, 1)
	obj := b.object("first", `{}`)
	go func() { first <- b.publisher.Apply(t.Context(), obj) }()
	b.waitsForALock()
	ctx, cancel := context.WithCancelCause(t.Context())
	second := make(chan driver.Outcome, 1)
	obj2 := b.object("second", `{}`)
	go func() { second <- b.publisher.Apply(ctx, obj2) }()
	require.Eventually(t, func() bool { return b.publisher.Waiting() == 1 }, deadline, tick)
	given := errors.New("given up")
	cancel(given)
	require.Equal(t, driver.Backoff(given), <-second)
	require.NoError(t, person.Rollback(t.Context()))
	require.Equal(t, driver.Done(), <-first)
	b.apply("third", `{}`)
	require.Equal(t, `first={} third={}`, b.published())
}

// S7: the pool does not flush, and a crash must not give a version out twice.
func TestPublishedTransactionsAreFlushed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	require.Equal(t, "off", func() (setting string) {
		require.NoError(t, b.pool.QueryRow(t.Context(), `SHOW synchronous_commit`).Scan(&setting))
		return setting
	}())
	tx, err := b.pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { require.NoError(t, tx.Rollback(context.WithoutCancel(t.Context()))) }()
	var changed int64
	var setting string
	require.NoError(t, tx.QueryRow(t.Context(), `SELECT (reconciler.publish($1, $2, 1, '{app}', '{a}', '{1}', '{1}', ARRAY['\x00112233445566778899aabbccddeeff'::bytea])).changed`,
		b.target, b.instance).Scan(&changed))
	require.NoError(t, tx.QueryRow(t.Context(), `SHOW synchronous_commit`).Scan(&setting))
	require.Equal(t, "1 on", fmt.Sprint(changed, " ", setting))
}

// The cost of a publish grows neither with the objects of a table that PostgreSQL knows nothing of, nor with the versions that an
// open transaction keeps.
func TestPublishReadsOneVersionOfAnObject(t *testing.T) {
	t.Parallel()
	b := setup(t)
	conn := b.db.Conn(t)
	blocks := func(spec string) int {
		rows, err := conn.Query(t.Context(), `EXPLAIN (ANALYZE, BUFFERS) SELECT reconciler.publish($1, $2, 1, '{app}', '{a}', '{1}', ARRAY[$3], ARRAY[CASE WHEN $3 <> '' THEN substr(sha256($3::bytea), 1, 16) END])`,
			b.target, b.instance, spec)
		require.NoError(t, err)
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		read := 0
		for _, line := range lines {
			if _, counts, found := strings.Cut(line, "Buffers: shared"); found && read == 0 { // the first line is that of the whole statement
				for _, count := range regexp.MustCompile(`(?:hit|read)=(\d+)`).FindAllStringSubmatch(counts, -1) {
					n, err := strconv.Atoi(count[1])
					require.NoError(t, err)
					read += n
				}
			}
		}
		require.Positive(t, read, lines)
		return read
	}
	blocks(`1`)
	b.db.Exec(t, `ANALYZE reconciler.published`)
	blocks(`2`) // plans for a table with one object
	b.db.Exec(t, `INSERT INTO reconciler.published (target_id, resource, key, version, revision, spec, hash, bytes)
		SELECT $1, 'app', 'other ' || i, nextval('reconciler.published_seq'), 1, '{}', '\x00112233445566778899aabbccddeeff', 2 FROM generate_series(1, 10000) AS i`, b.target)
	require.Less(t, blocks(`3`), 100, "beside 10,000 objects")
	open, err := b.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	require.NoError(t, err)
	defer func() { require.NoError(t, open.Rollback(context.WithoutCancel(t.Context()))) }()
	_, err = open.Exec(t.Context(), `SELECT FROM reconciler.published LIMIT 1`)
	require.NoError(t, err)
	for i := range 500 {
		b.apply("a", fmt.Sprint(100+i))
	}
	require.Less(t, blocks(`8`), 100)
	require.Less(t, blocks(``), 100, "a delete")
	require.Less(t, blocks(`9`), 100)
	require.Equal(t, "1", b.text(`SELECT count(*)::text FROM reconciler.published WHERE key = 'a'`))
}

func TestOldTombstonesGoAndRaiseTheFloor(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for i := range 6 {
		b.apply(fmt.Sprint(i), `{}`)
	}
	for i := range 5 {
		b.remove(fmt.Sprint(i))
	}
	b.db.Exec(t, `UPDATE reconciler.published SET at = at - interval '25 hours' WHERE key IN ('0', '1', '2', '5')`)
	third := b.text(`SELECT version::text FROM reconciler.published WHERE key = '2'`)
	require.Equal(t, "true", b.text(`SELECT reconciler.forget_tombstones(2)::text`), "there may be more")
	require.Equal(t, `5={} 2=- 3=- 4=-`, b.published())
	require.Equal(t, "false", b.text(`SELECT reconciler.forget_tombstones(2)::text`))
	require.Equal(t, `5={} 3=- 4=-`, b.published(), "neither young tombstones nor objects go")
	require.Equal(t, third, b.text(`SELECT floor::text FROM reconciler.streams`))
}

func TestCompleteEndsWithTheEpoch(t *testing.T) {
	t.Parallel()
	b := setup(t)
	epoch := b.text(`SELECT epoch::text FROM reconciler.streams`)
	require.NoError(t, b.publisher.Complete(t.Context()))
	require.Equal(t, "true", b.text(`SELECT complete::text FROM reconciler.streams`))
	b.db.Exec(t, `SELECT reconciler.start_over('restored')`)
	require.Equal(t, "false", b.text(`SELECT complete::text FROM reconciler.streams`))
	require.NotEqual(t, epoch, b.text(`SELECT epoch::text FROM reconciler.streams`))
	require.Error(t, b.publisher.Complete(t.Context()), "the owner was deposed")
}

func TestReleasedTargetLeavesNothingPublished(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.apply("a", `{}`)
	b.db.Exec(t, `UPDATE reconciler.targets SET configured = false`)
	b.db.Exec(t, `SELECT reconciler.release('eu')`)
	require.Equal(t, "0 0", b.text(`SELECT (SELECT count(*) FROM reconciler.streams) || ' ' || (SELECT count(*) FROM reconciler.published)`))
}

func TestViewersReadNoSpecs(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.apply("a", `{"password": "secret"}`)
	viewer := b.db.Role(t, "viewer", "")
	b.db.Exec(t, `SELECT reconciler.grant($1, 'viewer')`, viewer)
	conn := b.db.ConnAs(t, viewer)
	var key string
	require.NoError(t, conn.QueryRow(t.Context(), `SELECT key FROM reconciler.published WHERE version > 0 AND hash IS NOT NULL`).Scan(&key))
	require.Equal(t, "a", key)
	for _, sql := range []string{`SELECT spec FROM reconciler.published`, `SELECT p FROM reconciler.published p`} {
		_, err := conn.Exec(t.Context(), sql)
		require.ErrorContains(t, err, "permission denied", sql)
	}
}

// doctor names a stream that no sync completes.
func TestDoctorFindsAStreamThatCannotComplete(t *testing.T) {
	t.Parallel()
	b := setup(t)
	doctor := func() string {
		return b.text(`SELECT coalesce(string_agg(concat_ws(' | ', ok, finding, remedy), ' '), 'nothing') FROM reconciler.doctor() WHERE check_name = 'streams'`)
	}
	require.Equal(t, "nothing", doctor(), "its first sync has not ended yet")
	b.db.Exec(t, `INSERT INTO reconciler.sync_runs (target_id, reason, state, finished_at, error) VALUES ($1, 'first', 'failed', clock_timestamp(), 'no such table')`, b.target)
	require.Equal(t, "f | stream eu is not complete, and its watchers wait: its last full sync failed: no such table | SELECT reconciler.resync('eu');", doctor())
	b.db.Exec(t, `INSERT INTO reconciler.sync_runs (target_id, reason, mode, state, finished_at) VALUES ($1, 'first', 'report', 'complete', clock_timestamp())`, b.target)
	require.Equal(t, "f | stream eu is not complete, and its watchers wait: its syncs only report | SELECT reconciler.resync('eu');", doctor())
	b.db.Exec(t, `INSERT INTO reconciler.sync_runs (target_id, reason, state) VALUES ($1, 'asked', 'running')`, b.target)
	require.Equal(t, "nothing", doctor(), "a sync that runs may complete it")
	require.NoError(t, b.publisher.Complete(t.Context()))
	require.Equal(t, "t | 1 stream complete", doctor())
}

// A version that a restore has lost is not given out again: a client may still report it.
func TestVersionsAreNotGivenOutAgainAfterARestore(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.db.Exec(t, `SELECT setval('reconciler.published_seq', 4711)`)
	b.apply("a", `1`)
	b.db.Exec(t, `SELECT setval('reconciler.published_seq', 1); SELECT reconciler.start_over('restored'); SELECT nextval('reconciler.published_seq')`)
	b.own(2)
	b.revision = 10
	object := b.object("a", `2`)
	object.Term = 2
	require.Equal(t, driver.Done(), b.publisher.Apply(t.Context(), object))
	require.Equal(t, "true", b.text(`SELECT (version > 4712)::text FROM reconciler.published WHERE key = 'a'`))
}
