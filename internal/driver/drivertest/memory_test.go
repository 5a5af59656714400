package drivertest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/drivertest"
)

const memorySecret = "s3cr3t-value"

type name struct{ resource, key string }

// memory is a target in memory. Its wrong says which rule of the contract it breaks.
type memory struct {
	wrong string

	mu      sync.Mutex
	objects map[name]string // guarded by mu
	terms   map[name]int64  // guarded by mu
	waits   map[name]bool   // guarded by mu; objects that are to be confirmed. nil: none ever
	keeps   bool            // a memory of each object

	watchers []*watcher // guarded by mu
	watches  int        // guarded by mu; that have begun
	touches  int        // guarded by mu

	confirmed map[name]bool // guarded by mu; objects that were confirmed once
}

func newMemory(wrong string) *memory {
	return &memory{wrong: wrong, objects: map[name]string{}, terms: map[name]int64{}, confirmed: map[name]bool{}}
}

func (m *memory) is(wrong string) bool { return m.wrong == wrong }

func (m *memory) place(ref driver.Ref) name {
	switch {
	case m.is("keys are trimmed"):
		return name{ref.Resource, strings.TrimSpace(ref.Key)}
	case m.is("keys are cut"):
		return name{ref.Resource, ref.Key[:min(len(ref.Key), 600)]}
	case m.is("resources are cleaned"):
		return name{strings.ReplaceAll(ref.Resource, "/", ""), ref.Key}
	case m.is("resources are ignored"):
		return name{"", ref.Key}
	}
	return name{ref.Resource, ref.Key}
}

