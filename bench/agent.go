package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/measure"
)

const (
	near = "near" // the resource of a target that the daemon calls
	far  = "far"  // the resource of a target that an agent calls
	// farAway is the round trip time of a distant agent.
	farAway = 100 * time.Millisecond
)

// farSide is the webhook that both targets call.
type farSide struct {
	*httptest.Server

	sinks map[string]*measure.Sink // by resource
	calls atomic.Int64
}

func newFarSide() *farSide {
	f := &farSide{sinks: map[string]*measure.Sink{near: {}, far: {}}}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		resource, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		f.sinks[resource].Apply(r.Context(), driver.Object{Ref: driver.Ref{Key: key}})
		f.calls.Add(1)
		w.WriteHeader(http.StatusNoContent)
	}))
	return f
}

// target is a config of one that calls the webhook.
func (f *farSide) target(name string) map[string]any {
	return map[string]any{"name": name, "driver": "webhook", "sync_interval": "off", "options": map[string]any{"url": f.URL}}
}

// filled waits for so many calls, and returns how long they took.
func (f *farSide) filled(ctx context.Context, began time.Time, objects int) float64 {
	for f.calls.Load() < int64(objects) {
		select {
		case <-ctx.Done():
			check(ctx.Err())
		case <-time.After(time.Millisecond):
		}
	}
	return time.Since(began).Seconds()
}

// line leads to a server, with a delay each way.
type line struct {
	listener net.Listener
	delay    time.Duration
	bytes    atomic.Int64
}

func newLine(ctx context.Context, server string, delay time.Duration) *line {
	listener := must((&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0"))
	l := &line{listener: listener, delay: delay}
	go func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			out, err := (&net.Dialer{}).DialContext(ctx, "tcp", server)
			if err != nil {
				_ = in.Close()
				continue
			}
			go l.carry(in, out)
			go l.carry(out, in)
		}
	}()
	return l
}

func (l *line) url() string { return "http://" + l.listener.Addr().String() }

// carry copies one direction. What is on its way does not delay what follows.
func (l *line) carry(from, to net.Conn) {
	type chunk struct {
		data []byte
		due  time.Time
	}
	way := make(chan chunk, 1024)
	go func() {
		defer func() { _ = to.Close() }()
		for c := range way {
			time.Sleep(time.Until(c.due))
			if _, err := to.Write(c.data); err != nil {
				_ = from.Close()
			}
		}
	}()
	defer close(way)
	for {
		buffer := make([]byte, 32<<10)
		n, err := from.Read(buffer)
		l.bytes.Add(int64(n))
		if n > 0 {
			way <- chunk{buffer[:n], time.Now().Add(l.delay)}
		}
		if err != nil {
			return
		}
	}
}

// agent starts `reconciler agent` with a new state for a target of the far side, or with the state of before.
func (l *lab) agent(server string, target map[string]any, anew bool) *product {
	state := filepath.Join(l.dir, "agent")
	if anew {
		check(os.RemoveAll(state))
	}
	return l.start("agent", map[string]any{"server": server, "state_dir": state, "listen": "off", "targets": []any{target}})
}

// benchAgent measures the first sync of an agent and its delay, each against the same driver in the daemon, and what it costs at rest.
func benchAgent(ctx context.Context, l *lab) []Figure {
	objects := l.rows(10_000)
	side := newFarSide()
	defer side.Close()
	address := freeAddress(ctx)
	var lines []*line
	for _, delay := range []time.Duration{0, farAway / 2} {
		to := newLine(ctx, address, delay)
		defer func() { _ = to.listener.Close() }()
		lines = append(lines, to)
	}
	var direct []float64
	first := make([][]float64, len(lines))
	for range l.rounds {
		took := l.firstSyncs(ctx, side, objects, address, lines)
		direct = append(direct, took[0])
		for i := range lines {
			first[i] = append(first[i], took[i+1])
		}
	}
	rate := func(seconds []float64) (rates []float64) {
		for _, s := range seconds {
			rates = append(rates, float64(objects)/s)
		}
		return rates
	}
	const against = "the same driver in the daemon"
	what := fmt.Sprintf("first sync of %d objects by an agent", objects)
	figures := []Figure{
		Figure{Bench: "agent", What: what, Unit: "/s", Values: rate(first[0]), Against: against, Limits: rate(direct)}.atLeast(.7, "≥ 0.7"),
		Figure{Bench: "agent", What: what + ", 100 ms away", Unit: "/s", Values: rate(first[1]), Against: against, Limits: rate(direct)}.atLeast(.6, "≥ 0.6"),
	}
	return append(figures, l.agentLive(ctx, side, address, lines[0])...)
}

