package apply

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/desired"
	"github.com/pgreconciler/reconciler/internal/pgtest"
	"github.com/pgreconciler/reconciler/internal/store"
)

const ledgerOwner = "00000000-0000-0000-0000-000000000001"

// ledgerDB is a database with a target eu, owned by ledgerOwner with term 3, and a resource.
type ledgerDB struct {
	*pgtest.DB

	queries  *store.Queries
	target   int32
	resource int32
}

func newLedgerDB(t *testing.T) *ledgerDB {
	t.Helper()
	db := pgtest.New(t)
	db.Exec(t, `CREATE TABLE apps (id text PRIMARY KEY)`)
	db.Exec(t, `SELECT reconciler.track('app', 'apps', '{id}', '''eu''')`)
	db.Exec(t, `INSERT INTO reconciler.targets (name, configured, owner, term, lease_ttl) VALUES ('eu', true, $1, 3, '1 hour')`, ledgerOwner)
	d := &ledgerDB{DB: db, queries: store.New(db.Pool)}
	require.NoError(t, db.Pool.QueryRow(t.Context(), `SELECT t.id, r.id FROM reconciler.targets t, reconciler.resources r`).Scan(&d.target, &d.resource))
	return d
}

func (d *ledgerDB) params() store.SettleParams {
	return store.SettleParams{TargetID: d.target, Owner: ledgerOwner, Term: 3}
}

func (d *ledgerDB) write(t *testing.T, params store.SettleParams) {
	t.Helper()
	_, err := d.queries.Settle(t.Context(), params)
	require.NoError(t, err)
}

// settle records results for keys, all alike.
func (d *ledgerDB) settle(t *testing.T, rec record, keys ...string) {
	t.Helper()
	params := d.params()
	for _, key := range keys {
		addRecord(&params, result{item: &Item{ObjectID: ObjectID{ResourceID: d.resource, Key: key}}, record: &rec})
	}
	d.write(t, params)
}

func (d *ledgerDB) line(t *testing.T, sql string, args ...any) string {
	t.Helper()
	var line *string
	require.NoError(t, d.Pool.QueryRow(t.Context(), sql, args...).Scan(&line))
	if line == nil {
		return ""
	}
	return *line
}

// await returns when a query has a result.
func (d *ledgerDB) await(t *testing.T, want, sql string, args ...any) {
	t.Helper()
	require.NoError(t, pgtest.Poll(t.Context(), pgtest.Patience, func() error {
		if have := d.line(t, sql, args...); have != want {
			return fmt.Errorf("want %s, have %s", want, have)
		}
		return nil
	}))
}

const ledgerLine = `SELECT string_agg(concat_ws(' ', key, state, CASE WHEN NOT wanted THEN 'unwanted' END, CASE WHEN NOT present THEN 'absent' END, held_by,
	CASE WHEN approved THEN 'approved' END, 'after ' || round(extract(epoch FROM next_attempt_at - clock_timestamp()), -2)), ', ' ORDER BY key) FROM reconciler.ledger`

var appliedRecord = record{state: desired.Applied, wanted: true, present: true, desiredRevision: 5, appliedRevision: 5, appliedHash: specHash[:], delay: -1, called: true}