func (m *memory) Apply(ctx context.Context, obj driver.Object) driver.Outcome {
	if out, cut := m.cut(ctx); cut {
		return out
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	at := m.place(obj.Ref)
	_, exists := m.objects[at]
	switch {
	case m.is("apply is not idempotent") && exists && m.objects[at] == string(obj.Spec):
		return driver.Terminal(errors.New("exists already"))
	case m.is("apply does not overwrite") && exists:
		return driver.Done()
	case m.is("done with an error"):
		return driver.Outcome{Err: errors.New("odd")}
	case m.is("secrets are told") && obj.Key == "":
		return driver.Backoff(errors.New("password " + memorySecret))
	case m.is("errors are binary") && obj.Key == "":
		return driver.Backoff(errors.New("\xff"))
	case m.is("large specs are cut") && len(obj.Spec) > 1<<20:
		obj.Spec = []byte(`{}`)
	case m.is("numbers are floats") && strings.HasPrefix(string(obj.Spec), "123456789"):
		obj.Spec = []byte(`1.2345678901234568e+29`)
	case m.is("revision goes before term") && obj.Revision < m.terms[at]:
		return driver.Backoff(errors.New("stale"))
	case m.is("hostile names are refused") && obj.Key == "..":
		return driver.Terminal(errors.New("refused"))
	case m.is("lost memory blocks the object") && m.keeps && exists && obj.Memory == nil:
		return driver.Terminal(errors.New("exists already"))
	case m.is("old memory is trusted") && string(obj.Memory) == string(kept(obj.Spec)):
		return driver.Done()
	}
	changed := !exists || m.objects[at] != string(obj.Spec)
	m.objects[at], m.terms[at] = string(obj.Spec), obj.Revision
	return m.outcome(at, changed).Remember(m.remembers(obj))
}

func (m *memory) Delete(ctx context.Context, ref driver.Ref) driver.Outcome {
	if out, cut := m.cut(ctx); cut {
		return out
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	at := m.place(ref)
	_, exists := m.objects[at]
	switch {
	case m.is("delete of absent fails") && !exists:
		return driver.Terminal(errors.New("not found"))
	case m.is("delete does nothing"), m.is("lost memory leaves the object") && m.keeps && ref.Memory == nil:
		return driver.Done()
	case m.is("delete takes prefixes"):
		maps.DeleteFunc(m.objects, func(n name, _ string) bool {
			return n.resource == ref.Resource && strings.HasPrefix(n.key, ref.Key)
		})
	}
	delete(m.objects, at)
	return m.outcome(at, exists)
}

// kept is the memory of a spec.
func kept(spec []byte) []byte { return []byte(driver.HashSpec(spec).String()) }

// remembers is what is to be remembered of an object that was applied.
func (m *memory) remembers(obj driver.Object) []byte {
	switch {
	case !m.keeps, m.is("memory is never brought up to date") && obj.Memory != nil:
		return nil
	case m.is("too much is remembered"):
		return make([]byte, driver.MemoryMost+1)
	case m.is("secrets are remembered"):
		return []byte(memorySecret)
	case m.is("memory is one for all specs"):
		return kept(nil)
	}
	return kept(obj.Spec)
}

// outcome is of a call that has changed an object or not.
func (m *memory) outcome(at name, changed bool) driver.Outcome {
	switch {
	case m.waits == nil:
		return driver.Done()
	case m.is("an old confirmation counts") && changed:
		_, confirmed := m.waits[at]
		m.waits[at] = !confirmed
	case m.is("an old confirmation counts later") && m.waits[at] && !changed:
		m.waits[at] = !m.confirmed[at]
	case m.is("deletes do not wait"):
		_, there := m.objects[at]
		m.waits[at] = there && (changed || m.waits[at])
	case changed:
		m.waits[at] = true
	}
	switch {
	case !m.waits[at]:
		return driver.Done()
	case m.is("looking confirms"):
		m.waits[at] = false
	case m.is("waiting names no pause"):
		return driver.Waiting(0, "not confirmed")
	}
	return driver.Waiting(time.Second, "not confirmed")
}

func (m *memory) confirm(t *testing.T, resource, key string) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.is("all are confirmed at once") {
		m.waits = map[name]bool{}
	}
	m.waits[name{resource, key}], m.confirmed[name{resource, key}] = false, true
}

func (m *memory) cut(ctx context.Context) (driver.Outcome, bool) {
	switch {
	case ctx.Err() == nil || m.is("the context is ignored"):
		return driver.Outcome{}, false
	case m.is("cut calls block the object"):
		return driver.Terminal(context.Cause(ctx)), true
	case m.is("cut calls open the circuit"):
		return driver.Unreachable(context.Cause(ctx)), true
	}
	return driver.Backoff(context.Cause(ctx)), true
}

// waitingFixture is of a target that confirms results later.
func (m *memory) waitingFixture(t *testing.T) drivertest.Fixture {
	t.Helper()
	m.waits = map[name]bool{}
	f := m.fixture(t)
	f.Confirm = m.confirm
	return f
}

// wrappedMost is the largest spec that a target of keepingFixture holds.
const wrappedMost = 100_000

// keepingFixture is of a driver that keeps a memory of each object, lists by it, and takes objects only, which hold the specs.
func (m *memory) keepingFixture(t *testing.T) drivertest.Fixture {
	t.Helper()
	m.keeps = true
	f := m.fixture(t)
	f.SpecMost = wrappedMost
	f.Wrap = func(resource, key, spec string) string {
		if len(spec) > wrappedMost {
			t.Errorf("a spec of %d bytes", len(spec))
		}
		place, err := json.Marshal(resource + " " + key)
		if err != nil {
			t.Error(err)
		}
		return fmt.Sprintf(`{"of": %s, "spec": %s}`, place, spec)
	}
	plain := f.Read
	f.Read = func(t *testing.T, resource, key string) (string, bool) {
		t.Helper()
		content, ok := plain(t, resource, key)
		var wrapped struct{ Spec json.RawMessage }
		if err := json.Unmarshal([]byte(content), &wrapped); ok && err != nil {
			t.Error(err)
		}
		return string(wrapped.Spec), ok
	}
	return f
}

func (m *memory) List(ctx context.Context, resources []string) iter.Seq2[driver.Listed, error] {
	return func(yield func(driver.Listed, error) bool) {
		m.mu.Lock()
		objects := maps.Clone(m.objects)
		m.mu.Unlock()
		if m.is("list forgets hostile keys") {
			for _, resource := range resources {
				delete(objects, name{resource, ".."})
			}
		}
		for at, spec := range objects {
			if !slices.Contains(resources, at.resource) && !m.is("list mixes resources") {
				continue
			}
			if ctx.Err() != nil {
				if !m.is("a cut list looks complete") {
					yield(driver.Listed{}, context.Cause(ctx))
				}
				return
			}
			resource := at.resource
			if m.is("list mixes resources") {
				resource = resources[0]
			}
			listed := driver.Listed{Resource: resource, Key: at.key, Hashes: []driver.Hash{driver.HashSpec([]byte(spec))}}
			if m.keeps {
				listed.Hashes, listed.Memory = nil, kept([]byte(spec))
			}
			if m.is("memory is one for all specs") && m.keeps {
				listed.Memory = kept(nil)
			}
			if m.is("list hashes another text") && !m.keeps {
				listed.Hashes[0] = driver.HashSpec([]byte(spec + "\n"))
			}
			if m.is("list matches everything") && !m.keeps {
				listed.Hashes = append(listed.Hashes, driver.HashSpec([]byte(`{}`)))
			}
			if !yield(listed, nil) || m.is("list yields twice") && !yield(listed, nil) {
				return
			}
		}
	}
}

func (m *memory) ApplyBatch(ctx context.Context, objs []driver.Object) []driver.Outcome {
	outcomes := make([]driver.Outcome, 0, len(objs))
	for i, obj := range objs {
		if m.is("a batch skips its last object") && i > 0 && i == len(objs)-1 {
			outcomes = append(outcomes, driver.Done())
			continue
		}
		outcomes = append(outcomes, m.Apply(ctx, obj))
	}
	if m.is("a batch loses outcomes") && len(outcomes) > 0 {
		return outcomes[:1]
	}
	return outcomes
}

func (m *memory) Check(context.Context) error {
	if m.is("check fails") {
		return errors.New("down")
	}
	return nil
}

func (m *memory) Close(context.Context) error {
	if m.is("close fails") {
		return errors.New("still busy")
	}
	return nil
}

func (m *memory) fixture(*testing.T) drivertest.Fixture {
	return drivertest.Fixture{
		Driver: m, Target: "memory", Secrets: []string{memorySecret},
		Read: func(_ *testing.T, resource, key string) (string, bool) {
			m.mu.Lock()
			defer m.mu.Unlock()
			content, ok := m.objects[m.place(driver.Ref{Resource: resource, Key: key})]
			return content, ok
		},
		Count: func(*testing.T) int {
			m.mu.Lock()
			defer m.mu.Unlock()
			return len(m.objects)
		},
		Touch: m.touch,
	}
}
