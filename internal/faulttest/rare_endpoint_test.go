//go:build long

package faulttest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// rareCall is what an endpoint of the driver webhook was told, or the end of that.
type rareCall struct {
	Event    string // begin, end, or overlap: another call for the object had not ended
	Action   string
	Object   string
	Version  int64
	Revision int64
	Term     int64
	From     string // address without port
}

// rareEndpoint is a target of the driver webhook. It cannot refuse what is late, and keeps a journal.
type rareEndpoint struct {
	URL string
	// Answer may answer a call in place of the endpoint; it says whether it has. Set before the first call.
	Answer func(w http.ResponseWriter, call rareCall) bool

	mu      sync.Mutex // guards what follows
	delay   time.Duration
	calls   []rareCall
	open    map[string]int    // calls under way, by object
	objects map[string]string // as a file target would have them
}

// newRareEndpoint serves on an address of this machine until the end of the test.
func newRareEndpoint(t *testing.T, address string) *rareEndpoint {
	t.Helper()
	e := &rareEndpoint{open: map[string]int{}, objects: map[string]string{}}
	var listen net.ListenConfig
	listener, err := listen.Listen(context.WithoutCancel(t.Context()), "tcp", address+":0")
	require.NoError(t, err)
	server := httptest.NewUnstartedServer(e)
	require.NoError(t, server.Listener.Close())
	server.Listener = listener
	server.Start()
	t.Cleanup(server.Close)
	e.URL = server.URL
	return e
}

// target is a target of the config that leads here. Its guard holds nothing.
func (e *rareEndpoint) target(name string) rareObject {
	return rareObject{
		"name": name, "driver": "webhook", "timeout": rareCallTimeout, "guard": rareObject{"max_fraction": 1}, "options": rareObject{"url": e.URL},
	}
}

// ServeHTTP takes a call.
func (e *rareEndpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var message struct {
		Action, Resource, Key string
		Revision, Term        int64
		Spec                  json.RawMessage
	}
	var spec struct{ Version int64 }
	err := json.NewDecoder(r.Body).Decode(&message)
	if err == nil && message.Spec != nil {
		err = json.Unmarshal(message.Spec, &spec)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	from, _, _ := net.SplitHostPort(r.RemoteAddr)
	call := rareCall{
		Event: "begin", Action: message.Action, Object: message.Resource + "/" + message.Key,
		Version: spec.Version, Revision: message.Revision, Term: message.Term, From: from,
	}
	e.begin(call)
	defer e.end(call)
	pass(e.takes(), nil)
	if e.Answer != nil && e.Answer(w, call) {
		return
	}
	e.store(call, string(message.Spec)+"\n")
}

// slow has calls take so long from now on.
func (e *rareEndpoint) slow(delay time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.delay = delay
}

func (e *rareEndpoint) takes() time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.delay
}

func (e *rareEndpoint) begin(call rareCall) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.open[call.Object]++; e.open[call.Object] > 1 {
		overlap := call
		overlap.Event = "overlap"
		e.calls = append(e.calls, overlap)
	}
	e.calls = append(e.calls, call)
}

func (e *rareEndpoint) end(call rareCall) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.open[call.Object]--
	call.Event = "end"
	e.calls = append(e.calls, call)
}

func (e *rareEndpoint) store(call rareCall, content string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if name := call.Object + ".json"; call.Action == "delete" {
		delete(e.objects, name)
	} else {
		e.objects[name] = content
	}
}

// have returns the objects, as rareWorld.files does.
func (e *rareEndpoint) have(string) map[string]string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.objects)
}

// journal returns the calls so far.
func (e *rareEndpoint) journal() []rareCall {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.calls)
}

// rareInOrder finds what must never be in a journal: two calls for one object at once, a call of a deposed owner after
// one of its successor, for whatever object, or an older state after a newer one.
func rareInOrder(all []rareCall) error {
	type last struct{ term, revision, version int64 }
	objects := map[string]last{}
	var term int64
	for _, c := range all {
		l := objects[c.Object]
		switch {
		case c.Event == "end":
			continue
		case c.Event == "overlap":
			return fmt.Errorf("%+v: another call for the object is under way", c)
		case c.Term < term:
			return fmt.Errorf("%+v: after a call of term %d", c, term)
		case c.Term == l.term && c.Revision < l.revision:
			return fmt.Errorf("%+v: after revision %d", c, l.revision)
		case c.Action == "apply" && c.Version < l.version:
			return fmt.Errorf("%+v: after version %d", c, l.version)
		}
		term = c.Term
		objects[c.Object] = last{c.Term, c.Revision, max(l.version, c.Version)}
	}
	return nil
}
