package kubernetes

import (
	"fmt"
	"hash/fnv"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// base is how a call has found or left a member.
type base struct {
	row     rowName
	sum     uint64 // of what is remembered of it; 0: a call deletes it
	version uint64 // resourceVersion that was seen last; versions of a kind can be compared
}

// rowName names the object of a member.
type rowName struct{ resource, key string }

// sight is what a watch shows of a member.
type sight struct {
	at    place
	meta  *metav1.PartialObjectMetadata // nil: a list does not have it any more
	event bool                          // an event, and not part of a list
	gone  bool
}

// bases are how calls have left members: what a watch shows that is so, or older, is not a change. Guarded by cluster.mu.
type bases struct {
	members map[place]base
	newest  map[schema.GroupKind]uint64 // resourceVersion of a kind that was seen
	calls   map[rowName][]sight         // objects with a call under way: what the watch shows of them waits for its end
	changed func(resource, key string)
}

func newBases() bases {
	return bases{members: map[place]base{}, newest: map[schema.GroupKind]uint64{}, calls: map[rowName][]sight{}}
}

func versionOf(meta interface{ GetResourceVersion() string }) uint64 {
	version, _ := strconv.ParseUint(meta.GetResourceVersion(), 10, 64)
	return version
}

// newestOf returns the newest version of a kind that was seen.
func (c *cluster) newestOf(kind schema.GroupKind) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.newest[kind]
}

// passes notes that a version of a kind was seen.
func (c *cluster) passes(kind schema.GroupKind, version uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.newest[kind] = max(c.newest[kind], version)
}

// listedAt notes the version of a list, and the newest one that was seen before it was asked for. A list that is older comes from a cluster
// that was restored: its changes would pass for old ones until it has made up for all that it lost. The versions are forgotten then, and the
// watch begins anew.
func (c *cluster) listedAt(kind schema.GroupKind, version, before uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if newest := c.newest[kind]; version == 0 || version >= min(before, newest) {
		c.newest[kind] = max(newest, version)
		return
	}
	clear(c.newest)
	for at, one := range c.members {
		one.version = 0
		c.members[at] = one
	}
	select {
	case c.restored <- struct{}{}:
	default:
	}
}

func sumOf(k known) uint64 {
	sum := fnv.New64a()
	fmt.Fprintf(sum, "%s %s %s", k.uid, k.applied, k.fields)
	return sum.Sum64()
}

// calling notes that a call for an object begins. The function that it returns ends it.
func (c *cluster) calling(ref driver.Ref) (end func()) {
	row := rowName{ref.Resource, ref.Key}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls[row] = []sight{}
	return func() {
		c.mu.Lock()
		held := c.calls[row]
		delete(c.calls, row)
		c.mu.Unlock()
		for _, s := range held {
			c.tell(c.saw(s))
		}
	}
}

// observed notes how a call has found or left a member.
func (w *work) observed(at place, meta *metav1.PartialObjectMetadata) {
	w.passes(at.GroupKind, versionOf(meta))
	w.mu.Lock()
	defer w.mu.Unlock()
	row := rowName{w.ref.Resource, w.ref.Key}
	w.members[at] = base{row, sumOf(w.seen(at, meta)), versionOf(meta)}
	w.claims.drop(w.slot(at), row)
}

// lastOfAnother reports whether the last call of this process that has seen a member was for another row.
func (w *work) lastOfAnother(at place) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	last, ok := w.members[at]
	return ok && last.row != rowName{w.ref.Resource, w.ref.Key}
}

// removes notes that a call is about to delete a member.
func (c *cluster) removes(at place) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if before, ok := c.members[at]; ok {
		before.sum = 0
		c.members[at] = before
	}
}

// tell names an object, if there is one.
func (c *cluster) tell(row rowName, changed bool) {
	c.mu.Lock()
	do := c.changed
	c.mu.Unlock()
	if changed && do != nil {
		do(row.resource, row.key)
	}
}

// saw returns the object of a member that a watch shows, and whether that is to be looked at: the member is another way than a call has
// left it, or an event is about a member that no call of this process was for.
func (c *cluster) saw(s sight) (row rowName, changed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before, found := c.members[s.at]
	row = before.row
	if !found {
		resource, key, ok := "", "", false
		if s.meta != nil {
			resource, key, ok = rowOf(s.meta)
		}
		if row = (rowName{resource, key}); !ok {
			return row, false
		}
	}
	if held, calls := c.calls[row]; calls {
		c.calls[row] = append(held, s)
		return row, false
	}
	if !found {
		return row, s.event
	}
	if s.meta != nil {
		version := versionOf(s.meta)
		if version <= before.version {
			return row, false
		}
		before.version = version
	}
	if s.gone {
		delete(c.members, s.at)
		return row, before.sum != 0
	}
	c.members[s.at] = before
	return row, before.sum != 0 && before.sum != sumOf(c.seen(s.at, s.meta))
}

// membersOf returns the places of a kind that have been seen, in a namespace or in all.
func (c *cluster) membersOf(kind schema.GroupKind, namespace string) map[place]struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	found := map[place]struct{}{}
	for at := range c.members {
		if at.GroupKind == kind && (namespace == "" || at.Namespace == namespace) {
			found[at] = struct{}{}
		}
	}
	return found
}
