package watch

import (
	"slices"
	"sort"
)

// group is the watchers of a target that ask for the same, and the newest changes that they have to send.
// Everything in it is guarded by the target's mutex.
type group struct {
	filter   filter
	watchers int
	frames   []frame // in the order of versions
	since    int64   // everything after this version is in frames
	wake     chan struct{}
	// The newest checkpoint: watchers that have read as far send the same one.
	checkpoint checkpoint
}

// checkpoint is an encoded one.
type checkpoint struct {
	at       bookmark
	reached  int64
	controls controls
	data     []byte
	text     string // of the bookmark
}

// notify wakes every watcher of the group.
func (g *group) notify() {
	close(g.wake)
	g.wake = make(chan struct{})
}

// after returns the frames after a version, at most so many and of batchBytes beside one; ok is false when some of them are kept no
// more. It is a copy: a client that reads slowly must not keep all frames that the group had.
func (g *group) after(version int64, most int) (frames []frame, ok bool) {
	if version < g.since {
		return nil, false
	}
	first := sort.Search(len(g.frames), func(i int) bool { return g.frames[i].version > version })
	last := first
	for bytes := int64(0); last < min(len(g.frames), first+most) && bytes < batchBytes; last++ {
		bytes += int64(len(g.frames[last].data))
	}
	return slices.Clone(g.frames[first:last]), true
}

func sizeOf(frames []frame) (bytes int64) {
	for _, f := range frames {
		bytes += int64(len(f.data))
	}
	return bytes
}

// drop forgets the frames up to a version.
func (g *group) drop(version int64) {
	g.since = max(g.since, version)
	first := sort.Search(len(g.frames), func(i int) bool { return g.frames[i].version > version })
	if first > 0 {
		g.frames = slices.Clone(g.frames[first:]) // watchers may hold parts of the old array
	}
}

// groups finds the groups that a change concerns by looking up its resource, and each prefix of its key that has a group.
type groups struct {
	byFilter map[string]*group // by the filter's name
	byName   map[interest][]*group
	lengths  map[int]int // of prefixes: how many groups have one
}

// interest is a resource and a prefix of keys. An empty resource stands for all.
type interest struct{ resource, prefix string }

func newGroups() groups {
	return groups{byFilter: map[string]*group{}, byName: map[interest][]*group{}, lengths: map[int]int{}}
}

func (f filter) interests() []interest {
	if len(f.resources) == 0 {
		return []interest{{}}
	}
	interests := make([]interest, len(f.resources))
	for i, resource := range f.resources {
		interests[i] = interest{resource, f.prefix}
	}
	return interests
}

// join returns the group of a filter, and makes one that begins after a version if there is none.
func (s groups) join(f filter, since int64) *group {
	name := f.name()
	g := s.byFilter[name]
	if g == nil {
		g = &group{filter: f, since: since, wake: make(chan struct{})}
		s.byFilter[name] = g
		for _, i := range f.interests() {
			s.byName[i] = append(s.byName[i], g)
		}
		s.lengths[len(f.prefix)]++
	}
	g.watchers++
	return g
}

func (s groups) leave(g *group) {
	g.watchers--
	if g.watchers > 0 {
		return
	}
	delete(s.byFilter, g.filter.name())
	for _, i := range g.filter.interests() {
		s.byName[i] = slices.DeleteFunc(s.byName[i], func(other *group) bool { return other == g })
		if len(s.byName[i]) == 0 {
			delete(s.byName, i)
		}
	}
	if s.lengths[len(g.filter.prefix)]--; s.lengths[len(g.filter.prefix)] == 0 {
		delete(s.lengths, len(g.filter.prefix))
	}
}

// concerned returns the groups that an object concerns, each once.
func (s groups) concerned(resource, key string, found []*group) []*group {
	found = append(found[:0], s.byName[interest{}]...)
	for length := range s.lengths {
		if length <= len(key) {
			found = append(found, s.byName[interest{resource, key[:length]}]...)
		}
	}
	return found
}
