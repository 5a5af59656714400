package apply_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/desired"
	"github.com/pgreconciler/reconciler/internal/store"
)

// gates looks at a target as its owner does, from what a look before knew on.
func (d appliesDB) gates(t *testing.T, id int32, known desired.Gates) desired.Gates {
	t.Helper()
	unopened, operations := known.Known()
	row, err := store.New(d.Pool).TargetSteering(t.Context(), store.TargetSteeringParams{TargetID: id, Since: known.Since, Unopened: unopened, Operations: operations})
	require.NoError(t, err)
	require.NotZero(t, row.Since)
	return desired.NewGates(row.Since, row.Unopened, row.Operations)
}

// seen is what somebody with this knowledge finds: gates of objects, turns, what there is to claim, and what is not open.
func (d appliesDB) seen(t *testing.T, r *desired.Resource, id int32, target string, known desired.Gates) string {
	t.Helper()
	var b strings.Builder
	rows, err := r.ReadKnowing(t.Context(), d.Pool, target, id, []string{"1", "2", "3", "4", "5", "6", "7", "8", "9"}, known, desired.ReadMost)
	require.NoError(t, err)
	for _, row := range rows {
		fmt.Fprintf(&b, "%s unopened %v", row.Key, row.Unopened)
		if row.Task != nil {
			fmt.Fprintf(&b, " of %d, open %v", row.Task.Operation, row.Task.Open)
		}
		b.WriteString("\n")
	}
	unopened, operations := known.Known()
	tx, err := d.Pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(t.Context()) }() // the claim is only looked at
	q := store.New(tx)
	turns, err := q.TargetsWithTurn(t.Context(), store.TargetsWithTurnParams{Owner: strings.Trim(process, "'"), Since: known.Since, Known: operations})
	require.NoError(t, err)
	for _, turn := range turns {
		if turn.TargetID == id {
			fmt.Fprintf(&b, "turn %v, health %v\n", turn.Turn, turn.Health)
		}
	}
	keys, err := q.UnopenedKeys(t.Context(), store.UnopenedKeysParams{ResourceID: r.ID, Since: known.Since, Known: unopened})
	require.NoError(t, err)
	fmt.Fprintf(&b, "unopened %v\n", keys)
	var term int64
	require.NoError(t, tx.QueryRow(t.Context(), "SELECT term FROM reconciler.targets WHERE id = $1", id).Scan(&term))
	_, err = tx.Exec(t.Context(), "SET LOCAL lock_timeout = '1ms'")
	require.NoError(t, err)
	claim, err := q.OperationsClaim(t.Context(), store.OperationsClaimParams{TargetID: id, Owner: strings.Trim(process, "'"), Term: term, Since: known.Since, Known: operations})
	if database.Code(err) == "55P03" { // another transaction holds the target
		return b.String()
	}
	require.NoError(t, err)
	fmt.Fprintf(&b, "claim %v, stop %v, busy %v\n", claim.OperationIds, claim.StoppingIds, claim.Busy)
	return b.String()
}

// F94: whoever knows what there was at a look before sees as much as who looks at everything, whatever was under way at that
// look and came to its end later, in any order.
func TestF94_KnowingGatesFromBeforeHidesNone(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			db := newAppliesDB(t)
			db.Exec(t, "ALTER FUNCTION reconciler.settle_tasks SET lock_timeout = '20ms'") // it is in the way of itself here
			catalog := &desired.Catalog{}
			_, err := catalog.Reload(t.Context(), db.Pool)
			require.NoError(t, err)
			r, ok := catalog.ByName("deployments")
			require.True(t, ok)
			var id int32
			const target = "asia"
			require.NoError(t, db.Pool.QueryRow(t.Context(), "SELECT id FROM reconciler.targets WHERE name = $1", target).Scan(&id))
			random := rand.New(rand.NewPCG(seed, 94))
			var (
				open    []pgx.Tx
				looks   []desired.Gates
				counted = map[string]int{}
			)
			defer func() {
				for _, tx := range open {
					_ = tx.Rollback(t.Context()) // nothing is asserted of it
				}
			}()
			for range 150 {
				what := db.stir(t, random, &open)
				counted[what]++
				all := db.seen(t, r, id, target, desired.Gates{})
				if strings.Contains(all, "unopened true") {
					counted["unopened"]++
				}
				if strings.Contains(all, " of ") {
					counted["governed"]++
				}
				if what == "retry" && strings.Contains(all, "turn true") {
					counted["turn after a retry"]++
				}
				for i := range min(6, len(looks)) { // the last ones, and others
					known := looks[len(looks)-1-i]
					if i > 2 {
						known = looks[random.IntN(len(looks))]
					}
					require.Equal(t, all, db.seen(t, r, id, target, known), "after %s, knowing %+v", what, known)
				}
				if len(looks) == 0 || random.IntN(2) == 0 {
					var known desired.Gates
					if len(looks) > 0 && random.IntN(4) > 0 {
						known = looks[random.IntN(len(looks))]
					}
					looks = append(looks, db.gates(t, id, known))
				}
			}
			for _, what := range []string{"begin", "commit", "open", "claim", "settle", "retry", "unopened", "governed", "turn after a retry"} {
				require.Positive(t, counted[what], "%s: %v", what, counted)
			}
		})
	}
}

