package faults_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/client"
)

// watchersOf is how many programs follow the stream of a world.
const watchersOf = 2

// watcher follows a stream as docs/streams.md tells clients to, through a balancer over the processes that run.
type watcher struct {
	world  *world
	name   string
	target string

	acknowledges bool  // the ledger waits for what it reports: see agent
	life         int64 // of the agent

	mu      sync.Mutex // guards what follows
	objects map[object]client.Object
	named   map[object]bool // in the snapshot that is under way; nil: none is
	calls   []call          // what it has done, as calls to a target
	ended   error
}

// startWatchers begins to follow the stream of the world, if it has one.
func (w *world) startWatchers(ctx context.Context, run func(func())) {
	t := w.plan.Targets[len(w.plan.Targets)-1]
	if t.Driver != "stream" {
		return
	}
	for i := range watchersOf {
		x := &watcher{
			world: w, name: fmt.Sprintf("watcher %d", i), target: t.Name,
			objects: map[object]client.Object{}, named: map[object]bool{},
		}
		w.watchers = append(w.watchers, x)
		run(func() { x.follow(ctx) })
	}
	if w.plan.Ack {
		w.startAgent(ctx, run)
	}
}

// cutConn is a connection that breaks when so many bytes have come over it: in the middle of a header, a frame or a snapshot.
type cutConn struct {
	net.Conn

	left int
}

func (c *cutConn) Read(b []byte) (int, error) {
	if c.left <= 0 {
		return 0, errors.Join(errors.New("cut by the test"), c.Close())
	}
	n, err := c.Conn.Read(b[:min(len(b), c.left)])
	c.left -= n
	return n, err
}

// balancer connects to one of the processes that serve streams, as a load balancer does. It cuts every other connection at
// some time.
func (w *world) balancer() *http.Client {
	return &http.Client{Transport: &http.Transport{
		ResponseHeaderTimeout: 3 * time.Second,
		DisableKeepAlives:     true,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			var addresses []string
			for _, r := range w.replicas {
				if address := r.serves(); address != "" {
					addresses = append(addresses, address)
				}
			}
			if len(addresses) == 0 {
				return nil, errors.New("no process serves streams")
			}
			conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, network, addresses[rand.IntN(len(addresses))])
			if err == nil && rand.IntN(2) == 0 {
				conn = &cutConn{conn, 1 << (8 + rand.IntN(10))}
			}
			return conn, err
		},
	}}
}