// I10, C35: whatever an owner writes is refused when its term is over, and nothing of it stays.
func TestWritesOfADeposedOwnerAreRefused(t *testing.T) {
	t.Parallel()
	d := newLedgerDB(t)
	held := record{state: desired.Held, heldBy: heldBySync, present: true, delay: -1}
	d.settle(t, held, "parked")
	before := d.line(t, `SELECT t::text || l::text FROM reconciler.targets t, reconciler.ledger l`)
	for name, write := range map[string]func(ctx context.Context, owner string, term int64) error{
		"Settle": func(ctx context.Context, owner string, term int64) error {
			params := d.params()
			params.Owner, params.Term = owner, term
			addRecord(&params, result{item: &Item{ObjectID: ObjectID{ResourceID: d.resource, Key: "a"}}, record: &appliedRecord})
			params.CursorRevision, params.CursorSnapshot = new(int64(7)), new("10:10:")
			_, err := d.queries.Settle(ctx, params)
			return err
		},
		"InHand": func(ctx context.Context, owner string, term int64) error {
			err := d.queries.LedgerInHand(ctx, store.LedgerInHandParams{
				TargetID: d.target, Owner: owner, Term: term, ResourceIds: []int32{d.resource}, Keys: []string{"a"}, Called: []bool{false}, Patience: time.Second,
			})
			return err
		},
		"DecideParked": func(ctx context.Context, owner string, term int64) error {
			_, err := d.queries.ParkedDecide(ctx, store.ParkedDecideParams{TargetID: d.target, Owner: owner, Term: term, ParkedBy: heldBySync, Allow: true})
			return err
		},
		"StartCursor": func(ctx context.Context, owner string, term int64) error {
			return d.queries.TargetCursorStart(ctx, store.TargetCursorStartParams{TargetID: d.target, Owner: owner, Term: term, Revision: 1, Snapshot: "10:10:"})
		},
		"RaiseCursor": func(ctx context.Context, owner string, term int64) error {
			_, err := d.queries.TargetCursorRaise(ctx, store.TargetCursorRaiseParams{TargetID: d.target, Owner: owner, Term: term})
			return err
		},
	} {
		for _, who := range []struct {
			owner string
			term  int64
		}{{ledgerOwner, 2}, {ledgerOwner, 4}, {"00000000-0000-0000-0000-000000000002", 3}} {
			err := write(t.Context(), who.owner, who.term)
			require.True(t, database.IsFenced(err), "%s as %v: %v", name, who, err)
		}
	}
	require.Equal(t, before, d.line(t, `SELECT t::text || l::text FROM reconciler.targets t, reconciler.ledger l`))
	require.Equal(t, "0", d.line(t, `SELECT count(*)::text FROM reconciler.sync_runs`))
}

// C36: what was found paused, and is recorded after resume(), is due at once: nobody would ever look at it again.
func TestNothingIsHeldByAPauseThatIsOver(t *testing.T) {
	t.Parallel()
	d := newLedgerDB(t)
	paused := record{state: desired.Held, wanted: true, heldBy: heldByPause, delay: -1}
	d.Exec(t, `SELECT reconciler.pause('eu')`)
	d.settle(t, paused, "a", "b")
	require.Equal(t, "a held absent pause, b held absent pause", d.line(t, ledgerLine))
	d.Exec(t, `SELECT reconciler.resume('eu')`)
	require.Equal(t, "a pending absent after 0, b pending absent after 0", d.line(t, ledgerLine))
	d.settle(t, paused, "b", "c")
	require.Equal(t, "a pending absent after 0, b pending absent after 0, c pending absent after 0", d.line(t, ledgerLine))
	d.settle(t, record{state: desired.Held, present: true, heldBy: heldByGuard, delay: -1}, "b")
	require.Equal(t, "a pending absent after 0, b held unwanted guard, c pending absent after 0", d.line(t, ledgerLine))
}

// C36: an approval that comes between the reading of a row and the recording of what holds it back lasts, and the object is due.
// What was read after it counts.
func TestApprovalOutlivesWhatWasReadBefore(t *testing.T) {
	t.Parallel()
	d := newLedgerDB(t)
	d.Exec(t, `SELECT reconciler.pause('eu')`)
	before := record{state: desired.Held, present: true, heldBy: heldByGuard, delay: -1}
	for _, by := range []string{heldByGuard, heldByBatch, heldBySync, heldByGate, heldByPause} {
		d.settle(t, before, "a")
		d.Exec(t, `SELECT reconciler.approve('eu')`)
		require.Equal(t, "a pending unwanted approved after 0", d.line(t, ledgerLine), by)
		held := record{state: desired.Held, present: true, heldBy: by, delay: -1, generation: before.generation}
		d.settle(t, held, "a")
		require.Equal(t, "a pending unwanted approved after 0", d.line(t, ledgerLine), by)
		before.generation++
		held.generation, held.wanted = before.generation, true
		d.settle(t, held, "a")
		require.Equal(t, "a held "+by, d.line(t, ledgerLine), by)
	}
}

