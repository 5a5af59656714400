package watch_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// bare is what a handler of net/http costs that sends a line to all at once, and one to each every 15 s.
type bare struct {
	mu     sync.Mutex // guards next
	next   chan struct{}
	line   []byte
	served atomic.Int64
}

func (b *bare) wait() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.next
}

func (b *bare) send() {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.next)
	b.next = make(chan struct{})
}

func (b *bare) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctl := http.NewResponseController(w)
	timer := time.NewTimer(15 * time.Second)
	defer timer.Stop()
	for {
		next := b.wait()
		_ = ctl.SetWriteDeadline(time.Now().Add(time.Minute))
		_, _ = w.Write(b.line)
		_ = ctl.Flush()
		b.served.Add(1)
		select {
		case <-next:
		case <-timer.C:
			timer.Reset(15 * time.Second)
		case <-r.Context().Done():
			return
		}
	}
}

// dial opens connections that ask for a path. They read nothing: what is sent to them stays in the kernel.
func dial(tb testing.TB, server *httptest.Server, path string, n int) []net.Conn {
	tb.Helper()
	conns := make([]net.Conn, n)
	for i := range conns {
		conn, err := (&net.Dialer{}).DialContext(tb.Context(), "tcp", server.Listener.Addr().String())
		require.NoError(tb, err)
		_, err = io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: localhost\r\n\r\n")
		require.NoError(tb, err)
		conns[i] = conn
	}
	return conns
}

func inUse() float64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc + m.StackInuse)
}

func processor() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func until(is func() bool) {
	for !is() {
		time.Sleep(time.Millisecond)
	}
}

const watching = 8000

// BenchmarkWatchers compares idle watchers, and one change that is sent to all of them, with a bare handler.
func BenchmarkWatchers(b *testing.B) {
	for b.Loop() {
		h := &bare{next: make(chan struct{}), line: []byte(`{"type":"checkpoint","bookmark":"` + fmt.Sprintf("%0100d", 1) + `","revision":1}` + "\n")}
		server := httptest.NewServer(h)
		before := inUse()
		conns := dial(b, server, "/", watching)
		until(func() bool { return h.served.Load() >= watching })
		bareBytes := (inUse() - before) / watching
		var bareTime, bareCPU time.Duration
		for range rounds {
			start, cpu, served := time.Now(), processor(), h.served.Load()
			h.send()
			until(func() bool { return h.served.Load() >= served+watching })
			bareTime, bareCPU = bareTime+time.Since(start), bareCPU+processor()-cpu
		}
		for _, conn := range conns {
			_ = conn.Close()
		}
		server.Close()

		bed := setupBench(b)
		bed.apply(`1`, "a")
		bed.complete()
		before = inUse()
		conns = dial(b, bed.server, objects+"?watch=true", watching)
		until(func() bool { _, _, n := bed.hub.Watched(); return n == watching && bed.sent() >= 3*watching }) // object, checkpoint, end
		ourBytes := (inUse() - before) / watching
		var ourTime, ourCPU time.Duration
		for i := range rounds {
			start, cpu, sent := time.Now(), processor(), bed.sent()
			bed.apply(strconv.Itoa(2+i), "a")
			until(func() bool { return bed.sent() >= sent+2*watching }) // object, checkpoint
			ourTime, ourCPU = ourTime+time.Since(start), ourCPU+processor()-cpu
		}
		for _, conn := range conns {
			_ = conn.Close()
		}
		b.ReportMetric(ourBytes, "B/watcher")
		b.ReportMetric(ourBytes/bareBytes, "memory/bare")
		b.ReportMetric(ourTime.Seconds()/bareTime.Seconds(), "broadcast/bare")
		b.ReportMetric(ourCPU.Seconds()/bareCPU.Seconds(), "broadcast-cpu/bare")
		b.ReportMetric(float64(ourTime.Milliseconds())/rounds, "ms/broadcast")
		b.ReportMetric(0, "ns/op")
	}
}

const rounds = 10

// BenchmarkSnapshot compares a snapshot with a bare read of the same rows by key with pgx.
func BenchmarkSnapshot(b *testing.B) {
	const rows = 500_000
	bed := setupBench(b)
	bed.db.Exec(b, `INSERT INTO reconciler.published (target_id, resource, key, version, revision, spec, hash, bytes)
		SELECT $1, 'app', 'object-' || i, nextval('reconciler.published_seq'), 1, s.spec, substr(sha256(s.spec::text::bytea), 1, 16), octet_length(s.spec::text)
		FROM generate_series(1, $2::int) AS i, LATERAL (SELECT jsonb_build_object('image', 'registry.example.org/app:' || i, 'replicas', 3, 'region', 'eu') AS spec) AS s`, bed.target, rows)
	bed.db.Exec(b, `VACUUM ANALYZE reconciler.published`)
	bed.complete()
	for b.Loop() {
		start := time.Now()
		n, key := 0, ""
		for {
			page, err := bed.db.Pool.Query(b.Context(), `SELECT key, spec::text, hash FROM reconciler.published WHERE target_id = $1 AND resource = 'app' AND key > $2 AND spec IS NOT NULL ORDER BY key LIMIT 1000`, bed.target, key)
			require.NoError(b, err)
			count := 0
			for page.Next() {
				var spec string
				var hash []byte
				require.NoError(b, page.Scan(&key, &spec, &hash))
				count++
			}
			require.NoError(b, page.Err())
			if n += count; count == 0 {
				break
			}
		}
		require.Equal(b, rows, n)
		direct := time.Since(start)

		start = time.Now()
		request, err := http.NewRequestWithContext(b.Context(), http.MethodGet, bed.server.URL+objects, nil)
		require.NoError(b, err)
		request.Header.Set("Accept-Encoding", "identity")
		response, err := http.DefaultClient.Do(request)
		require.NoError(b, err)
		lines := 0
		for scan := bufio.NewScanner(response.Body); scan.Scan(); {
			lines++
		}
		require.NoError(b, response.Body.Close())
		require.Greater(b, lines, rows)
		ours := time.Since(start)
		b.ReportMetric(rows/ours.Seconds(), "objects/s")
		b.ReportMetric(direct.Seconds()/ours.Seconds(), "of-a-bare-read")
		b.ReportMetric(0, "ns/op")
	}
}

