package leader

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/desired"
	"github.com/pgreconciler/reconciler/internal/outbox"
	"github.com/pgreconciler/reconciler/internal/pgtest"
	"github.com/pgreconciler/reconciler/internal/store"
)

// blocks is what a plan says about the blocks that a node touched, with all below it.
var blocks = regexp.MustCompile(`Buffers: shared((?: (?:hit|read|dirtied|written)=\d+)+)`)

// path executes what stands on the path of a change, and counts the blocks that each statement touches.
type path struct {
	b       *bed
	conn    *pgx.Conn
	queries *store.Queries
	crew    *desired.Resource
	gates   desired.Gates // what the last look knew
	opened  uint64        // where the next look for applies to be opened begins
	touched int
	keys    int
}

func newPath(b *bed) *path {
	p := &path{b: b}
	p.conn = b.db.Explaining(b.t, p.count)
	p.queries = store.New(p.conn)
	catalog := &desired.Catalog{}
	_, err := catalog.Reload(b.t.Context(), b.db.Pool)
	require.NoError(b.t, err)
	p.crew, _ = catalog.ByName("crew")
	p.exec("SET auto_explain.log_buffers = on")
	return p
}

// count adds the blocks that a statement touched: those of the plan's root, or of a data-modifying CTE, which the root does not
// include.
func (p *path) count(plan string) {
	most := 0
	for _, found := range blocks.FindAllStringSubmatch(plan, -1) {
		touched := 0
		for part := range strings.FieldsSeq(found[1]) {
			name, number, _ := strings.Cut(part, "=")
			n, err := strconv.Atoi(number)
			require.NoError(p.b.t, err)
			if name == "hit" || name == "read" {
				touched += n
			}
		}
		most = max(most, touched)
	}
	p.touched += most
}

func (p *path) exec(sql string) {
	p.b.t.Helper()
	_, err := p.conn.Exec(p.b.t.Context(), sql)
	require.NoError(p.b.t, err, sql)
}

// called gives the next object its row, as the first call for it does. It was due before any look.
func (p *path) called() {
	p.b.t.Helper()
	p.keys++
	p.b.exec(`INSERT INTO reconciler.ledger (target_id, resource_id, key, state, wanted, present, next_attempt_at)
		VALUES (1, 1, $1, 'pending', true, true, clock_timestamp() - interval '1 hour')`, strconv.Itoa(p.keys))
}

// settle records the result of the call, and the cursor.
func (p *path) settle(at outbox.Tick) error {
	_, err := p.queries.Settle(p.b.t.Context(), store.SettleParams{
		TargetID: 1, Owner: instance, Term: 1, Results: []string{fmt.Sprintf(`(1,%d,applied,t,t,%d,%[2]d,\\x%032x,,0,,,f,f,-1,t,,0,)`, p.keys, at.Revision, 0)},
		CursorRevision: &at.Revision, CursorSnapshot: &at.Snapshot,
	})
	return err
}

// tick makes a revision of a change.
func (p *path) tick() outbox.Tick {
	p.b.t.Helper()
	p.b.change("a")
	rows, err := p.queries.TickInsert(p.b.t.Context(), store.TickInsertParams{PageRows: 10, Owner: instance, Term: 1})
	require.NoError(p.b.t, err)
	require.NotEmpty(p.b.t, rows)
	return outbox.Tick{Revision: rows[0].Revision, Snapshot: rows[0].Snapshot}
}

// lead moves the leader's cursor.
func (p *path) lead(at outbox.Tick) error {
	if err := p.queries.LeaderFence(p.b.t.Context(), store.LeaderFenceParams{Owner: instance, Term: 1}); err != nil {
		return err
	}
	return p.queries.LeaderCursorWrite(p.b.t.Context(), store.LeaderCursorWriteParams{Owner: instance, Term: 1, Revision: at.Revision, Snapshot: at.Snapshot})
}

// expand marks a hundred objects.
func (p *path) expand() error {
	_, err := p.crew.Expand(p.b.t.Context(), p.conn, json.RawMessage(`{"team_id": 1}`))
	return err
}

// look reads what an owner and wait() read again and again.
func (p *path) look(at outbox.Tick) error {
	ctx := p.b.t.Context()
	unopened, operations := p.gates.Known()
	steering, err := p.queries.TargetSteering(ctx, store.TargetSteeringParams{TargetID: 1, Since: p.gates.Since, Unopened: unopened, Operations: operations})
	if err != nil {
		return err
	}
	p.gates = desired.NewGates(steering.Since, steering.Unopened, steering.Operations)
	if _, err := p.queries.TargetLoad(ctx, 1); err != nil {
		return err
	}
	if _, err := p.queries.LedgerDue(ctx, store.LedgerDueParams{TargetID: 1, MaxRows: 10, Back: new(60.)}); err != nil {
		return err
	}
	_, err = p.queries.CursorPassed(ctx, store.CursorPassedParams{TargetID: 1, Revision: at.Revision})
	return err
}

// turn asks what is to be done in applies, and for which objects that is not known yet.
func (p *path) turn() error {
	ctx := p.b.t.Context()
	unopened, operations := p.gates.Known()
	if _, err := p.queries.TargetsWithTurn(ctx, store.TargetsWithTurnParams{Owner: instance, Since: p.gates.Since, Known: operations}); err != nil {
		return err
	}
	if _, err := p.queries.OperationsClaim(ctx, store.OperationsClaimParams{TargetID: 1, Owner: instance, Term: 1, Since: p.gates.Since, Known: operations}); err != nil {
		return err
	}
	_, err := p.queries.UnopenedKeys(ctx, store.UnopenedKeysParams{ResourceID: 1, Since: p.gates.Since, Known: unopened})
	return err
}

