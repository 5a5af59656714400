package client

import "cmp"

// ref names an object.
type ref struct{ resource, key string }

func compareRefs(a, b ref) int {
	return cmp.Or(cmp.Compare(a.resource, b.resource), cmp.Compare(a.key, b.key))
}

// entry is an object as the server sent it. Its spec is JSON, and "" if there is no such object.
type entry struct {
	spec    string
	version int64
	round   int32 // of the snapshot that named it last
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

func (c *cache) get(r ref) entry { return c.objects[r.resource][r.key] }

// fresh reports whether a frame with this version is news for an object.
func (c *cache) fresh(old entry, version int64) bool {
	return old.spec == "" || old.round != c.round || version > old.version
}

// put replaces an object. Without a spec it removes it.
func (c *cache) put(r ref, e entry) {
	objects := c.objects[r.resource]
	_, had := objects[r.key]
	switch {
	case e.spec == "" && had:
		delete(objects, r.key)
		c.count--
	case e.spec != "":
		if objects == nil {
			objects = map[string]entry{}
			c.objects[r.resource] = objects
		}
		if !had {
			c.count++
		}
		objects[r.key] = e
	}
}

// unnamed returns the objects that the snapshot of this round did not name.
func (c *cache) unnamed() (refs []ref) {
	for resource, objects := range c.objects {
		for key, e := range objects {
			if e.round != c.round {
				refs = append(refs, ref{resource, key})
			}
		}
	}
	return refs
}
