package faults_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
)

// crashEndpoint is a target of the driver webhook. It takes whatever comes, and remembers what should not have come.
type crashEndpoint struct {
	url string

	mu      sync.Mutex // guards what follows
	objects map[string]string
	newest  map[string]int64 // version by object
	wrong   []string
	gate    chan struct{}  // nil: calls do not wait
	late    *crashLate     // nil: no call is late
	refused map[string]int // how many calls for an object are still refused
	open    map[string]*crashCall
}

// crashCall is a call under way.
type crashCall struct {
	client context.Context //nolint:containedctx // ends when the client has gone
	ended  bool            // before that
}

// crashLate is a call that nobody answers, and that takes effect all the same.
type crashLate struct {
	object string
	spec   string
	came   chan struct{} // closed when the call came
}

func newCrashEndpoint(t *testing.T) *crashEndpoint {
	t.Helper()
	e := &crashEndpoint{objects: map[string]string{}, newest: map[string]int64{}, refused: map[string]int{}, open: map[string]*crashCall{}}
	server := httptest.NewServer(e)
	t.Cleanup(server.Close)
	t.Cleanup(e.release)
	e.url = server.URL
	return e
}

// ServeHTTP takes a call.
func (e *crashEndpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var call struct {
		Action, Resource, Key string
		Spec                  json.RawMessage
	}
	var spec struct{ Version int64 }
	err := json.NewDecoder(r.Body).Decode(&call)
	if err == nil && call.Spec != nil {
		err = json.Unmarshal(call.Spec, &spec)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	name := call.Resource + "/" + call.Key
	defer e.begin(r.Context(), name)()
	if e.delays(name, string(call.Spec)) {
		<-r.Context().Done()
		return
	}
	e.mu.Lock()
	gate := e.gate
	e.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-r.Context().Done():
			return
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.refused[name] > 0 {
		e.refused[name]--
		http.Error(w, "not yet", http.StatusInternalServerError)
		return
	}
	if call.Action == "delete" {
		delete(e.objects, name)
		return
	}
	if spec.Version < e.newest[name] {
		e.wrong = append(e.wrong, fmt.Sprintf("%s: version %d after %d", name, spec.Version, e.newest[name]))
	}
	e.newest[name] = spec.Version
	e.objects[name] = string(call.Spec)
}

// begin notes a call, and returns what notes its end. No other call for the object may be under way, but for one whose client has gone,
// which the endpoint may notice a moment later.
func (e *crashEndpoint) begin(ctx context.Context, object string) (end func()) {
	c := &crashCall{client: ctx}
	e.mu.Lock()
	before := e.open[object]
	e.open[object] = c
	e.mu.Unlock()
	if before != nil {
		pass(notice, before.client.Done())
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if before != nil && (before.ended || before.client.Err() == nil) {
		e.wrong = append(e.wrong, object+": two calls at once")
	}
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		c.ended = ctx.Err() == nil
		if e.open[object] == c {
			delete(e.open, object)
		}
	}
}

// refuse has the next calls for an object fail.
func (e *crashEndpoint) refuse(object string, calls int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.refused[object] = calls
}

// delay makes the next call for an object a late one.
func (e *crashEndpoint) delay(object string) *crashLate {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.late = &crashLate{object: object, came: make(chan struct{})}
	return e.late
}

// delays says whether a call is the one that is to be late.
func (e *crashEndpoint) delays(object, spec string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.late == nil || e.late.object != object {
		return false
	}
	e.late.spec = spec
	close(e.late.came)
	e.late = nil
	return true
}

// strike lets a late call take effect.
func (e *crashEndpoint) strike(late *crashLate) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.objects[late.object] = late.spec
}

// hold lets no call through until release.
func (e *crashEndpoint) hold() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.gate = make(chan struct{})
}

func (e *crashEndpoint) release() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.gate != nil {
		close(e.gate)
		e.gate = nil
	}
}

func (e *crashEndpoint) has() (objects map[string]string, wrong []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.objects), e.wrong
}
