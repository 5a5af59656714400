package watch_test

import (
	"bytes"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// inventoryRows is how many objects a report of the benchmark names.
const inventoryRows = 100_000

// cost is what something took: time, and bytes that were written ahead.
type cost struct {
	seconds, wal float64
}

func (b *bed) cost(do func()) (c cost) {
	b.t.Helper()
	b.db.Exec(b.t, `CHECKPOINT`)
	var from string
	b.query(`SELECT pg_current_wal_insert_lsn()::text`, &from)
	began := time.Now()
	do()
	c.seconds = time.Since(began).Seconds()
	b.query(`SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), $1::text::pg_lsn)::float8`, &c.wal, from)
	return c
}

// BenchmarkInventory measures complete reports of 100,000 objects, first, unchanged and with one changed in a hundred, and an unchanged
// one that is not complete, beside COPY of the same rows into a table with the same columns and primary key.
func BenchmarkInventory(bench *testing.B) {
	b := setupBench(bench)
	b.db.Exec(bench, `INSERT INTO reconciler.published (target_id, resource, key, version, revision, spec, hash, bytes)
		SELECT $1, 'app', 'object-' || i, nextval('reconciler.published_seq'), 1, '{}', '\x00112233445566778899aabbccddeeff', 2 FROM generate_series(1, $2::int) AS i`, b.target, inventoryRows)
	b.db.Exec(bench, `ANALYZE reconciler.published`)
	inventory := func(seq int, complete bool, every int, state string) *bytes.Reader {
		var text bytes.Buffer
		fmt.Fprintln(&text, head("s", seq, complete))
		for i := 1; i <= inventoryRows; i++ {
			s := "applied"
			if i%every == 0 {
				s = state
			}
			fmt.Fprintf(&text, `{"resource":"app","key":"object-%d","version":%d,"state":%q,"healthy":true,"message":"rollout finished","status":{"ready":3,"replicas":3}}`+"\n", i, i, s)
		}
		fmt.Fprintln(&text, end)
		return bytes.NewReader(text.Bytes())
	}
	seq := 0
	send := func(complete bool, every int, state string) cost {
		seq++
		body := inventory(seq, complete, every, state)
		return b.cost(func() {
			status, text := b.post(observations, body)
			require.Equal(bench, http.StatusOK, status, text)
		})
	}
	for bench.Loop() {
		b.db.Exec(bench, `TRUNCATE reconciler.observations`)
		first := send(true, 1, "applied")
		b.db.Exec(bench, `DROP TABLE IF EXISTS copied; CREATE TABLE copied (LIKE reconciler.observations INCLUDING ALL)`)
		limit := b.cost(func() { b.copyObservations() })
		unchanged, changed, partial := send(true, 1, "applied"), send(true, 100, "progressing"), send(false, 100, "progressing")
		for name, c := range map[string]cost{"first": first, "unchanged": unchanged, "changed-1%": changed, "partial": partial} {
			bench.ReportMetric(c.seconds, name+"-s")
			bench.ReportMetric(c.seconds/limit.seconds, name+"-s/copy")
			bench.ReportMetric(c.wal/1e6, name+"-wal-MB")
			bench.ReportMetric(c.wal/limit.wal, name+"-wal/copy")
		}
		bench.ReportMetric(limit.seconds, "copy-s")
		bench.ReportMetric(limit.wal/1e6, "copy-wal-MB")
	}
}

// copyObservations copies the rows that were reported into the table copied.
func (b *bed) copyObservations() {
	b.t.Helper()
	conn, err := b.db.Pool.Acquire(b.t.Context())
	require.NoError(b.t, err)
	defer conn.Release()
	now := time.Now()
	n, err := conn.CopyFrom(b.t.Context(), pgx.Identifier{"copied"},
		[]string{"target_id", "resource_id", "key", "version", "state", "message", "healthy", "status", "session", "seq", "observed_at"},
		pgx.CopyFromSlice(inventoryRows, func(i int) ([]any, error) {
			return []any{b.target, b.resource, fmt.Sprintf("object-%d", i+1), int64(i + 1), "applied", "rollout finished", true, `{"ready":3,"replicas":3}`, int64(1), int64(1), now}, nil
		}))
	require.NoError(b.t, err)
	require.EqualValues(b.t, inventoryRows, n)
}