// F100: an object is tried again although a call that had begun before retry() fails after it. What the target has by that call is
// recorded. Results that are not of a ledger row are recorded whatever its generation is.
func TestF100_RetryOutlivesTheCallUnderWay(t *testing.T) {
	t.Parallel()
	d := newLedgerDB(t)
	const facts = `SELECT concat_ws(' ', l.attempts, l.applied_hash IS NOT NULL, coalesce(l.last_error, '-')) FROM reconciler.ledger l`
	blocked := record{state: desired.Blocked, wanted: true, present: true, err: "no", attempts: 3, delay: -1}
	d.settle(t, blocked, "a")
	d.Exec(t, `SELECT reconciler.retry('eu')`)
	blocked.present = false
	d.settle(t, blocked, "a")
	require.Equal(t, "a pending absent after 0", d.line(t, ledgerLine))
	require.Equal(t, "0 f no", d.line(t, facts))
	d.settle(t, appliedRecord, "a")
	require.Equal(t, "a pending after 0", d.line(t, ledgerLine))
	require.Equal(t, "0 t no", d.line(t, facts))
	blocked.generation = 1
	d.settle(t, blocked, "a")
	require.Equal(t, "a blocked absent", d.line(t, ledgerLine))
	d.Exec(t, `SELECT reconciler.retry('eu')`)
	blocked.generation = -1
	d.settle(t, blocked, "a", "b")
	require.Equal(t, "a blocked absent, b blocked absent", d.line(t, ledgerLine))
}

// What does not settle soon gets its row: new to the ledger it is not in the target, as far as is known; what is goes on
// being there; what waits for something else goes on waiting. What is pending waits no longer than asked for.
func TestObjectsInHandGetTheirRow(t *testing.T) {
	t.Parallel()
	d := newLedgerDB(t)
	d.settle(t, appliedRecord, "applied")
	d.settle(t, record{state: desired.Blocked, wanted: true, err: "no", delay: -1}, "blocked")
	d.settle(t, record{state: desired.Failing, wanted: true, present: true, err: "no", attempts: 1, delay: 6000}, "failing")
	d.settle(t, record{state: desired.Held, present: true, heldBy: heldByGuard, delay: -1}, "guarded")
	after := 300 * time.Second
	inHand := func(called bool, keys ...string) {
		ids := make([]int32, len(keys))
		calls := make([]bool, len(keys))
		for i := range ids {
			ids[i], calls[i] = d.resource, called
		}
		err := d.queries.LedgerInHand(t.Context(), store.LedgerInHandParams{
			TargetID: d.target, Owner: ledgerOwner, Term: 3, ResourceIds: ids, Keys: keys, Called: calls, Patience: after,
		})
		require.NoError(t, err)
	}
	const want = "applied pending after 300, blocked blocked absent, failing failing after 6000, guarded held unwanted guard, new 1 pending absent after 300, new 2 pending absent after 300"
	inHand(false, "new 2", "failing", "applied", "guarded", "new 1", "blocked")
	require.Equal(t, want, d.line(t, ledgerLine))
	inHand(false, "new 1", "applied")
	require.Equal(t, want, d.line(t, ledgerLine))
	// Whose first call may have begun is present.
	inHand(true, "new 1", "blocked", "failing", "called")
	require.Equal(t, "applied pending after 300, blocked pending after 300, called pending after 300, failing failing after 6000, "+
		"guarded held unwanted guard, new 1 pending after 300, new 2 pending absent after 300", d.line(t, ledgerLine))
	for _, after = range []time.Duration{100 * time.Second, 600 * time.Second} {
		inHand(false, "called", "failing", "guarded", "new 2")
		require.Equal(t, "applied pending after 300, blocked pending after 300, called pending after 100, failing failing after 6000, "+
			"guarded held unwanted guard, new 1 pending after 300, new 2 pending absent after 100", d.line(t, ledgerLine))
	}
}

