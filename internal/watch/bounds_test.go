package watch_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/budget"
	"github.com/pgreconciler/reconciler/internal/store"
	"github.com/pgreconciler/reconciler/internal/watch"
)

// large is a spec of many bytes, which PostgreSQL stores in few.
func large(bytes int) string { return `"` + strings.Repeat("x", bytes-2) + `"` }

func numbered(name string, n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("%s%03d", name, i)
	}
	return keys
}

// A page has as many bytes as it may have, beside one object, however small its specs are where they are stored.
func TestF151_PagesAreBoundedByTheTextOfSpecs(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.apply(large(1<<20), numbered("a", 8)...)
	var stored, bytes int64
	b.query(`SELECT sum(pg_column_size(spec)) FROM reconciler.published`, &stored)
	b.query(`SELECT sum(bytes) FROM reconciler.published WHERE bytes = octet_length(spec::text)`, &bytes)
	require.Less(t, stored, int64(1<<20))
	require.EqualValues(t, 8<<20, bytes)
	q := store.New(b.pool)
	for most, rows := range map[int64]int{1: 1, 3 << 20: 3, 3<<20 + 2000: 4} {
		page, err := q.StreamPage(t.Context(), store.StreamPageParams{TargetID: b.target, ToResource: "b", Most: 1000, MostBytes: most})
		require.NoError(t, err)
		require.Len(t, page, rows)
		changes, err := q.StreamChanges(t.Context(), store.StreamChangesParams{TargetIds: []int32{b.target}, Afters: []int64{0}, Most: 1000, MostBytes: most})
		require.NoError(t, err)
		require.Len(t, changes, rows)
	}
	b.remove("a000")
	b.query(`SELECT bytes FROM reconciler.published WHERE key = 'a000'`, &bytes)
	require.Zero(t, bytes)
}

// However many streams a process follows, one read has as many bytes as it may have, and reads on where it had no room.
func TestF151_OneReadOfAllStreamsIsBounded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const streams, each, most = 20, 3, 256 << 10
	b.db.Exec(t, `INSERT INTO reconciler.targets (name, configured, driver) SELECT 'other ' || i, true, 'stream' FROM generate_series(2, $1::int) AS i`, streams)
	b.db.Exec(t, `INSERT INTO reconciler.streams (target_id, history) SELECT id, '1 hour' FROM reconciler.targets WHERE driver = 'stream' ON CONFLICT DO NOTHING`)
	b.db.Exec(t, `INSERT INTO reconciler.published (target_id, resource, key, version, revision, spec, hash, bytes)
		SELECT t.id, 'app', i::text, nextval('reconciler.published_seq'), 1, to_jsonb(repeat('x', 99998)), '\x00112233445566778899aabbccddeeff', 100000
		FROM generate_series(1, $1::int) AS i, reconciler.targets t`, each)
	params := store.StreamChangesParams{Most: 1000, MostBytes: most}
	rows, err := b.pool.Query(t.Context(), `SELECT id FROM reconciler.targets ORDER BY id`)
	require.NoError(t, err)
	for rows.Next() {
		var id int32
		require.NoError(t, rows.Scan(&id))
		params.TargetIds, params.Afters = append(params.TargetIds, id), append(params.Afters, 0)
	}
	require.NoError(t, rows.Err())
	seen, unfit := 0, 0
	for reads := 0; seen < streams*each; reads++ {
		require.Less(t, reads, streams*each)
		changes, err := store.New(b.pool).StreamChanges(t.Context(), params)
		require.NoError(t, err)
		bytes, of := 0, map[int32]bool{}
		for _, c := range changes {
			of[c.TargetID] = true
			bytes += len(c.Spec)
			if c.Unfit {
				unfit++
				require.Empty(t, c.Spec)
			} else if c.Version > 0 {
				seen++
				params.Afters[c.TargetID-params.TargetIds[0]] = c.Version
			}
		}
		require.Len(t, of, streams)
		require.LessOrEqual(t, bytes, most+100_000)
	}
	require.Equal(t, streams*each, seen)
	require.Positive(t, unfit)
}

// mostOf looks at a pool again and again, and returns a function that ends this and returns the most that was lent.
func mostOf(t *testing.T, pages *budget.Pool) func() int64 {
	t.Helper()
	var most int64
	done := make(chan struct{})
	var looking sync.WaitGroup
	looking.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			most = max(most, pages.Used())
			select {
			case <-tick.C:
			case <-done:
				return
			}
		}
	})
	end := sync.OnceValue(func() int64 {
		close(done)
		looking.Wait()
		return most
	})
	t.Cleanup(func() { end() })
	return end
}

// Clients that read nothing take no more memory than there is, and give it up for those that read. Objects that are asked for alone
// take of the same.
func TestF151_ClientsThatReadNothingStarveNoOther(t *testing.T) {
	t.Parallel()
	const size, object, silent = 2 << 20, 1 << 20, 12
	pages := budget.NewPool(size)
	b := setup(t, func(h *watch.Hub) {
		h.Lend(pages)
		h.Stall(50 * time.Millisecond)
	})
	keys := numbered("a", 24) // more than sockets take
	b.apply(large(object), keys...)
	b.complete()
	most := mostOf(t, pages)
	for range silent {
		b.follow("watch", "")
		response, err := http.Get(b.server.URL + objects + "/app/a000")
		require.NoError(t, err)
		t.Cleanup(func() { _ = response.Body.Close() })
		require.Equal(t, http.StatusOK, response.StatusCode)
	}
	f := b.follow()
	for range len(keys) {
		for {
			next, ok := f.next()
			require.True(t, ok)
			if next.Type == "upsert" {
				break
			}
		}
	}
	require.Equal(t, []string{"end_of_snapshot"}, f.until("end_of_snapshot"))
	b.apply(large(object), "new")
	require.Equal(t, []string{"new=" + large(object)}, f.until("new="+large(object)), "live frames, too")
	require.LessOrEqual(t, most(), int64(size))
	f.close()
	b.server.CloseClientConnections()
	require.Eventually(t, func() bool { return pages.Used() == 0 }, deadline, time.Millisecond)
}

// An object that is asked for waits for memory, and not for ever.
func TestF151_ObjectWaitsForMemory(t *testing.T) {
	t.Parallel()
	pages := budget.NewPool(2 << 20)
	b := setup(t, func(h *watch.Hub) { h.Lend(pages) })
	b.apply("1", "a")
	held := pages.Take(2 << 20)
	answered := make(chan *http.Response, 1)
	go func() {
		response, err := http.Get(b.server.URL + objects + "/app/a")
		if err == nil {
			_ = response.Body.Close()
		}
		answered <- response
	}()
	require.Eventually(t, pages.Waited, deadline, time.Millisecond)
	require.Empty(t, answered)
	held.Return()
	response := <-answered
	require.NotNil(t, response)
	require.Equal(t, http.StatusOK, response.StatusCode)
	require.Eventually(t, func() bool { return pages.Used() == 0 }, deadline, time.Millisecond)
}
