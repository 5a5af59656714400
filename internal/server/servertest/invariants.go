package servertest

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// Violation begins the messages of failures that no second run of a test excuses.
const Violation = "VIOLATION: "

// invariants must hold at the end of every test, when all servers have stopped, whatever the test did.
func (w *World) invariants() {
	w.T.Helper()
	for name, p := range w.Places {
		p.mu.Lock()
		overlap, calls := slices.Clone(p.overlap), slices.Clone(p.calls)
		p.mu.Unlock()
		require.Empty(w.T, overlap, Violation+"I3: %s was called twice at once for these", name)
		requireInOrder(w, name, calls)
	}
	if w.T.Failed() {
		w.lost()
		return
	}
	rows := func(sql string) string {
		w.T.Helper()
		var text string
		require.NoError(w.T, w.DB.Pool.QueryRow(context.Background(), `SELECT coalesce(string_agg(x::text, E'\n'), '') FROM (`+sql+`) AS x`).Scan(&text))
		return text
	}
	// A backend needs a moment to notice that its client is gone.
	w.Settled("0", `SELECT count(*)::text FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'reconciler%'`)
	require.Empty(w.T, rows(`SELECT pid, mode FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`), Violation+"locks that were left behind")
	require.Empty(w.T, rows(`SELECT t.name, l.key FROM reconciler.ledger l JOIN reconciler.targets t ON t.id = l.target_id WHERE l.held_by = 'batch' AND t.owner IS NULL AND t.clean`), Violation+"deletes that were parked and never decided on")
	require.Empty(w.T, rows(`SELECT c.consumer FROM reconciler.cursors c, (SELECT max(revision) AS newest FROM reconciler.ticks) AS k WHERE c.revision > k.newest OR c.batch_revision > k.newest`), Violation+"cursors beyond the newest revision")
}

// requireInOrder: under one term a later call for an object never carries an older revision. I3.
func requireInOrder(w *World, target string, calls []Call) {
	w.T.Helper()
	last := map[string]Call{}
	for _, c := range calls {
		before, ok := last[c.ID()]
		if ok && before.Term == c.Term {
			require.GreaterOrEqual(w.T, c.Revision, before.Revision, Violation+"I3: %s of %s after %s in %s", c.Action, c.ID(), before.Action, target)
		}
		last[c.ID()] = c
	}
}

// lost looks, after a test that failed, for objects that count as applied and are not as the rows ask: a test that waited in
// vain may have found a lost change. A target that is not clean, or has a sync to come, is still to be compared with the rows.
// What the test changed behind the product's back is no loss.
func (w *World) lost() {
	w.T.Helper()
	if w.silent {
		return
	}
	ctx := context.Background()
	for name, p := range w.Places {
		rows, err := w.DB.Pool.Query(ctx, `SELECT r.name || '/' || l.key FROM reconciler.ledger l JOIN reconciler.resources r ON r.id = l.resource_id
			JOIN reconciler.targets t ON t.id = l.target_id JOIN reconciler.target_cursors c ON c.target = t.name
			WHERE t.name = $1 AND t.clean AND l.state = 'applied' AND c.revision >= reconciler.covering_revision(pg_current_snapshot())
			AND NOT EXISTS (SELECT FROM reconciler.sync_runs s WHERE s.target_id = t.id AND s.state IN ('requested', 'running'))`, name)
		if err != nil {
			w.T.Logf("cannot look for lost changes: %v", err)
			return
		}
		applied, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			w.T.Logf("cannot look for lost changes: %v", err)
			return
		}
		want, have := w.Wanted(name), p.Have()
		p.mu.Lock()
		put := slices.Clone(p.put)
		p.mu.Unlock()
		for _, id := range applied {
			if want[id] != have[id] && !slices.Contains(put, id) {
				w.T.Logf(Violation+"%s counts as applied: want %q, target %s has %q", id, want[id], name, have[id])
			}
		}
	}
}

// Converged waits until everything is applied, and compares rows, ledger and targets with each other.
func (w *World) Converged() {
	w.T.Helper()
	w.Wait()
	w.Settled("0", `SELECT count(*)::text FROM reconciler.first_calls`)
	for name, p := range w.Places {
		want := w.Wanted(name)
		have, _, _ := p.Snapshot()
		require.Equal(w.T, want, have, Violation+"rows and target %s", name)
		require.Equal(w.T, fmt.Sprintf("%d applied of %d", len(want), len(want)), w.Text(`
			SELECT count(*) FILTER (WHERE o.state = 'applied' AND o.wanted) || ' applied of ' || count(*) FROM reconciler.objects o WHERE o.target = $1`, name), Violation+"ledger of %s", name)
	}
	require.Empty(w.T, w.Text(`SELECT string_agg(r.name || '/' || l.key, ' ') FROM reconciler.ledger l JOIN reconciler.resources r ON r.id = l.resource_id
		WHERE l.attempts > 0 OR l.last_error IS NOT NULL OR l.failed_hash IS NOT NULL OR l.held_by IS NOT NULL OR l.approved`), Violation+"success resets everything")
}

// Wanted returns what the rows ask of a target.
func (w *World) Wanted(target string) map[string]string {
	w.T.Helper()
	want := map[string]string{}
	for _, resource := range w.Column(`SELECT name FROM reconciler.resources WHERE removed_at IS NULL`) {
		rows, err := w.DB.Pool.Query(context.Background(), fmt.Sprintf(`SELECT key, spec::text FROM reconciler.%q WHERE running AND (target = $1 OR target IS NULL)`, "desired_"+resource), target)
		require.NoError(w.T, err)
		for rows.Next() {
			var key, spec string
			require.NoError(w.T, rows.Scan(&key, &spec))
			want[resource+"/"+key] = spec
		}
		require.NoError(w.T, rows.Err())
	}
	return want
}
