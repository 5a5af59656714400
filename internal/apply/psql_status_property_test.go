package apply_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// drawnObject is a row of the ledger.
type drawnObject struct{ state, heldBy string }

// drawnTarget is all that the state of a target can depend on.
type drawnTarget struct {
	name                              string
	configured, paused, owned, leased bool
	circuitOpen, guarded, draining    bool
	cursor                            int // 0: none
	syncs                             []string
	objects                           []drawnObject
}

// What a random database has besides its targets.
const (
	drawnRevision = 10 // the newest
	drawnFloor    = 4
)

func drawTarget(random *rand.Rand, name string) drawnTarget {
	// Most troubles are rare, or hardly any target would come to the end of the list.
	rarely := func() bool { return random.IntN(8) == 0 }
	d := drawnTarget{
		name: name, configured: !rarely(), paused: rarely(), owned: !rarely(), leased: !rarely(),
		circuitOpen: rarely(), guarded: rarely(), draining: rarely(), cursor: drawnRevision,
	}
	if random.IntN(4) == 0 {
		d.cursor = random.IntN(drawnRevision + 1)
	}
	for range random.IntN(4) {
		d.syncs = append(d.syncs, []string{"running", "complete", "complete", "failed", "failed", "complete", "complete", "complete"}[random.IntN(8)])
	}
	if rarely() {
		d.syncs = append(d.syncs, "requested") // one at most can wait
	}
	states := []drawnObject{{"applied", ""}, {"applied", ""}, {"applied", ""}, {"pending", ""}, {"failing", ""}, {"blocked", ""},
		{"held", "pause"}, {"held", "guard"}, {"held", "sync"}, {"held", "batch"}, {"held", "gate"}}
	if random.IntN(3) > 0 {
		states = states[:3+random.IntN(len(states)-2)]
	}
	if random.IntN(3) == 0 {
		states = states[:3]
	}
	for range random.IntN(6) {
		d.objects = append(d.objects, states[random.IntN(len(states))])
	}
	return d
}

func (d drawnTarget) count(matches func(drawnObject) bool) (n int) {
	for _, object := range d.objects {
		if matches(object) {
			n++
		}
	}
	return n
}

func (d drawnTarget) in(state string) int {
	return d.count(func(o drawnObject) bool { return o.state == state })
}

// state is the table of docs/psql.md in Go.
func (d drawnTarget) state() string {
	syncs := strings.Join(d.syncs, " ")
	for _, rule := range []struct {
		state string
		holds bool
	}{
		{"unknown", !d.configured},
		{"paused", d.paused},
		{"unowned", !d.owned || !d.leased},
		{"down", d.circuitOpen},
		{"held", d.guarded || d.count(func(o drawnObject) bool { return o.heldBy == "guard" }) > 0},
		{"failing", d.in("failing") > 0 || d.in("blocked") > 0},
		{"draining", d.draining},
		{"syncing", d.cursor < drawnFloor || strings.Contains(syncs, "running") || strings.Contains(syncs, "requested")},
		{"pending", d.in("pending") > 0 || d.in("held") > 0 || d.cursor < drawnRevision},
	} {
		if rule.holds {
			return rule.state
		}
	}
	return "ok"
}

// line is what the view shall show of the target.
func (d drawnTarget) line() string {
	lag, owner := "", ""
	if d.cursor > 0 {
		lag = fmt.Sprint(drawnRevision - d.cursor)
	}
	if d.owned && d.leased {
		owner = "host-1"
	}
	return fmt.Sprintf("%s | %s | %s | %d | %d | %d | %d | %d | %d | %s", d.name, d.state(), owner, len(d.objects),
		d.in("applied"), d.in("pending"), d.in("failing"), d.in("blocked"), d.in("held"), lag)
}

// The state and the numbers of many random targets, against an oracle that knows the documentation only.
func TestPsqlStatusOfRandomTargets(t *testing.T) {
	t.Parallel()
	seed := pgtest.Pick(1, uint64(time.Now().UnixNano()))
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	db := newPsqlDB(t)
	db.Exec(t, `DELETE FROM reconciler.targets`)
	for revision := 1; revision < drawnRevision; revision++ {
		db.tick(t, revision)
	}
	db.Exec(t, `UPDATE reconciler.installation SET floor_revision = $1`, drawnFloor)

	batch := &pgx.Batch{}
	var want []string
	seen := map[string]int{}
	for n := range 600 {
		d := drawTarget(random, fmt.Sprintf("t%03d", n))
		d.insert(batch)
		want = append(want, d.line())
		seen[d.state()]++
	}
	require.NoError(t, db.Pool.SendBatch(t.Context(), batch).Close())
	require.Equal(t, want, db.lines(t, `SELECT target, state, owner, objects, applied, pending, failing, blocked, held, lag FROM reconciler.status ORDER BY target`))
	require.Len(t, seen, 10, "not every state was drawn: %v", seen)
}

// insert writes the target as the reconciler would have left it.
func (d drawnTarget) insert(batch *pgx.Batch) {
	batch.Queue(`INSERT INTO reconciler.targets (name, configured, driver, paused_at, paused_by, owner, lease_ttl, circuit_open_since, circuit_error,
			guard_since, guard_deletes, guard_objects, draining)
		SELECT $1, $2::bool, 'file', CASE WHEN $3::bool THEN now() END, CASE WHEN $3 THEN 'ann' END, CASE WHEN $4::bool THEN '00000000-0000-0000-0000-000000000001'::uuid END,
			CASE WHEN $5::bool THEN interval '1 h' ELSE '0' END, CASE WHEN $6::bool THEN now() END, CASE WHEN $6 THEN 'x' END,
			CASE WHEN $7::bool THEN now() END, CASE WHEN $7 THEN 5 END, CASE WHEN $7 THEN 9 END, $8::bool`,
		d.name, d.configured, d.paused, d.owned, d.leased, d.circuitOpen, d.guarded, d.draining)
	if d.cursor > 0 {
		batch.Queue(`SELECT reconciler.write_cursor(id, $2, pg_current_snapshot()) FROM reconciler.targets WHERE name = $1`, d.name, d.cursor)
	}
	for _, state := range d.syncs {
		batch.Queue(`INSERT INTO reconciler.sync_runs (target_id, reason, state, started_at, finished_at)
			SELECT id, 'resync', $2::text, CASE WHEN $2 <> 'requested' THEN now() END, CASE WHEN $2 IN ('complete', 'failed') THEN now() END FROM reconciler.targets WHERE name = $1`,
			d.name, state)
	}
	for n, object := range d.objects {
		batch.Queue(`INSERT INTO reconciler.ledger (target_id, resource_id, key, state, wanted, present, applied_hash, held_by, next_attempt_at)
			SELECT t.id, r.id, $2, $3::text::reconciler.object_state, true, true, '\x00112233445566778899aabbccddeeff', nullif($4, ''), CASE WHEN $3 IN ('pending', 'failing') THEN now() END
			FROM reconciler.targets t, reconciler.resources r WHERE t.name = $1`, d.name, fmt.Sprint(n), object.state, object.heldBy)
	}
}
