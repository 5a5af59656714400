package faults_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"
)

// probeKeys are keys of num whose calls are never made to fail, so that recovery can be measured. See prober.
const probeKeys = 900_000_000

// headerReplica tells the target which process calls.
const headerReplica = "X-Replica"

// endpoint is a webhook target: it keeps objects in memory, journals every call, and fails as it is told.
type endpoint struct {
	plan    targetPlan
	journal *journal
	server  *http.Server
	url     string
	cluster *kubeCluster // nil: it is a webhook

	mu      sync.Mutex // guards what follows
	r       *rand.Rand
	share   float64              // of calls that fail
	down    bool                 // every call is refused
	slow    time.Duration        // how much longer each call takes
	objects map[object]string    // spec by object
	newest  map[object][2]int64  // term and revision of the last call that took effect
	busy    map[object]chan bool // closed when the call at work on an object is done
	counts  map[string]int       // what was done to calls
}

func newEndpoint(w *world, number int) (*endpoint, error) {
	p := w.plan
	e := &endpoint{
		plan: p.Targets[number], journal: &w.journal, r: p.stream(100 + uint64(number)), share: p.Targets[number].Share,
		objects: map[object]string{}, newest: map[object][2]int64{}, busy: map[object]chan bool{}, counts: map[string]int{},
	}
	if e.plan.Driver == "kubernetes" {
		e.cluster = newKubeCluster(w, e)
		return e, nil
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	e.url = "http://" + l.Addr().String()
	e.server = &http.Server{Handler: e, ReadHeaderTimeout: time.Minute}
	go func() { _ = e.server.Serve(l) }() // until close
	return e, nil
}

// close cuts what is still open.
func (e *endpoint) close() { _ = e.server.Close() }

// weather sets which share of calls fails, and whether all do.
func (e *endpoint) weather(share float64, down bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.share, e.down = share, down
}

// lag sets how much longer each call takes.
func (e *endpoint) lag(by time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.slow = by
}

// message is the body of a request.
type message struct {
	Action   string          `json:"action"`
	Target   string          `json:"target"`
	Resource string          `json:"resource"`
	Key      string          `json:"key"`
	Revision int64           `json:"revision"`
	Term     int64           `json:"term"`
	Spec     json.RawMessage `json:"spec"`
}

// versions returns the rows that a spec says it was made from.
func (m message) versions() map[component]int64 {
	state := m.Spec
	if manifests := []kubeObject(nil); json.Unmarshal(m.Spec, &manifests) == nil && len(manifests) > 0 {
		state = json.RawMessage(manifests[0].Data["state"])
	}
	var spec struct {
		Version          int64  `json:"version"`
		Workspace        *int64 `json:"workspace"`
		WorkspaceVersion int64  `json:"workspace_version"`
	}
	if json.Unmarshal(state, &spec) != nil {
		return nil
	}
	rows := map[component]int64{{m.Resource, m.Key}: spec.Version}
	if spec.Workspace != nil {
		rows[component{"workspace", fmt.Sprint(*spec.Workspace)}] = spec.WorkspaceVersion
	}
	return rows
}

func (e *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var m message
	if err != nil || json.Unmarshal(body, &m) != nil {
		return // the client went in the middle of its request
	}
	o := object{m.Target, m.Resource, m.Key}
	c := e.journal.begin(call{
		Object: o, Delete: m.Action == "delete", Term: m.Term, Revision: m.Revision, Versions: m.versions(), Replica: r.Header.Get(headerReplica), Remote: e.plan.Remote,
	})
	done := e.alone(r.Context(), o)
	if done == nil {
		e.journal.end(c, "gone before its turn", true)
		return
	}
	how := e.chance(m)
	outcome, gone := e.act(w, r, how, done, func() (string, *httptest.ResponseRecorder) { return e.take(m, c), nil })
	e.mu.Lock()
	e.counts[how]++
	e.mu.Unlock()
	e.journal.end(c, outcome, gone)
}

// alone waits until no other call is at work on the object, and returns what ends that; nil if the client has gone.
func (e *endpoint) alone(ctx context.Context, o object) func() {
	for {
		e.mu.Lock()
		before := e.busy[o]
		if before == nil {
			mine := make(chan bool)
			e.busy[o] = mine
			e.mu.Unlock()
			return sync.OnceFunc(func() {
				e.mu.Lock()
				defer e.mu.Unlock()
				delete(e.busy, o)
				close(mine)
			})
		}
		e.mu.Unlock()
		select {
		case <-before:
		case <-ctx.Done():
			return nil
		}
	}
}

// What an endpoint does to calls.
const (
	callOK      = "ok"
	callDown    = "401"
	call500     = "500"
	call503     = "503"
	call429     = "429"
	call400     = "400"
	callSlow    = "slow"
	callHang    = "hang"
	callCut     = "cut before the effect"
	callCutLate = "cut after the effect"
	callLie     = "500 after the effect"
)

var callFaults = []string{call500, call500, call503, call400, callSlow, callSlow, callSlow, callHang, callCut, callCutLate, callCutLate, callLie, callLie}

func (e *endpoint) chance(m message) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.down {
		return callDown
	}
	if isProbe(m.Resource, m.Key) || e.r.Float64() >= e.share {
		return callOK
	}
	if e.cluster != nil && e.r.IntN(10) == 0 {
		return call429
	}
	return callFaults[e.r.IntN(len(callFaults))]
}