// firstSyncs returns how long a daemon and an agent at the end of each line take for the first sync.
func (l *lab) firstSyncs(ctx context.Context, side *farSide, objects int, address string, lines []*line) []float64 {
	l.fresh(ctx, agentSchema(objects)...)
	side.calls.Store(0)
	began := time.Now()
	p := l.run(side.target(near))
	took := make([]float64, 1+len(lines))
	took[0] = side.filled(ctx, began, objects)
	p.stop()
	p = l.serveStream(address)
	defer p.stop()
	l.settled(ctx)
	for i, to := range lines {
		side.calls.Store(0)
		began := time.Now()
		a := l.agent(to.url(), side.target(far), true)
		took[i+1] = side.filled(ctx, began, objects)
		a.stop()
	}
	return took
}

// agentLive measures single changes, and an agent at rest.
func (l *lab) agentLive(ctx context.Context, side *farSide, address string, to *line) []Figure {
	l.fresh(ctx, agentSchema(writtenRows)...)
	side.calls.Store(0)
	p := l.serveStream(address, side.target(near))
	defer p.stop()
	l.settled(ctx)
	a := l.agent(to.url(), side.target(far), true)
	defer a.stop()
	side.filled(ctx, time.Now(), 2*writtenRows)
	values := points{}
	for range l.rounds {
		for _, name := range []string{near, far} {
			values.note(name, must(measure.Changes(ctx, side.sinks[name], l.pace(name, slowRate, l.rows(200)))))
		}
	}
	figure := func(point string) Figure {
		return Figure{
			Bench: "agent", What: "20 changes/s, commit to call of an agent, " + point, Unit: "ms", Values: values[far+" "+point],
			Against: "the same driver in the daemon", Limits: values[near+" "+point],
		}
	}
	figures := []Figure{figure("p50"), figure("p99").atMost(2, "≤ 2")}
	rest := max(time.Second, time.Duration(l.scale*float64(90*time.Second))) // an agent returns memory a minute after its last call
	bytes := to.bytes.Load()
	time.Sleep(rest)
	bytes = to.bytes.Load() - bytes
	text := must(os.ReadFile(fmt.Sprintf("/proc/%d/status", a.cmd.Process.Pid)))
	var heap float64 // without what is mapped from the binary and the state, which the kernel takes back when it needs to
	if _, rest, ok := strings.Cut(string(text), "RssAnon:"); ok {
		kib, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
		heap, _ = strconv.ParseFloat(kib, 64)
	}
	what := "agent at rest with " + strconv.Itoa(writtenRows) + " objects: "
	return append(figures,
		Figure{Bench: "agent", What: what + "anonymous memory", Unit: "MiB", Values: []float64{heap / 1024}}.atMost(30, "≤ 30 MiB"),
		Figure{Bench: "agent", What: what + "traffic", Unit: "bytes/s", Values: []float64{float64(bytes) / rest.Seconds()}}.atMost(200, "≤ 200 bytes/s"))
}

// agentSchema makes two tables with so many rows, one for the daemon's target and one for the agent's.
func agentSchema(rows int) (statements []string) {
	for _, name := range []string{near, far} {
		statements = append(statements, fmt.Sprintf(`CREATE TABLE %[1]s (id int PRIMARY KEY, payload text NOT NULL DEFAULT repeat('x', 100), n int NOT NULL DEFAULT 0) WITH (fillfactor = 50);
			INSERT INTO %[1]s SELECT generate_series(1, %[2]d);
			SELECT reconciler.track('%[1]s', '%[1]s', '{id}', '''%[1]s''')`, name, rows))
	}
	return append(statements, `VACUUM ANALYZE`, `CHECKPOINT`)
}

// serveStream starts a daemon that serves the agent's target, and has others.
func (l *lab) serveStream(address string, targets ...map[string]any) *product {
	targets = append(targets, map[string]any{"name": far, "driver": "stream", "sync_interval": "off"})
	return l.start("run", map[string]any{
		"database_url": l.url, "listen": "off", "streams": map[string]any{"listen": address}, "targets": targets,
	})
}
