package e2e_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// looked is how many rows all sessions in the database have read from tables and indexes since counting began, whatever
// the reason. A session that is alive may report what it read up to ten seconds later, so it ends those of the test, and
// waits for the end of all others.
func (w *world) looked() int {
	w.t.Helper()
	w.db.Pool.Reset()
	w.becomes("0", `SELECT count(*) FROM pg_stat_activity
		WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()`)
	n, err := strconv.Atoi(w.text(`SELECT (SELECT sum(seq_tup_read) FROM pg_stat_user_tables) + (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes)`))
	require.NoError(w.t, err)
	return n
}

// whole runs the daemon from its first sync until everything else is done too, and returns how many rows were read for it.
func (w *world) whole(meanwhile ...string) int {
	w.t.Helper()
	const (
		wait   = `SELECT reconciler.wait('10min')`
		synced = `SELECT count(*) FILTER (WHERE state = 'complete') || ' complete, ' || count(*) FILTER (WHERE state IN ('requested', 'running')) || ' to do' FROM reconciler.sync_runs`
	)
	before, was := w.looked(), w.text(synced)
	d := w.start()
	eventually(w.t, giantPatience, func() error {
		if now := w.text(synced); now == was || !strings.HasSuffix(now, ", 0 to do") {
			return fmt.Errorf("syncs: %s; before: %s", now, was)
		}
		return nil
	}, "the sync at the start is done")
	for _, sql := range meanwhile {
		w.exec(sql)
	}
	w.exec(wait)
	d.stop()
	return w.looked() - before
}

// Every statement walks an index, or a table once, however many rows there are: a million in the long tier: counted are all rows that whole runs of the
// binary read, so that no statement is forgotten. A plan that reads a whole table for a page, a batch, a tick
// or a write to the ledger is far above these bounds.
func TestNoPlanReadsMoreThanItNeedsAtAMillionRows(t *testing.T) {
	t.Parallel()
	rows := 30_000
	if pgtest.Long {
		rows = 1_000_000
	}
	first, fresh, updates, deletes := 1000, rows/500, rows/5000, rows/10_000
	w := newGiantWorld(t)
	w.exec(`CREATE TABLE apps (id bigint PRIMARY KEY, region text, version bigint NOT NULL DEFAULT 1, state text NOT NULL DEFAULT 'running')`)
	w.exec(`CREATE INDEX ON apps (region, id) WHERE state = 'running'`)
	w.exec(`SELECT reconciler.track('app', 'apps', '{id}', 'region', running => $$state = 'running'$$, ignore => '{region,state}')`)
	w.configure([]object{{"name": "eu", "driver": "discard", "guard": object{"max_fraction": 1}, "sync_interval": "off"}}, object{"log": object{"level": "info", "format": "json"}})
	insert := func(from, to int) {
		w.exec(`SET session_replication_role = replica; INSERT INTO apps (id, region) SELECT i, 'eu' FROM generate_series(` +
			fmt.Sprintf("%d, %d", from, to) + `) AS i; RESET session_replication_role`)
	}
	insert(1, first)
	w.whole()
	// The other rows are there, and applied, without the minutes that a first sync of theirs takes.
	insert(first+1, rows)
	w.exec(`INSERT INTO reconciler.ledger (target_id, resource_id, key, state, wanted, present, applied_revision, applied_hash)
		SELECT t.id, r.id, v.key, 'applied', true, true, 1, substr(sha256(convert_to(v.spec::text, 'UTF8')), 1, 16)
		FROM reconciler.desired_app v, reconciler.targets t, reconciler.resources r WHERE v.key::int > $1`, first)
	w.exec(`VACUUM ANALYZE`)
	inSync := w.whole()
	insert(rows+1, rows+fresh)
	found := w.whole()
	var live []string
	for n := range updates {
		live = append(live, fmt.Sprintf(`UPDATE apps SET version = version + 1 WHERE id = %d`, (n+1)*rows/updates))
	}
	for n := range deletes {
		live = append(live, fmt.Sprintf(`DELETE FROM apps WHERE id = %d`, (n+1)*rows/updates-1))
	}
	changed := w.whole(live...)
	t.Logf("rows read: by a sync that finds nothing to do %d; by one that finds %d new rows %d; by one, and %d changes, %d", inSync, fresh, found, len(live), changed)
	require.Less(t, inSync, 8*rows, "a sync that finds nothing to do")
	require.Less(t, found-inSync, rows/10, "a sync that finds new rows")
	require.Less(t, changed-inSync, rows/10, "live changes")
	require.Equal(t, fmt.Sprintf("%d inserted, %d updated, %d deleted", rows+fresh, updates, deletes),
		w.text(`SELECT format('%s inserted, %s updated, %s deleted', n_tup_ins, n_tup_upd, n_tup_del) FROM pg_stat_user_tables WHERE relname = 'ledger'`),
		"an object that is as it should be is not written")
}
