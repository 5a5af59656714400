package watch_test

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A small report reads what it names, and a complete one each row a few times, whatever the planner knows of the tables.
func TestReportReadsWhatItNames(t *testing.T) {
	t.Parallel()
	const rows = 5000
	b := setup(t)
	b.db.Exec(t, `ALTER TABLE reconciler.observations SET (autovacuum_enabled = off); ALTER TABLE reconciler.published SET (autovacuum_enabled = off)`)
	b.db.Exec(t, `INSERT INTO reconciler.published (target_id, resource, key, version, revision, spec, hash, bytes)
		SELECT $1, 'app', 'object-' || i, nextval('reconciler.published_seq'), 1, '{}', '\x00112233445566778899aabbccddeeff', 2 FROM generate_series(1, $2::int) AS i`, b.target, rows)
	b.db.Exec(t, `ALTER TABLE reconciler.ledger SET (autovacuum_enabled = off)`)
	b.db.Exec(t, `INSERT INTO reconciler.ledger (target_id, resource_id, key, state, wanted, present, next_attempt_at)
		SELECT $1, r.id, 'object-' || i, 'pending', true, true, clock_timestamp() + interval '1 hour' FROM generate_series(1, $2::int) AS i, reconciler.resources r WHERE r.name = 'app'`, b.target, rows)
	for seq, statistics := range []string{"none", "fresh"} {
		require.Less(t, b.blocks(`SELECT reconciler.report(%target, 's', %seq, true, 0, array_agg('app'::text), array_agg('object-' || i), array_agg(i::bigint), array_agg('applied'::text),
			array_agg(''::text), array_agg(''::text), array_agg(''::text)) FROM generate_series(1, 5000) AS i`, 2*seq+1), 20*rows, statistics)
		require.Less(t, b.blocks(`SELECT reconciler.report(%target, 's', %seq, false, 0, '{app}', '{object-7}', '{7}', '{failed}', '{""}', '{""}', '{""}')`, 2*seq+2), 200, statistics)
		require.Less(t, b.blocks(`SELECT count(*) FROM (SELECT array_agg('app'::text) AS resources, array_agg('object-' || i) AS keys, array_agg('\x00112233445566778899aabbccddeeff'::bytea) AS hashes
			FROM generate_series(1, 5000) AS i) AS k CROSS JOIN reconciler.acknowledged(%target, k.resources, k.keys, k.hashes)`, 0), 20*rows, statistics)
		require.Less(t, b.blocks(`SELECT reconciler.look_again(%target, true, array_agg('app'::text), array_agg('object-' || i)) FROM generate_series(1, 5000) AS i`, 0), 30*rows, statistics)
		b.db.Exec(t, `UPDATE reconciler.ledger SET next_attempt_at = clock_timestamp() + interval '1 hour'`)
		require.Less(t, b.blocks(`SELECT reconciler.look_again(%target, false, array_agg('app'::text), array_agg('object-' || i)) FROM generate_series(1, 5000) AS i`, 0), 30*rows, statistics)
		b.db.Exec(t, `ANALYZE reconciler.published, reconciler.observations, reconciler.ledger`)
	}
}

var blocksRead = regexp.MustCompile(`shared hit=(\d+)(?: read=(\d+))?`)

// blocks returns how many blocks a report reads.
func (b *bed) blocks(sql string, seq int) int {
	b.t.Helper()
	sql = strings.NewReplacer("%target", strconv.Itoa(int(b.target)), "%seq", strconv.Itoa(seq)).Replace(sql)
	rows, err := b.pool.Query(b.t.Context(), "EXPLAIN (ANALYZE, BUFFERS, COSTS off, TIMING off) "+sql)
	require.NoError(b.t, err)
	defer rows.Close()
	most := 0
	for rows.Next() {
		var line string
		require.NoError(b.t, rows.Scan(&line))
		if m := blocksRead.FindStringSubmatch(line); m != nil {
			hit, _ := strconv.Atoi(m[1])
			read, _ := strconv.Atoi(m[2])
			most = max(most, hit+read)
		}
	}
	require.NoError(b.t, rows.Err())
	require.Positive(b.t, most)
	return most
}
