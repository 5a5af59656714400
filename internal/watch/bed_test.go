package watch_test

import (
	"bufio"
	"context"
	"encoding/hex"
	"encoding/json"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/budget"
	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/loop"
	"github.com/pgreconciler/reconciler/internal/metrics"
	"github.com/pgreconciler/reconciler/internal/pgtest"
	"github.com/pgreconciler/reconciler/internal/stream"
	"github.com/pgreconciler/reconciler/internal/watch"
)

const deadline = pgtest.Patience

// bed is a stream target with a publisher, and a process that serves it.
type bed struct {
	t         testing.TB
	db        *pgtest.DB
	pool      *pgxpool.Pool
	publisher *stream.Publisher
	hub       *watch.Hub
	metrics   *metrics.Metrics
	server    *httptest.Server
	draining  <-chan struct{}
	access    *watch.Access
	drain     context.CancelFunc
	halt      func() // ends the hub, which then has what it has read last
	target    int32
	resource  int32
	revision  int64
}

// small has the hub read and keep little, so that few changes are many.
func small(rows int32, bytes int64) func(*watch.Hub) {
	return func(h *watch.Hub) { h.Small(rows, bytes) }
}

func setup(t *testing.T, change ...func(*watch.Hub)) *bed {
	t.Helper()
	return setupBench(t, change...)
}

func setupBench(t testing.TB, change ...func(*watch.Hub)) *bed {
	t.Helper()
	b := &bed{t: t, db: pgtest.New(t)}
	b.pool = b.db.Pool
	instance := uuid.NewString()
	b.query(`INSERT INTO reconciler.instances (id, name, version) VALUES ($1, 'here:1', 'test') RETURNING name`, new(string), instance)
	b.query(`INSERT INTO reconciler.targets (name, configured, driver, owner, term) VALUES ('eu', true, 'stream', $1, 1) RETURNING id`, &b.target, instance)
	b.db.Exec(t, `CREATE TABLE app (id text PRIMARY KEY)`)
	b.db.Exec(t, `SELECT reconciler.track(resource => 'app', relation => 'app', key => '{id}', target => $$'eu'$$, running => 'true')`)
	b.query(`SELECT id FROM reconciler.resources`, &b.resource)

	b.metrics = metrics.New(prometheus.NewRegistry())
	cfg, err := pgxpool.ParseConfig(b.db.URL)
	require.NoError(t, err)
	maps.Copy(cfg.ConnConfig.RuntimeParams, database.WatchSession())
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	b.hub = watch.NewHub(watch.Config{
		DB: pool, Instance: instance, Metrics: b.metrics, Loops: loop.New(slog.New(slog.DiscardHandler), b.metrics), Published: make(chan struct{}),
		Budget: budget.New(192 << 20),
	})
	for _, c := range change {
		c(b.hub)
	}
	d, err := stream.Kind().Open("eu", driver.Options{}, driver.Env{})
	require.NoError(t, err)
	b.publisher = d.(*stream.Publisher)
	require.NoError(t, b.publisher.Own(t.Context(), stream.Owner{
		Pool: b.pool, TargetID: b.target, Instance: instance, Term: 1, Published: func(bool) { b.hub.Wake() },
	}))

	run, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = b.hub.Run(run)
	}()
	draining, drain := context.WithCancel(context.Background())
	b.drain = drain
	b.draining = draining.Done()
	b.server = b.serve(config.Streams{})
	b.halt = func() {
		stop()
		<-done
	}
	t.Cleanup(func() {
		drain()
		b.halt()
	})
	return b
}

// serve serves the streams to those who have a token of the config.
func (b *bed) serve(cfg config.Streams) *httptest.Server {
	b.t.Helper()
	access, err := watch.NewAccess(cfg, os.Getenv, nil)
	require.NoError(b.t, err)
	b.access = access
	server := httptest.NewServer(watch.NewHandler(b.hub, access, "an-installation", []string{"soon"}, b.draining))
	b.t.Cleanup(server.Close)
	return server
}

// sent returns how many frames were written for the stream.
func (b *bed) sent() int {
	var m dto.Metric
	require.NoError(b.t, b.metrics.StreamFrames.WithLabelValues("eu").Write(&m))
	return int(m.GetCounter().GetValue())
}

func (b *bed) query(sql string, into any, args ...any) {
	b.t.Helper()
	require.NoError(b.t, b.db.Pool.QueryRow(b.t.Context(), sql, args...).Scan(into))
}

func (b *bed) complete() {
	b.t.Helper()
	require.NoError(b.t, b.publisher.Complete(b.t.Context()))
	b.hub.Wake()
}

func (b *bed) ref(resource, key string) driver.Ref {
	b.revision++
	return driver.Ref{Target: "eu", Resource: resource, Key: key, Revision: b.revision, Term: 1}
}