// serves returns where the process of the replica serves streams, or "".
func (r *replica) serves() string {
	r.mu.Lock()
	p := r.current
	r.mu.Unlock()
	if p == nil {
		return ""
	}
	select {
	case <-p.exited:
		return ""
	default:
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.streams
}

func (x *watcher) follow(ctx context.Context) {
	c, err := client.New("http://127.0.0.1", client.HTTPClient(x.world.balancer()))
	if err != nil {
		x.world.violate("tester", "%v", err)
		return
	}
	for f, err := range c.Watch(ctx, x.target, client.WatchOptions{}) {
		if err != nil {
			x.mu.Lock()
			x.ended = err
			x.mu.Unlock()
			if ctx.Err() == nil && !errors.Is(err, client.ErrReleased) && !errors.Is(err, client.ErrNotFound) {
				x.world.violate("stream", "%s ended: %v", x.name, err)
			}
			return
		}
		x.take(f)
	}
}

// take does what a client does with a frame.
func (x *watcher) take(f client.Frame) {
	x.mu.Lock()
	defer x.mu.Unlock()
	o := object{x.target, f.Resource, f.Key}
	x.world.count("frames "+string(f.Type), 1)
	switch f.Type {
	case client.Upsert, client.Keep:
		if x.named != nil {
			x.named[o] = true
		}
		if have, ok := x.objects[o]; f.Type == client.Upsert && (!ok || f.Version > have.Version) {
			x.objects[o] = f.Object
			x.note(o, message{Resource: o.Resource, Key: o.Key, Spec: f.Spec}.versions())
		}
	case client.Delete:
		if have, ok := x.objects[o]; ok && f.Version > have.Version {
			x.remove(o)
		}
	case client.Reset:
		x.named = map[object]bool{}
		for o, have := range x.objects {
			have.Version = 0 // of another stream, or of a history that was undone
			x.objects[o] = have
		}
	case client.EndOfSnapshot:
		for o := range maps.Clone(x.objects) {
			if !x.named[o] {
				x.remove(o)
			}
		}
		x.named = nil
	case client.Checkpoint, client.Waiting:
	}
}

func (x *watcher) remove(o object) {
	delete(x.objects, o)
	x.note(o, nil)
}

func (x *watcher) note(o object, versions map[component]int64) {
	x.calls = append(x.calls, call{Object: o, Delete: versions == nil, Term: x.life, Versions: versions, Replica: x.name, Begin: time.Now(), Effect: true, Outcome: "followed"})
}

// contents returns what the watcher has; nothing while a snapshot is under way.
func (x *watcher) contents() map[object]string {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.named != nil {
		return nil
	}
	have := map[object]string{}
	for o, is := range x.objects {
		have[o] = string(is.Spec)
	}
	return have
}

// compareStream says what watchers do not have as they should, when they have had time to hear of it. For what is acknowledged
// wait() has waited.
func (w *world) compareStream(want map[object]string) (found []violation) {
	for _, x := range w.watchers {
		if x.target == w.drained {
			continue
		}
		var wrong []violation
		for begun := time.Now(); time.Since(begun) < patience; pass(100*time.Millisecond, w.t.Context().Done()) {
			if wrong = differences(want, x.contents()); len(wrong) == 0 || x.acknowledges {
				break
			}
		}
		for _, v := range wrong {
			v.What, v.Text = "S1 stream", x.name+": "+v.Text
			found = append(found, v)
		}
		w.count("objects of watchers at rest", len(want))
	}
	return found
}

// streamFuzz is by how much later than a call a watcher may hear of it: its process was frozen, or cut off.
const streamFuzz = 30 * time.Second

// judgeStream asks the oracles about what watchers have done. S1, S2, S4, S7.
func (w *world) judgeStream(m *model) (found []violation) {
	if !w.judgeFrom.IsZero() {
		return nil // they may have heard at any time of what was undone
	}
	for _, x := range w.watchers {
		x.mu.Lock()
		calls := slices.DeleteFunc(slices.Clone(x.calls), func(c call) bool {
			return slices.Contains(unwatched, c.Object.Resource) || c.Object.Target == w.drained
		})
		x.mu.Unlock()
		found = append(found, staleCalls(m, calls)...)
		found = append(found, unknownSpecs(m, calls)...)
		found = append(found, baselessDeletes(m, calls, streamFuzz)...)
		if x.acknowledges {
			last, err := w.acknowledged()
			if err != nil {
				w.violate("tester", "read the ledger: %v", err)
			}
			found = append(found, last...)
		}
		w.count("changes that watchers have followed", len(calls))
	}
	return found
}

// A watcher removes what a delete names and what a whole snapshot leaves out, and nothing else.
func TestWatcherConcludesWhatItMay(t *testing.T) {
	t.Parallel()
	x := &watcher{world: &world{counts: map[string]int{}}, target: "eu", objects: map[object]client.Object{}, named: map[object]bool{}}
	frame := func(kind client.FrameType, key string, version int64) {
		x.take(client.Frame{Type: kind, Object: client.Object{Resource: "num", Key: key, Version: version, Spec: fmt.Appendf(nil, `{"version": %d}`, version)}})
	}
	has := func(want string) {
		t.Helper()
		var have []string
		for o, is := range x.contents() {
			have = append(have, o.Key+is)
		}
		slices.Sort(have)
		require.Equal(t, want, strings.Join(have, " "))
	}
	for i, key := range []string{"1", "2", "3", "4"} {
		frame(client.Upsert, key, int64(i+1))
	}
	has("")
	frame(client.EndOfSnapshot, "", 0)
	has(`1{"version": 1} 2{"version": 2} 3{"version": 3} 4{"version": 4}`)
	frame(client.Upsert, "1", 9)
	frame(client.Upsert, "1", 8)
	frame(client.Delete, "1", 7)
	frame(client.Delete, "2", 10)
	has(`1{"version": 9} 3{"version": 3} 4{"version": 4}`)
	frame(client.Reset, "", 0)
	frame(client.Upsert, "1", 2) // the versions of another history are lower
	frame(client.Keep, "3", 0)
	require.Len(t, x.objects, 3, "nothing is removed before the end")
	frame(client.EndOfSnapshot, "", 0)
	has(`1{"version": 2} 3{"version": 3}`)

	var removed []string
	for _, c := range x.calls {
		if c.Delete {
			removed = append(removed, c.Object.Key)
		}
	}
	require.Equal(t, []string{"2", "4"}, removed)
	require.Equal(t, map[component]int64{{"num", "1"}: 9}, x.calls[4].Versions)
}
