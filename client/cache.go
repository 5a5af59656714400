package client

import "cmp"

// Ref names an object of a target.
type Ref struct{ Resource, Key string }

func compareRefs(a, b Ref) int {
	return cmp.Or(cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Key, b.Key))
}

// entry is an object as the server sent it. Its spec is JSON, and "" if there is no such object.
type entry struct {
	spec    string
	version int64
	round   int32 // of the snapshot that named it last
	applied int32 // the epoch in which its newest result was Applied; 0: it was not
}

// cache has the objects of a target, by resource and key.
//
// A version counts within its round only: after a reset the server may number objects anew.
type cache struct {
	objects map[string]map[string]entry
	count   int
	round   int32
}

func newCache() *cache { return &cache{objects: map[string]map[string]entry{}, round: 1} }

func (c *cache) get(r Ref) entry { return c.objects[r.Resource][r.Key] }

// fresh reports whether a frame with this version is news for an object.
func (c *cache) fresh(old entry, version int64) bool {
	return old.spec == "" || old.round != c.round || version > old.version
}

// put replaces an object. Without a spec it removes it.
func (c *cache) put(r Ref, e entry) {
	objects := c.objects[r.Resource]
	_, had := objects[r.Key]
	switch {
	case e.spec == "" && had:
		delete(objects, r.Key)
		c.count--
	case e.spec != "":
		if objects == nil {
			objects = map[string]entry{}
			c.objects[r.Resource] = objects
		}
		if !had {
			c.count++
		}
		objects[r.Key] = e
	}
}

// forgetResults forgets which objects the far side has as they are.
func (c *cache) forgetResults() {
	for _, objects := range c.objects {
		for key, e := range objects {
			e.applied = 0
			objects[key] = e
		}
	}
}

// unnamed returns the objects that the snapshot of this round did not name.
func (c *cache) unnamed() (refs []Ref) {
	for resource, objects := range c.objects {
		for key, e := range objects {
			if e.round != c.round {
				refs = append(refs, Ref{resource, key})
			}
		}
	}
	return refs
}