// BenchmarkDeletes compares the publishing of deletes with that of objects.
func BenchmarkDeletes(b *testing.B) {
	const rows, batch = 100_000, 500
	bed := setupBench(b)
	for b.Loop() {
		var applies, deletes time.Duration
		for i := 0; i < rows; i += batch {
			objs, refs := make([]driver.Object, batch), make([]driver.Ref, batch)
			for j := range objs {
				spec := []byte(fmt.Sprintf(`{"image": "app:%d"}`, i+j))
				objs[j] = driver.Object{Ref: bed.ref("app", strconv.Itoa(i+j)), Spec: spec, Hash: driver.HashSpec(spec)}
				refs[j] = objs[j].Ref
			}
			start := time.Now()
			require.Equal(b, driver.Done(), bed.publisher.ApplyBatch(context.Background(), objs)[0])
			applied := time.Now()
			require.Equal(b, driver.Done(), bed.publisher.DeleteBatch(context.Background(), refs)[0])
			applies, deletes = applies+applied.Sub(start), deletes+time.Since(applied)
		}
		b.ReportMetric(deletes.Seconds()/applies.Seconds(), "deletes/applies")
		b.ReportMetric(rows/applies.Seconds(), "applies/s")
		b.ReportMetric(0, "ns/op")
	}
}

// BenchmarkResumes has watchers come back at once, as after the restart of a process.
func BenchmarkResumes(b *testing.B) {
	bed := setupBench(b)
	bed.apply(`1`, "a")
	bed.complete()
	f := bed.follow()
	f.until("end_of_snapshot")
	bed.apply(`2`, "a")
	for b.Loop() {
		start, sent := time.Now(), bed.sent()
		conns := dial(b, bed.server, objects+"?watch=true&since="+f.bookmark, watching)
		until(func() bool { return bed.sent() >= sent+2*watching }) // object, checkpoint
		b.ReportMetric(time.Since(start).Seconds(), "s/8000")
		b.ReportMetric(0, "ns/op")
		for _, conn := range conns {
			_ = conn.Close()
		}
	}
}

// BenchmarkStuckReader compares the time from a change to a watcher with and without others that read nothing.
func BenchmarkStuckReader(b *testing.B) {
	bed := setupBench(b)
	bed.complete()
	f := bed.follow()
	f.until("end_of_snapshot")
	quantiles := func() (took []time.Duration) {
		for i := range 500 {
			spec := `"` + fmt.Sprintf("%0*d", 10_000, i) + `"`
			start := time.Now()
			bed.apply(spec, "a")
			for {
				if next, _ := f.next(); next.Type == "upsert" {
					break
				}
			}
			took = append(took, time.Since(start))
		}
		slices.Sort(took)
		return took
	}
	for b.Loop() {
		alone := quantiles()
		conns := dial(b, bed.server, objects+"?watch=true", 10)
		beside := quantiles()
		for _, conn := range conns {
			_ = conn.Close()
		}
		b.ReportMetric(beside[495].Seconds()/alone[495].Seconds(), "p99-beside/alone")
		b.ReportMetric(beside[250].Seconds()/alone[250].Seconds(), "p50-beside/alone")
		b.ReportMetric(0, "ns/op")
	}
}

// BenchmarkHotObject publishes one object again and again while another transaction stays open, so that no former version can
// be removed. It compares with the same without that transaction.
func BenchmarkHotObject(b *testing.B) {
	const versions = 30_000
	lastMedian := func(bed *bed) time.Duration {
		took := make([]time.Duration, versions)
		for i := range took {
			start := time.Now()
			bed.apply(strconv.Itoa(i), "a")
			took[i] = time.Since(start)
		}
		last := took[versions-500:]
		slices.Sort(last)
		return last[len(last)/2]
	}
	for b.Loop() {
		alone := lastMedian(setupBench(b))
		bed := setupBench(b)
		open, err := bed.db.Pool.BeginTx(b.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
		require.NoError(b, err)
		_, err = open.Exec(b.Context(), `SELECT count(*) FROM reconciler.published`)
		require.NoError(b, err)
		beside := lastMedian(bed)
		require.NoError(b, open.Rollback(b.Context()))
		b.ReportMetric(float64(beside.Microseconds()), "us/version")
		b.ReportMetric(beside.Seconds()/alone.Seconds(), "beside/alone")
		b.ReportMetric(0, "ns/op")
	}
}
