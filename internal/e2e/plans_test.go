package e2e_test

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// looked is how many rows everybody in the database has read from tables and indexes since counting began, whatever the
// reason. The sessions of processes that have ended have told all of theirs.
func (w *world) looked() int {
	w.t.Helper()
	w.becomes("0", `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'reconciler%'`)
	n, err := strconv.Atoi(w.text(`SELECT (SELECT sum(seq_tup_read) FROM pg_stat_user_tables) + (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes)`))
	require.NoError(w.t, err)
	return n
}

// whole runs the daemon, whose first work is a sync, until that and everything else is done, and returns how many rows
// were read for it.
func (w *world) whole(meanwhile ...string) int {
	w.t.Helper()
	before := w.looked()
	d := w.start()
	const wait = `SELECT reconciler.wait('10min')`
	w.exec(wait)
	for _, sql := range meanwhile {
		w.exec(sql)
	}
	w.exec(wait)
	eventually(w.t, giantPatience, func() error {
		if left := w.text(`SELECT count(*) FROM reconciler.sync_runs WHERE state IN ('requested', 'running')`); left != "0" {
			return fmt.Errorf("%s syncs are not done", left)
		}
		return nil
	}, "the sync is done")
	d.stop()
	return w.looked() - before
}

// Every statement walks an index, or a table once, however many rows there are: counted are all rows that whole runs of the
// binary read, so that no statement is forgotten. A plan that reads a table of a million rows for a page, a batch, a tick
// or a write to the ledger is a thousand times above these bounds.
func TestNoPlanReadsMoreThanItNeedsAtAMillionRows(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`CREATE TABLE apps (id bigint PRIMARY KEY, region text, version bigint NOT NULL DEFAULT 1, state text NOT NULL DEFAULT 'running')`)
	w.exec(`INSERT INTO apps (id, region) SELECT i, 'eu' FROM generate_series(1, $1::int) AS i`, giant)
	w.exec(`CREATE INDEX ON apps (region, id) WHERE state = 'running'`)
	w.exec(`ANALYZE apps`)
	w.exec(`SELECT reconciler.track('app', 'apps', '{id}', 'region', running => $$state = 'running'$$, ignore => '{region,state}')`)
	w.configure([]object{{"name": "eu", "driver": "discard", "guard": object{"max_fraction": 1}, "sync_interval": "off"}}, object{"log": object{"level": "info", "format": "json"}})

	first := w.whole()
	require.Equal(t, strconv.Itoa(giant), w.text(`SELECT count(*) FROM reconciler.ledger WHERE state = 'applied'`))
	w.exec(`VACUUM ANALYZE reconciler.ledger`) // as autovacuum does soon: each row was pending before, in two indexes
	inSync := w.whole()
	const updates, deletes = 200, 100
	var live []string
	for n := range updates {
		live = append(live, fmt.Sprintf(`UPDATE apps SET version = version + 1 WHERE id = %d`, (n+1)*giant/updates))
	}
	for n := range deletes {
		live = append(live, fmt.Sprintf(`DELETE FROM apps WHERE id = %d`, (n+1)*giant/updates))
	}
	changed := w.whole(live...)
	t.Logf("rows read: by a first sync %d; by one that finds nothing to do %d; with %d changes %d", first, inSync, len(live), changed)
	require.Less(t, first, 20*giant, "a first sync")
	require.Less(t, inSync, 10*giant, "a sync that finds nothing to do")
	require.Less(t, changed-inSync, giant/10, "live changes")
}