// When the cursor passes an object in hand, the ledger has the protection of its last row. A result of an earlier look does not change it.
func TestF138_ProtectionOfWhatIsInHandIsRecorded(t *testing.T) {
	t.Parallel()
	d := newLedgerDB(t)
	d.Exec(t, `ALTER TABLE apps ADD keep boolean; SELECT reconciler.track('app', 'apps', '{id}', '''eu''', protect => 'keep')`)
	const protections = `SELECT string_agg(concat_ws(' ', key, state, CASE WHEN protected THEN 'protected' END, CASE WHEN approved THEN 'approved' END), ', ' ORDER BY key) FROM reconciler.ledger`
	deleting := record{state: desired.Failing, present: true, err: "no", attempts: 1, approved: true, delay: 6000, desiredRevision: 1}
	asked := record{state: desired.Held, wanted: true, present: true, heldBy: heldByGuard, protected: true, delay: -1, desiredRevision: 1}
	protected := appliedRecord
	protected.protected = true
	parked := record{state: desired.Held, present: true, heldBy: heldByBatch, delay: -1, desiredRevision: 1}
	keys := []string{"asked", "deleting", "free", "kept", "parked", "unknown"}
	d.settle(t, asked, "asked")
	d.settle(t, deleting, "deleting")
	d.settle(t, protected, "free")
	d.settle(t, appliedRecord, "kept")
	d.settle(t, parked, "parked")
	d.Exec(t, `INSERT INTO apps SELECT k, true FROM unnest($1::text[]) AS k`, keys)
	d.Exec(t, `UPDATE apps SET keep = false WHERE id IN ('asked', 'free')`)
	d.Exec(t, `DELETE FROM apps`)
	params := store.LedgerInHandParams{TargetID: d.target, Owner: ledgerOwner, Term: 3, Keys: keys, Patience: time.Minute}
	for range keys {
		params.ResourceIds, params.Called = append(params.ResourceIds, d.resource), append(params.Called, false)
	}
	const want = "asked held protected, deleting failing protected, free pending, kept pending protected, parked held protected, unknown pending protected"
	require.NoError(t, d.queries.LedgerInHand(t.Context(), params))
	require.Equal(t, want, d.line(t, protections))

	late := deleting
	d.settle(t, *late.inHand(), "deleting")
	late = appliedRecord
	d.settle(t, *late.inHand(), "kept", "another")
	require.Equal(t, "another pending, "+want, d.line(t, protections))
	_, err := d.queries.ParkedDecide(t.Context(), store.ParkedDecideParams{TargetID: d.target, Owner: ledgerOwner, Term: 3, ParkedBy: heldByBatch, Allow: true})
	require.NoError(t, err)
	require.Equal(t, "parked pending protected", d.line(t, protections+` WHERE key = 'parked'`))

	// A look at the row after the change knows better.
	d.Exec(t, `INSERT INTO reconciler.ticks (revision, snapshot) SELECT 40, pg_current_snapshot()`)
	later := appliedRecord
	later.desiredRevision = 41
	d.settle(t, later, "kept")
	require.NoError(t, d.queries.LedgerInHand(t.Context(), params))
	require.Equal(t, "kept pending", d.line(t, protections+` WHERE key = 'kept'`))
}