// apply publishes objects of the resource app, each with the spec.
func (b *bed) apply(spec string, keys ...string) {
	b.t.Helper()
	b.applyOf("app", spec, keys...)
}

func (b *bed) applyOf(resource, spec string, keys ...string) {
	b.t.Helper()
	objects := make([]driver.Object, len(keys))
	for i, key := range keys {
		objects[i] = driver.Object{Ref: b.ref(resource, key), Spec: []byte(spec), Hash: driver.HashSpec([]byte(spec))}
	}
	for _, outcome := range b.publisher.ApplyBatch(b.t.Context(), objects) {
		require.Equal(b.t, driver.Done(), outcome)
	}
}

func (b *bed) remove(keys ...string) {
	b.t.Helper()
	for _, key := range keys {
		require.Equal(b.t, driver.Done(), b.publisher.Delete(b.t.Context(), b.ref("app", key)))
	}
}

// unsettled has a row want an object that is not published.
func (b *bed) unsettled(key, state, heldBy string) {
	b.t.Helper()
	b.db.Exec(b.t, `INSERT INTO reconciler.ledger (target_id, resource_id, key, state, held_by, wanted, present, next_attempt_at)
		VALUES ($1, $2, $3, $4::text::reconciler.object_state, nullif($5, ''), true, false, CASE WHEN $4 IN ('pending', 'failing') THEN clock_timestamp() END)`, b.target, b.resource, key, state, heldBy)
}

// frame is any frame.
type frame struct {
	Type     string          `json:"type"`
	Resource string          `json:"resource"`
	Key      string          `json:"key"`
	Version  int64           `json:"version"`
	Revision *int64          `json:"revision"`
	Hash     string          `json:"hash"`
	Spec     json.RawMessage `json:"spec"`
	Bookmark string          `json:"bookmark"`
	Reason   string          `json:"reason"`
}

// String describes a frame without what differs between two runs.
func (f frame) String() string {
	switch f.Type {
	case "upsert":
		return f.Key + "=" + string(f.Spec)
	case "delete":
		return f.Key + "=-"
	case "keep":
		return "keep " + f.Key + " " + f.Reason
	case "reset", "waiting", "closed":
		return f.Type + " " + f.Reason
	}
	return f.Type
}

// follower reads a response.
type follower struct {
	b        *bed
	response *http.Response
	lines    *bufio.Reader
	bookmark string // the newest
}

const objects = "/v1/targets/eu/objects"

// follow asks for a path with parameters: name, value, name, value.
func (b *bed) follow(params ...string) *follower {
	b.t.Helper()
	return b.followAs("", params...)
}

// followAs is follow with a token.
func (b *bed) followAs(token string, params ...string) *follower {
	b.t.Helper()
	query := url.Values{"watch": {"true"}}
	for i := 0; i < len(params); i += 2 {
		query.Add(params[i], params[i+1])
	}
	if query["watch"][len(query["watch"])-1] == "" {
		query.Del("watch")
	}
	request, err := http.NewRequestWithContext(b.t.Context(), http.MethodGet, b.server.URL+objects+"?"+query.Encode(), nil)
	require.NoError(b.t, err)
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := http.DefaultClient.Do(request)
	require.NoError(b.t, err)
	b.t.Cleanup(func() { _ = response.Body.Close() })
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(response.Body)
		require.Equal(b.t, http.StatusOK, response.StatusCode, string(text))
	}
	return &follower{b: b, response: response, lines: bufio.NewReader(response.Body)}
}

// next returns the next frame, and false at the end of the response.
func (f *follower) next() (frame, bool) {
	line, err := f.lines.ReadBytes('\n')
	if err != nil {
		return frame{}, false
	}
	var next frame
	require.NoError(f.b.t, json.Unmarshal(line, &next), "%s", line)
	if next.Bookmark != "" {
		f.bookmark = next.Bookmark
	}
	if next.Type == "upsert" {
		hash := driver.HashSpec(next.Spec)
		require.Equal(f.b.t, hex.EncodeToString(hash[:]), next.Hash, "the hash is that of the text of the spec")
	}
	return next, true
}

// until returns what comes up to the first frame with this description, without checkpoints that are not asked for.
func (f *follower) until(last string) (seen []string) {
	f.b.t.Helper()
	for {
		next, ok := f.next()
		require.True(f.b.t, ok, "the response ends after %v, before %q", seen, last)
		if text := next.String(); text == last || text != "checkpoint" {
			seen = append(seen, text)
			if text == last {
				return seen
			}
		}
	}
}

// rest returns what comes up to the end of the response.
func (f *follower) rest() (seen []string) {
	for {
		next, ok := f.next()
		if !ok {
			return seen
		}
		if text := next.String(); text != "checkpoint" {
			seen = append(seen, text)
		}
	}
}

func (f *follower) close() { _ = f.response.Body.Close() }