// open looks for applies that are to be opened.
func (p *path) open(at outbox.Tick) error {
	row, err := p.queries.AppliesToOpen(p.b.t.Context(), store.AppliesToOpenParams{Snapshot: at.Snapshot, After: p.opened, Known: []int64{}})
	p.opened = row.Since
	return err
}

// read reads an object and its gate.
func (p *path) read() error {
	_, err := p.crew.ReadKnowing(p.b.t.Context(), p.conn, "eu", 1, []string{"m1"}, p.gates, desired.ReadMost)
	return err
}

// forget looks at the ticks that have grown old, and at the parts of the outbox.
func (p *path) forget(at outbox.Tick) error {
	if _, err := p.queries.Forget(p.b.t.Context(), store.ForgetParams{After: at.Revision - 20, Upto: at.Revision - 10, MaxAge: day, AppliesKept: day}); err != nil {
		return err
	}
	_, err := p.queries.OutboxRetain(p.b.t.Context(), store.OutboxRetainParams{MaxAge: day, MaxRows: 1_000_000, RotateAfter: time.Hour})
	return err
}

// blocks counts what each step touches: the least of several times, for one may be the first on a new block.
func (p *path) blocks() map[string]int {
	t := p.b.t
	t.Helper()
	least := map[string]int{}
	var at outbox.Tick
	for range 5 {
		p.called()
		for _, step := range []struct {
			name string
			do   func() error
		}{
			{"tick", func() error { at = p.tick(); return nil }},
			{"settle", func() error { return p.settle(at) }},
			{"leader's cursor", func() error { return p.lead(at) }},
			{"expansion", p.expand},
			{"look", func() error { return p.look(at) }},
			{"turn", p.turn},
			{"opening", func() error { return p.open(at) }},
			{"read", p.read},
			{"housekeeping", func() error { return p.forget(at) }},
		} {
			p.touched = 0
			require.NoError(t, step.do(), step.name)
			require.Positive(t, p.touched, step.name)
			if n, ok := least[step.name]; !ok || p.touched < n {
				least[step.name] = p.touched
			}
		}
	}
	return least
}

// I2: somebody's transaction keeps every version of every row. What a change costs must not grow with what happened since it began.
func TestF94_ChangesCostTheSameHoweverOldASnapshotIs(t *testing.T) {
	t.Parallel()
	const objects = 100
	rounds := pgtest.Pick(1000, 2500)
	b := bedOn(t, pgtest.Server(t).New(t)) // elsewhere, transactions of other tests keep what is known of applies old
	b.exec(joinedApps)
	b.exec(`INSERT INTO reconciler.targets (name, owner, term, lease_ttl) VALUES ('eu', $1, 1, '1 hour'), ('us', NULL, 0, '0')`, instance)
	b.exec(fmt.Sprintf(`INSERT INTO members SELECT 'm' || n, 1, 'eu' FROM generate_series(1, %d) AS n`, objects))
	b.exec(fmt.Sprintf(`INSERT INTO reconciler.ledger (target_id, resource_id, key, state, wanted, present, applied_hash, match)
		SELECT 1 + n %% 2, r.id, 'm' || n, 'applied', true, true, substr(sha256('x'), 1, 16), '{"team_id": 1}'
		FROM reconciler.resources r, generate_series(1, %d) AS n WHERE r.name = 'crew'`, objects))
	// Nothing can be cleaned up, and plans are to stay those of the first rounds.
	b.exec(`DO $$ DECLARE r regclass; BEGIN
		FOR r IN SELECT oid FROM pg_class WHERE relkind = 'r' AND relnamespace = 'reconciler'::regnamespace LOOP
			EXECUTE format('ALTER TABLE %s SET (autovacuum_enabled = off)', r); END LOOP; END $$`)
	p := newPath(b)
	reader, err := b.db.Pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	require.NoError(t, err)
	defer func() { require.NoError(t, reader.Rollback(t.Context())) }()
	_, err = reader.Exec(t.Context(), `SELECT count(*) FROM apps`)
	require.NoError(t, err)

	round := func() {
		at := p.tick()
		p.called()
		require.NoError(t, p.settle(at))
		require.NoError(t, p.lead(at))
	}
	for range 50 {
		round()
	}
	young := p.blocks()
	for range rounds {
		round()
	}
	// Hours of revisions that have grown old since.
	p.exec(`INSERT INTO reconciler.ticks (revision, snapshot, at) SELECT -i, pg_current_snapshot(), clock_timestamp() - interval '1 hour' FROM generate_series(1, 50000) AS i`)
	p.exec(`DELETE FROM reconciler.ticks WHERE revision < 0`)
	// Thousands of applies that have ended since.
	p.exec(`INSERT INTO reconciler.applies (epoch, xid, xids, title, on_failure, strategy, soak, attempts, labels)
		SELECT 1, i::text::xid8, '{}', 'one of many', 'halt', 'rolling', '0', 1, '{}' FROM generate_series(1, 2000) AS i`)
	p.exec(`INSERT INTO reconciler.operations (apply_id, target_id, target, budget, xid) SELECT id, 1, 'eu', 1, xid FROM reconciler.applies`)
	p.exec(`UPDATE reconciler.operations SET state = 'completed', completed_at = now(), done = true`)
	p.exec(`UPDATE reconciler.applies SET state = 'completed', opened_at = now(), completed_at = now()`)
	old := p.blocks()
	t.Logf("blocks after 50 rounds: %v; after %d: %v", young, rounds, old)
	for name, n := range old {
		// A tree may have grown by a level: one block for each look into it.
		require.LessOrEqual(t, n, young[name]*3/2+10, name)
	}
}