// Every column of a result reaches the ledger as it is, whatever characters its texts have.
func TestResultsAreRecordedAsTheyAre(t *testing.T) {
	t.Parallel()
	d := newLedgerDB(t)
	held := record{
		state: desired.Held, wanted: true, present: true, desiredRevision: 7, appliedRevision: 6, appliedHash: []byte("\\applied hash, x"), failedHash: make([]byte, 16),
		attempts: 3, err: "1\" \\ ', (a) {b}\n\té \\x00 NULL", heldBy: heldByGuard, approved: true, protected: true, delay: -1, called: true, match: `{"a\"b\\": ", )"}`, memory: []byte{0, '"', '\\', 255},
	}
	failing := held
	failing.state, failing.heldBy, failing.delay = desired.Failing, "", 1e6
	keys := []string{"", " ", `a"b`, `a\b`, `a""b\\`, "a,b(c)d{e}", "NULL", "zwölf\n"}
	for _, rec := range []record{held, failing} {
		d.settle(t, rec, keys...)
		var have []record
		rows, err := d.Pool.Query(t.Context(), `SELECT key, state, wanted, present, desired_revision, applied_revision, applied_hash, failed_hash, attempts, last_error, coalesce(held_by, ''), approved, protected,
			coalesce(round(extract(epoch FROM next_attempt_at - clock_timestamp()), -5)::float8, -1), match::text, memory FROM reconciler.ledger ORDER BY array_position($1, key)`, keys)
		require.NoError(t, err)
		for i := 0; rows.Next(); i++ {
			r, key := record{called: true}, ""
			require.NoError(t, rows.Scan(&key, &r.state, &r.wanted, &r.present, &r.desiredRevision, &r.appliedRevision, &r.appliedHash, &r.failedHash, &r.attempts, &r.err, &r.heldBy, &r.approved, &r.protected,
				&r.delay, &r.match, &r.memory))
			require.Equal(t, keys[i], key)
			have = append(have, r)
		}
		require.NoError(t, rows.Err())
		require.Equal(t, slices.Repeat([]record{rec}, len(keys)), have)
	}
}

// Results of a resource that was untracked meanwhile are dropped; the others of the same batch are not.
func TestResultsOfAnUntrackedResourceAreDropped(t *testing.T) {
	t.Parallel()
	d := newLedgerDB(t)
	params := d.params()
	addRecord(&params, result{item: &Item{ObjectID: ObjectID{ResourceID: d.resource, Key: "kept"}}, record: &appliedRecord})
	addRecord(&params, result{item: &Item{ObjectID: ObjectID{ResourceID: d.resource + 100, Key: "dropped"}}, record: &appliedRecord})
	d.write(t, params)
	require.Equal(t, "kept applied", d.line(t, ledgerLine))
}

// The cursor, with its place inside a batch, goes with the results; a row leaves with its delete.
func TestCursorGoesWithTheResults(t *testing.T) {
	t.Parallel()
	d := newLedgerDB(t)
	const cursorLine = `SELECT concat_ws(' ', revision, snapshot, batch_revision, batch_snapshot, batch_xid, batch_seq) FROM reconciler.target_cursors`
	params := d.params()
	addRecord(&params, result{item: &Item{ObjectID: ObjectID{ResourceID: d.resource, Key: "a"}}, record: &appliedRecord})
	cur := at(4)
	cur.base.Snapshot, cur.batch, cur.at.Xid, cur.at.Seq = "10:20:15", at(6).base, 17, 42
	cur.batch.Snapshot = "30:30:"
	addCursor(&params, cur)
	d.write(t, params)
	require.Equal(t, "4 10:20:15 6 30:30: 17 42", d.line(t, cursorLine))

	params = d.params()
	addRecord(&params, result{item: &Item{ObjectID: ObjectID{ResourceID: d.resource, Key: "a"}}, record: &record{gone: true}})
	d.write(t, params)
	require.Empty(t, d.line(t, ledgerLine))
	require.Equal(t, "4 10:20:15 6 30:30: 17 42", d.line(t, cursorLine), "a write without a cursor leaves it")

	params = d.params()
	cur.base, cur.batch = cur.batch, at(0).base
	addCursor(&params, cur)
	d.write(t, params)
	require.Equal(t, "6 30:30:", d.line(t, cursorLine))
}

// An older result never takes back the revision of a newer one, nor what is known of an object that was not called.
func TestLedgerKeepsTheNewestRevision(t *testing.T) {
	t.Parallel()
	d := newLedgerDB(t)
	d.settle(t, appliedRecord, "a")
	at := d.line(t, `SELECT applied_at::text FROM reconciler.ledger`)
	d.settle(t, record{state: desired.Failing, wanted: true, present: true, desiredRevision: 3, err: "no", attempts: 1, delay: 60, called: true}, "a")
	require.Equal(t, "5 5 no", d.line(t, `SELECT concat_ws(' ', desired_revision, applied_revision, last_error) FROM reconciler.ledger`))
	require.Equal(t, at, d.line(t, `SELECT applied_at::text FROM reconciler.ledger`))
}
