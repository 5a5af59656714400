package watch

import (
	"sync"

	"github.com/google/uuid"
)

// bounds describe a stream as one statement saw it.
type bounds struct {
	stream, epoch uuid.UUID
	complete      bool
	ack           bool  // clients confirm what is published
	floor         int64 // tombstones up to here may be gone
	head          int64 // newest version
	reached       int64 // revision up to which changes are published, or known not to be
	controls      controls
}

// state is a stream as the hub saw it last.
type state struct {
	bounds

	gone bool
	// era changes when versions from before mean nothing any more: another epoch, or versions that went back.
	era int64
	// silent: the database does not answer, so that bounds are of an unknown age.
	silent bool
}

// target is a stream that this process has watchers of.
type target struct {
	name string
	id   int32

	ready chan struct{} // closed when the state was read

	mu       sync.Mutex // guards what follows
	state    state
	read     bool
	groups   groups
	watchers map[*watcher]struct{}
	resets   int64
}

func newTarget(name string, id int32) *target {
	return &target{name: name, id: id, ready: make(chan struct{}), groups: newGroups(), watchers: map[*watcher]struct{}{}}
}

// look returns the state, the frames of a group after a version, at most so many, and a channel that is closed when either
// changes. ok is false when the group does not have all of the frames.
func (t *target) look(g *group, after int64, most int) (s state, frames []frame, ok bool, changed <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	frames, ok = g.after(after, most)
	return t.state, frames, ok, g.wake
}

// checkpoint encodes a checkpoint once for all watchers of a group that are at the same place.
func (t *target) checkpoint(g *group, at bookmark, reached int64, c controls) checkpoint {
	t.mu.Lock()
	defer t.mu.Unlock()
	if g.checkpoint.data == nil || g.checkpoint.at != at || g.checkpoint.reached != reached || g.checkpoint.controls != c {
		text := at.String()
		g.checkpoint = checkpoint{at: at, reached: reached, controls: c, data: encodePlace("checkpoint", at, text, reached, c), text: text}
	}
	return g.checkpoint
}

// see takes over what a statement found: bounds, and the changes after the head of before in the order of versions. It calls
// kept for each frame that it keeps.
func (t *target) see(b bounds, changes []change, kept func(version int64, bytes int)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.state
	t.state.bounds, t.state.silent = b, false
	switch {
	case !t.read:
		t.read = true
		close(t.ready)
	case b.stream != before.stream || b.epoch != before.epoch || b.head < before.head:
		t.state.era++
		for _, g := range t.groups.byFilter {
			g.frames, g.since = nil, b.head
		}
		t.notifyAll()
	case b.complete != before.complete || before.silent || b.controls != before.controls:
		t.publish(changes, kept)
		t.notifyAll()
	default:
		t.publish(changes, kept)
	}
}

// publish gives each change to the groups that it concerns, and wakes these.
func (t *target) publish(changes []change, kept func(version int64, bytes int)) {
	var found []*group
	woken := map[*group]bool{}
	for _, c := range changes {
		found = t.groups.concerned(c.resource, c.key, found)
		if len(found) == 0 {
			continue
		}
		f := frame{version: c.version, data: c.appendTo(nil)}
		for _, g := range found {
			g.frames = append(g.frames, f)
			woken[g] = true
		}
		kept(f.version, len(f.data))
	}
	for g := range woken {
		g.notify()
	}
}

// forget drops the frames up to a version.
func (t *target) forget(version int64) {
	for _, g := range t.groups.byFilter {
		g.drop(version)
	}
}

func (t *target) notifyAll() {
	for _, g := range t.groups.byFilter {
		g.notify()
	}
}

// leave ends the stream for all watchers.
func (t *target) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.state.gone = true
	if !t.read {
		t.read = true
		close(t.ready)
	}
	t.notifyAll()
}

// fallSilent marks the state as one of an unknown age.
func (t *target) fallSilent() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.read && !t.state.silent {
		t.state.silent = true
		t.notifyAll()
	}
}

// head is the version that the hub reads on from.
func (t *target) head() (version int64, read bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.state.head, t.read
}

// count returns how many watch, how many versions the slowest of them has still to read, and how many began again.
func (t *target) count() (watchers int, behind, resets int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for w := range t.watchers {
		behind = max(behind, t.state.head-w.sent.Load())
	}
	return len(t.watchers), behind, t.resets
}