// stir does something that applies are made of, in a transaction that may stay open, and says what.
func (d appliesDB) stir(t *testing.T, random *rand.Rand, open *[]pgx.Tx) string {
	t.Helper()
	if n := len(*open); n > 0 && (n > 2 || random.IntN(2) == 0) {
		i := random.IntN(n)
		tx := (*open)[i]
		*open = append((*open)[:i], (*open)[i+1:]...)
		if random.IntN(5) == 0 {
			require.NoError(t, tx.Rollback(t.Context()))
			return "rollback"
		}
		require.NoError(t, tx.Commit(t.Context()))
		return "commit"
	}
	var one int // of the newest applies
	require.NoError(t, d.Pool.QueryRow(t.Context(), "SELECT coalesce(max(id), 1) FROM reconciler.applies").Scan(&one))
	one -= random.IntN(3)
	verdict := []string{"done", "failed"}[random.IntN(2)]
	acts := []struct{ what, sql string }{
		{"begin", fmt.Sprintf("SELECT reconciler.begin_apply('x', strategy => '%s', on_failure => 'continue'); UPDATE public.deployments SET image = image || '+' WHERE id %% 3 = %d",
			[]string{"rolling", "parallel"}[random.IntN(2)], random.IntN(3))},
		{"begin", "SELECT reconciler.begin_apply('x', on_failure => 'halt'); UPDATE public.deployments SET image = image || '+' WHERE id = 1"},
		{"open", "SELECT reconciler.open_apply(" + process + ", 1, id, 12, 1000) FROM reconciler.applies WHERE opened_at IS NULL"},
		{"open", "SELECT reconciler.open_apply(" + process + ", 1, id, 12, 1000) FROM reconciler.applies WHERE opened_at IS NULL"},
		{"claim", claimSQL("asia")},
		{"settle", settleSQL(one, "asia", verdict)},
		{"settle", settleSQL(one, "eu", verdict)},
		{"retry", fmt.Sprintf("SELECT reconciler.apply_retry(%d)", one)},
		{"retry", fmt.Sprintf("SELECT reconciler.apply_retry(%d)", one)},
		{"stop", fmt.Sprintf("SELECT reconciler.apply_stop(%d)", one)},
		{"start", fmt.Sprintf("SELECT reconciler.apply_start(%d)", one)},
		{"cancel", fmt.Sprintf("SELECT reconciler.apply_cancel(%d)", one)},
	}
	act := acts[random.IntN(len(acts))]
	tx, err := d.Pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "SET LOCAL lock_timeout = '20ms'; "+act.sql)
	if err != nil { // it is refused, or somebody holds what it needs
		require.NoError(t, tx.Rollback(t.Context()))
		return "refused"
	}
	_, err = tx.Exec(t.Context(), "SET LOCAL lock_timeout = 0") // a commit with NOTIFY waits for those of other tests
	require.NoError(t, err)
	if random.IntN(4) == 0 {
		*open = append(*open, tx)
		return act.what
	}
	require.NoError(t, tx.Commit(t.Context()))
	return act.what
}
