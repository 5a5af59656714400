package servertest

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// Place is a target that keeps what it is given and every call in memory. Tests say how it answers.
type Place struct {
	mu      sync.Mutex
	objects map[string]string // resource/key -> spec
	calls   []Call
	running map[string]int
	overlap []string // objects that were called twice at once
	put     []string // objects that Put changed
	answer  func(ctx context.Context, c Call) driver.Outcome
	changed chan struct{}
}

// Call is one call for an object.
type Call struct {
	Action   string
	Resource string
	Key      string
	Spec     string
	Revision int64
	Term     int64
}

// ID returns resource/key.
func (c Call) ID() string { return c.Resource + "/" + c.Key }

// NewPlace returns an empty target, which answers that each call is done.
func NewPlace() *Place {
	return &Place{objects: map[string]string{}, running: map[string]int{}, changed: make(chan struct{})}
}

// Apply is part of driver.Driver.
func (p *Place) Apply(ctx context.Context, obj driver.Object) driver.Outcome {
	return p.Call(ctx, Call{"apply", obj.Resource, obj.Key, string(obj.Spec), obj.Revision, obj.Term})
}

// Delete is part of driver.Driver.
func (p *Place) Delete(ctx context.Context, ref driver.Ref) driver.Outcome {
	return p.Call(ctx, Call{"delete", ref.Resource, ref.Key, "", ref.Revision, ref.Term})
}

// Call answers a call, and notes it.
func (p *Place) Call(ctx context.Context, c Call) driver.Outcome {
	p.mu.Lock()
	p.running[c.ID()]++
	if p.running[c.ID()] > 1 {
		p.overlap = append(p.overlap, c.ID())
	}
	answer := p.answer
	p.mu.Unlock()
	defer func() { // also when the answer is a panic
		p.mu.Lock()
		defer p.mu.Unlock()
		p.running[c.ID()]--
	}()
	out := driver.Done()
	if answer != nil {
		out = answer(ctx, c)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, c)
	if out.Verdict == driver.VerdictDone {
		if c.Action == "apply" {
			p.objects[c.ID()] = c.Spec
		} else {
			delete(p.objects, c.ID())
		}
	}
	close(p.changed)
	p.changed = make(chan struct{})
	return out
}

func (*Place) Close(context.Context) error { return nil }

func (p *Place) self() *Place { return p }

// Set makes the target answer in another way from now on.
func (p *Place) Set(answer func(ctx context.Context, c Call) driver.Outcome) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answer = answer
}

// Snapshot returns what the target has, its calls so far, and a channel that is closed by the next call.
func (p *Place) Snapshot() (objects map[string]string, calls []Call, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.objects), slices.Clone(p.calls), p.changed
}

// Size is how many objects the target has.
func (p *Place) Size() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.objects)
}

// Put changes the target behind the product's back.
func (p *Place) Put(id, spec string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.put = append(p.put, id)
	if spec == "" {
		delete(p.objects, id)
	} else {
		p.objects[id] = spec
	}
}

// Eventually waits until the target has exactly these objects.
func (p *Place) Eventually(t testing.TB, want map[string]string) {
	t.Helper()
	p.Until(t, func(objects map[string]string, _ []Call) bool { return maps.Equal(objects, want) }, func() string {
		objects, _, _ := p.Snapshot()
		return fmt.Sprintf("want %v\nhave %v", want, objects)
	})
}

// Until waits until something is true of what the target has and was asked.
func (p *Place) Until(t testing.TB, ok func(objects map[string]string, calls []Call) bool, explain func() string) {
	t.Helper()
	timeout := time.After(Deadline)
	for {
		objects, calls, changed := p.Snapshot()
		if ok(objects, calls) {
			return
		}
		select {
		case <-changed:
		case <-timeout:
			require.FailNow(t, "the target did not become as wanted", explain())
		}
	}
}

// Listing is a place that can say what it has.
type Listing struct{ *Place }

// List is part of driver.Lister.
func (l Listing) List(_ context.Context, resources []string) iter.Seq2[driver.Listed, error] {
	objects, _, _ := l.Snapshot()
	return func(yield func(driver.Listed, error) bool) {
		for id, spec := range objects {
			if name, key, ok := Cut(id); ok && slices.Contains(resources, name) {
				if !yield(driver.Listed{Resource: name, Key: key, Hashes: []driver.Hash{driver.HashSpec([]byte(spec))}}, nil) {
					return
				}
			}
		}
	}
}

// Cut splits resource/key.
func Cut(id string) (resource, key string, ok bool) {
	for i := range id {
		if id[i] == '/' {
			return id[:i], id[i+1:], true
		}
	}
	return "", "", false
}

// Deletes counts the calls that delete.
func (p *Place) Deletes() (n int) {
	_, calls, _ := p.Snapshot()
	for _, c := range calls {
		if c.Action == "delete" {
			n++
		}
	}
	return n
}

// Gate makes calls wait until they are let through.
type Gate struct {
	Arrived chan Call
	open    chan struct{}
	once    sync.Once
}

// Shut puts a gate before the calls for which is says so (nil: all).
func (p *Place) Shut(t *testing.T, is func(Call) bool) *Gate {
	t.Helper()
	g := &Gate{Arrived: make(chan Call, 1000), open: make(chan struct{})}
	t.Cleanup(g.Lift)
	p.Set(func(ctx context.Context, c Call) driver.Outcome {
		if is != nil && !is(c) {
			return driver.Done()
		}
		select {
		case g.Arrived <- c:
		default: // nobody will ask for so many
		}
		select {
		case <-g.open:
			return driver.Done()
		case <-ctx.Done():
			return driver.Backoff(context.Cause(ctx))
		}
	})
	return g
}

// Lift lets everything through from now on.
func (g *Gate) Lift() { g.once.Do(func() { close(g.open) }) }

// Next waits for a call that waits.
func (g *Gate) Next(t *testing.T) Call {
	t.Helper()
	select {
	case c := <-g.Arrived:
		return c
	case <-time.After(Deadline):
		require.FailNow(t, "no call came")
		return Call{}
	}
}

// Hang makes the calls for one object wait until release is called; begun receives a value for each of them.
func (p *Place) Hang(t *testing.T, id string) (begun <-chan struct{}, release func()) {
	t.Helper()
	start, hold, ctx := make(chan struct{}, 100), make(chan struct{}), t.Context()
	p.Set(func(callCtx context.Context, c Call) driver.Outcome {
		if c.ID() != id {
			return driver.Done()
		}
		start <- struct{}{}
		select {
		case <-hold:
			return driver.Done()
		case <-callCtx.Done():
		case <-ctx.Done():
		}
		return driver.Backoff(context.Canceled)
	})
	return start, func() { close(hold) }
}

// Have returns what the target has, by resource/key.
func (p *Place) Have() map[string]string {
	objects, _, _ := p.Snapshot()
	return objects
}
