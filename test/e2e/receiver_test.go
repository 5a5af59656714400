package e2e_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
)

// receiver is an endpoint for targets of the driver webhook. It keeps what it is given, and notes what must never
// happen at the moment when it happens.
type receiver struct {
	server *httptest.Server
	delay  time.Duration // the longest that a call takes

	mu      sync.Mutex // guards what follows
	targets map[string]*received
	wrong   []string
}

// received is what a receiver knows of one target.
type received struct {
	objects  map[string]string // content as the driver file would write it, by <resource>/<key>.json
	versions map[string]int64  // the newest that an object was called with
	open     map[string]int64  // calls under way: the term of each, by object
	term     int64             // the newest
	process  string            // who made its last call
	calls    int
	applies  int           // of calls
	gate     chan struct{} // calls wait until it is closed; nil: they do not
}

// received is the body of a call.
type receivedCall struct {
	Action, Target, Resource, Key string
	Term                          int64
	Spec                          json.RawMessage
}

func newReceiver(t *testing.T, delay time.Duration) *receiver {
	t.Helper()
	r := &receiver{delay: delay, targets: map[string]*received{}}
	r.server = httptest.NewServer(r)
	t.Cleanup(r.server.Close)
	return r
}

// target is a target of the config whose calls the receiver gets. Its guard holds nothing.
func (r *receiver) target(name string, change ...object) object {
	target := object{
		"name": name, "driver": "webhook", "guard": object{"max_fraction": 1},
		"options": object{"url": r.server.URL + "/" + name, "headers_env": object{"X-Process": "PROCESS"}},
	}
	for _, c := range change {
		maps.Copy(target, c)
	}
	return target
}

// ServeHTTP takes a call. What its caller gave up has not happened.
func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	var c receivedCall
	if err := json.NewDecoder(req.Body).Decode(&c); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	id := c.Resource + "/" + c.Key + ".json"
	r.begin(c, id, req.Header.Get("X-Process"))
	if gate := r.gate(c.Target); gate != nil {
		pass(patience, gate)
	}
	if r.delay > 0 {
		pass(rand.N(r.delay), req.Context().Done())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	to := r.targets[c.Target]
	delete(to.open, id)
	switch {
	case req.Context().Err() != nil:
	case c.Action == "delete":
		delete(to.objects, id)
	default:
		to.objects[id] = string(c.Spec) + "\n"
	}
}

func (r *receiver) begin(c receivedCall, id, process string) {
	var spec struct{ Version int64 }
	_ = json.Unmarshal(c.Spec, &spec) // a delete has none
	r.mu.Lock()
	defer r.mu.Unlock()
	to := r.of(c.Target)
	complain := func(text string) {
		r.wrong = append(r.wrong, fmt.Sprintf("%s: %s of %s, term %d, by %s: %s", c.Target, c.Action, id, c.Term, process, text))
	}
	if term, twice := to.open[id]; twice {
		complain(fmt.Sprintf("while a call of term %d for the object is under way", term))
	}
	if c.Term < to.term {
		complain(fmt.Sprintf("after a call of term %d", to.term))
	}
	for other, term := range to.open {
		if term < c.Term {
			complain(fmt.Sprintf("while a call of term %d for %s is under way", term, other))
		}
	}
	if c.Action == "apply" && spec.Version < to.versions[id] {
		complain(fmt.Sprintf("version %d after version %d", spec.Version, to.versions[id]))
	}
	to.open[id], to.term, to.process = c.Term, max(to.term, c.Term), process
	to.versions[id] = max(to.versions[id], spec.Version)
	to.calls++
	if c.Action == "apply" {
		to.applies++
	}
}

// of returns what is known of a target. mu must be held.
func (r *receiver) of(target string) *received {
	if r.targets[target] == nil {
		r.targets[target] = &received{objects: map[string]string{}, versions: map[string]int64{}, open: map[string]int64{}}
	}
	return r.targets[target]
}

// calls counts the calls for a target.
func (r *receiver) calls(target string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.of(target).calls
}

// applies is how many of a target's calls were no deletes.
func (r *receiver) applies(target string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.of(target).applies
}

// has says whether a target has an object.
func (r *receiver) has(target, id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, is := r.of(target).objects[id]
	return is
}

// callers returns the process that made the last call for each target.
func (r *receiver) callers() map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	callers := map[string]string{}
	for name, to := range r.targets {
		callers[name] = to.process
	}
	return callers
}

// hold has the calls for a target wait from now on, until let.
func (r *receiver) hold(target string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.of(target).gate = make(chan struct{})
}

func (r *receiver) let(target string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.of(target).gate)
	r.of(target).gate = nil
}

func (r *receiver) gate(target string) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.of(target).gate
}

// differs compares what a target was given with what it must have.
func (r *receiver) differs(target string, want map[string]string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	have := r.of(target).objects
	if want == nil {
		want = map[string]string{}
	}
	if diff := cmp.Diff(want, have); diff != "" {
		return fmt.Errorf("target %s: rows (-) and what it was given (+) differ:\n%s", target, diff)
	}
	return nil
}

// settled waits until everything is applied, says the product; then the targets must have the rows, in fact, and nothing
// may have gone wrong on the way.
func (r *receiver) settled(w *world, targets ...string) {
	w.t.Helper()
	w.wait()
	want := w.rows()
	for _, target := range targets {
		require.NoError(w.t, r.differs(target, want[target]), "VIOLATION: wait() says that everything is applied")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	require.Empty(w.t, strings.Join(r.wrong, "\n"), "VIOLATION: stale calls, or two at once")
}
