package streamtest

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"

	"github.com/pgreconciler/reconciler/client"
)

// Server serves one target, as reconciler does. It is an http.Handler; Client needs no network, so that it works within
// testing/synctest.
type Server struct {
	target string

	mu         sync.Mutex // guards what follows
	name       string     // of the installation
	objects    map[id]*object
	keeps      map[id]string // reasons
	version    int64         // the newest one
	floor      int64         // tombstones up to here are gone
	epoch      int
	reason     string        // of the reset that began the epoch
	generation int           // responses of others are cut
	down       bool          // requests are refused
	heldAt     string        // the resource that snapshots stop at
	cutAfter   int           // frames of the next response; 0: it is not cut
	changed    chan struct{} // closed and replaced at each change
	observed   map[id]client.Observation
	sessions   map[string]uint64 // the last report of each
	refused    int               // status of reports; 0: they are taken
	controls   client.Controls
	info       client.Info // of the last report
	protocol   int         // that it speaks
}

type id struct{ resource, key string }

func compare(a, b id) int {
	return cmp.Or(cmp.Compare(a.resource, b.resource), cmp.Compare(a.key, b.key))
}

// ordered returns the keys of a map in order.
func ordered[V any](of map[id]V) []id { return slices.SortedFunc(maps.Keys(of), compare) }

// object is an object, or, without a spec, its tombstone.
type object struct {
	id

	version int64
	spec    json.RawMessage
}

// NewServer returns a server of a target without objects.
func NewServer(target string) *Server {
	return &Server{
		target: target, name: "streamtest", objects: map[id]*object{}, keeps: map[id]string{}, changed: make(chan struct{}),
		observed: map[id]client.Observation{}, sessions: map[string]uint64{},
		protocol: 1,
	}
}

// Client returns a client of the server that needs no network.
func (s *Server) Client(opts ...client.Option) *client.Client {
	c, err := client.New("http://streamtest", append(opts, client.HTTPClient(&http.Client{Transport: s.Transport()}))...)
	if err != nil {
		panic(err)
	}
	return c
}

// Transport returns a transport that hands requests to the server without a network.
func (s *Server) Transport() http.RoundTripper { return transport{s} }

// change changes something, and wakes what waits for a change.
func (s *Server) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	close(s.changed)
	s.changed = make(chan struct{})
}

// Set publishes an object with a spec, which is encoded as JSON, and returns its version, which is the revision, too.
func (s *Server) Set(resource, key string, spec any) (version int64) {
	text, err := json.Marshal(spec)
	if err != nil {
		panic(fmt.Sprintf("streamtest: the spec of %s %q: %v", resource, key, err))
	}
	s.change(func() { version = s.put(id{resource, key}, text) })
	return version
}

// Delete deletes an object, and returns the version of the delete.
func (s *Server) Delete(resource, key string) (version int64) {
	s.change(func() { version = s.put(id{resource, key}, nil) })
	return version
}

func (s *Server) put(at id, spec json.RawMessage) int64 {
	s.version++
	s.objects[at] = &object{id: at, version: s.version, spec: spec}
	delete(s.keeps, at)
	return s.version
}

// Keep has snapshots name an object that has no spec: a row wants it, and it is not published.
func (s *Server) Keep(resource, key, reason string) {
	s.change(func() { s.keeps[id{resource, key}] = reason })
}

// Expire forgets every delete. A client that has missed one is reset, and finds out by the snapshot.
func (s *Server) Expire() {
	s.change(func() {
		maps.DeleteFunc(s.objects, func(_ id, o *object) bool { return o.spec == nil })
		s.floor = s.version
	})
}

// Reset has every client begin again with a snapshot: now, or when it connects. With the reason "restored" versions begin anew, too.
func (s *Server) Reset(reason string) {
	s.change(func() {
		s.epoch++
		s.reason = reason
		if reason != "restored" {
			return
		}
		s.version, s.floor = 0, 0
		maps.DeleteFunc(s.objects, func(_ id, o *object) bool { return o.spec == nil })
		for _, at := range ordered(s.objects) {
			s.put(at, s.objects[at].spec)
		}
	})
}

// Lose removes an object and everything that reminds of it, as the restore of a database does. Clients find out after a Reset.
func (s *Server) Lose(resource, key string) {
	s.change(func() {
		delete(s.objects, id{resource, key})
		delete(s.keeps, id{resource, key})
	})
}

// Cut cuts every response.
func (s *Server) Cut() { s.change(func() { s.generation++ }) }

// CutAfter cuts the next response after so many frames.
func (s *Server) CutAfter(frames int) { s.change(func() { s.cutAfter = frames }) }

// Down cuts every response, and refuses requests until Up.
func (s *Server) Down() {
	s.change(func() {
		s.generation++
		s.down = true
	})
}

// Up has the server answer again.
func (s *Server) Up() { s.change(func() { s.down = false }) }

// HoldAt has snapshots wait before the first object of a resource, until Release.
func (s *Server) HoldAt(resource string) { s.change(func() { s.heldAt = resource }) }

// Release has snapshots go on.
func (s *Server) Release() { s.change(func() { s.heldAt = "" }) }

// Become makes the server one of another installation, as if its address had gone to another database.
func (s *Server) Become(installation string) {
	s.change(func() {
		s.generation++
		s.name = installation
	})
}

// RefuseReports has reports answered with a status, such as 403; 0 takes them again.
func (s *Server) RefuseReports(status int) { s.change(func() { s.refused = status }) }

// Control sends controls of the target, as pause(), resync(), retry() and approve() do.
func (s *Server) Control(controls client.Controls) { s.change(func() { s.controls = controls }) }

// Speak has the server speak another protocol than 1.
func (s *Server) Speak(protocol int) {
	s.change(func() {
		s.generation++
		s.protocol = protocol
	})
}

// Info returns what the client has told of itself in its last report.
func (s *Server) Info() client.Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.info
}

// Observations returns the newest observation of each object, by resource and key.
func (s *Server) Observations() []client.Observation {
	s.mu.Lock()
	defer s.mu.Unlock()
	observations := make([]client.Observation, 0, len(s.observed))
	for _, at := range ordered(s.observed) {
		observations = append(observations, s.observed[at])
	}
	return observations
}

// WaitObserved waits until the newest observation of an object has a state and the version of the object or its delete, and returns it.
func (s *Server) WaitObserved(ctx context.Context, resource, key string, state client.State) (client.Observation, error) {
	at := id{resource, key}
	for {
		s.mu.Lock()
		o, published, changed := s.observed[at], s.objects[at], s.changed
		s.mu.Unlock()
		if o.State == state && (published == nil || published.version == o.Version) {
			return o, nil
		}
		select {
		case <-ctx.Done():
			return o, fmt.Errorf("%s %q was not observed as %s; the last observation is %+v: %w", resource, key, state, o, context.Cause(ctx))
		case <-changed:
		}
	}
}

// frame returns the frame of an object.
func (o *object) frame() client.Frame {
	if o.spec == nil {
		return client.Frame{Type: client.Delete, Object: client.Object{Resource: o.resource, Key: o.key, Version: o.version}}
	}
	hash := sha256.Sum256(o.spec)
	return client.Frame{Type: client.Upsert, Object: client.Object{
		Resource: o.resource, Key: o.key, Version: o.version, Revision: o.version, Hash: hex.EncodeToString(hash[:16]), Spec: o.spec,
	}}
}