func isProbe(resource, key string) bool {
	return resource == "num" && strings.HasPrefix(key, "9") && len(key) == 9
}

// act answers a call. A call whose client has gone takes no effect any more. effect returns why the call is refused, and the answer, if
// it is not that of a webhook.
func (e *endpoint) act(
	w http.ResponseWriter, r *http.Request, how string, done func(), effect func() (refused string, answer *httptest.ResponseRecorder),
) (outcome string, gone bool) {
	defer done()
	e.mu.Lock()
	slow := e.slow
	e.mu.Unlock()
	pass(slow, r.Context().Done())
	switch how {
	case callDown:
		http.Error(w, "not today", http.StatusUnauthorized)
		return how, false
	case call500:
		http.Error(w, "broken", http.StatusInternalServerError)
		return how, false
	case call503:
		w.Header().Set("Retry-After", "1")
		http.Error(w, "busy", http.StatusServiceUnavailable)
		return how, false
	case call429:
		w.Header().Set("Retry-After", "1")
		http.Error(w, "too many", http.StatusTooManyRequests)
		return how, false
	case call400:
		http.Error(w, "I do not like it", http.StatusBadRequest)
		return how, false
	case callHang:
		done() // it does nothing, and stands in nobody's way
		<-r.Context().Done()
		return how, true
	case callCut:
		hangUp(w)
		return how, true
	case callSlow:
		e.mu.Lock()
		d := between(e.r, 20*time.Millisecond, 1500*time.Millisecond)
		e.mu.Unlock()
		pass(d, r.Context().Done())
	}
	if r.Context().Err() != nil {
		return how + ", client gone", true
	}
	refused, answer := effect()
	switch {
	case refused != "":
		http.Error(w, refused, http.StatusConflict)
		return refused, false
	case how == callCutLate:
		hangUpInside(w, answer)
		return how, true
	case how == callLie:
		http.Error(w, "broken, or is it", http.StatusInternalServerError)
		return how, false
	}
	if answer == nil {
		w.WriteHeader(http.StatusNoContent)
		return how, false
	}
	maps.Copy(w.Header(), answer.Header())
	w.WriteHeader(answer.Code)
	_, _ = w.Write(answer.Body.Bytes()) // the client may have gone
	return how, false
}

func hangUp(w http.ResponseWriter) { hangUpInside(w, nil) }

// hangUpInside closes the connection after some bytes of the answer, if there is one.
func hangUpInside(w http.ResponseWriter, answer *httptest.ResponseRecorder) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	var text bytes.Buffer
	if answer != nil && answer.Result().Write(&text) == nil {
		_, _ = conn.Write(text.Bytes()[:rand.IntN(text.Len())])
	}
}

const refusedByFence = "409 refused by the fence"

// take lets a call take effect, or says why not.
func (e *endpoint) take(m message, c *call) (refused string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	last := e.newest[c.Object]
	if e.plan.Fences && (m.Term < last[0] || m.Term == last[0] && m.Revision < last[1]) {
		return refusedByFence
	}
	e.newest[c.Object] = [2]int64{m.Term, m.Revision}
	if c.Delete {
		delete(e.objects, c.Object)
	} else {
		e.objects[c.Object] = string(m.Spec)
	}
	e.journal.took(c)
	return ""
}

// contents returns what the target has: spec by object.
func (e *endpoint) contents() map[object]string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.objects)
}
