package client

import (
	"context"
	"slices"
)

// resetScope is the reason of a reset because of other filters or rights. The filter of an informer is always the same.
const resetScope = "scope"

// restart begins a snapshot: nothing was named, and no version counts. Controllers begin nothing until it has ended. Unless it is known
// that the server still has what controllers reported, they look at everything then, and report it again.
func (i *Informer) restart(reason string) {
	for _, c := range i.controllers {
		c.queue.hold()
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.cache.round++
	for r := range i.kept {
		i.noteDirty(r)
	}
	clear(i.kept)
	i.snapshot, i.bookmark, i.status.Revision = true, "", 0
	i.rights = i.rights || reason == resetScope
	i.anew = i.anew || !slices.Contains([]string{resetCut, "expired", resetScope}, reason)
}

// complete ends a snapshot: what it did not name does not exist.
func (i *Informer) complete(ctx context.Context, f Frame) {
	gone := i.cache.unnamed()
	// A handler that began before the reset must not find its object gone before the guard has counted it.
	i.mu.Lock()
	i.status.Waiting = "handlers of objects that are gone still run"
	i.mu.Unlock()
	for resource, c := range i.controllers {
		if !c.queue.settle(ctx, keysOf(resource, gone)) {
			return // the next process gets the same snapshot
		}
	}
	for _, r := range gone {
		old := i.cache.get(r)
		i.change(r, old, entry{}, &deleted{version: max(old.version, f.Version), absent: true, unread: i.rights})
	}
	i.mu.Lock()
	first, before := !i.primed, i.before
	i.snapshot, i.primed, i.before = false, true, map[ref]entry{}
	i.placeLocked(f)
	i.mu.Unlock()
	if first {
		i.prime()
	} else {
		if i.anew {
			i.enqueue()
		}
		for r, old := range before {
			if now := i.cache.get(r); now.spec != old.spec || now.version != old.version {
				i.deliver(r, old.spec, now.spec)
			}
		}
		i.release()
	}
	i.anew, i.rights = false, false
	i.wakeSaver()
}

// prime has controllers begin, now that all objects are there for the first time.
func (i *Informer) prime() {
	i.enqueue()
	i.release()
	close(i.synced)
}

// enqueue has controllers look at every object.
func (i *Informer) enqueue() {
	for resource, c := range i.controllers {
		for key := range i.cache.objects[resource] {
			c.queue.add(key)
		}
	}
}

// checkpoint notes where the stream is. Inside a snapshot that is nothing to keep: the next process begins another one.
func (i *Informer) checkpoint(f Frame) {
	i.mu.Lock()
	first := !i.confirmed
	if i.snapshot || f.Bookmark == "" {
		i.mu.Unlock()
		return
	}
	i.placeLocked(f)
	i.mu.Unlock()
	i.wakeSaver()
	if first {
		i.list()
	}
}

// placeLocked notes the newest bookmark outside of a snapshot.
func (i *Informer) placeLocked(f Frame) {
	i.bookmark, i.confirmed, i.head, i.status.Revision, i.status.Waiting = f.Bookmark, true, f.Version, f.Revision, ""
	i.turn()
}

// release has the guards count what is to be deleted, and controllers begin.
func (i *Informer) release() {
	for _, c := range i.controllers {
		c.guard()
		c.queue.release()
	}
	i.list()
}

// list has controllers list the far side, once the objects are known to be complete now, not only when they were stored.
func (i *Informer) list() {
	i.mu.RLock()
	defer i.mu.RUnlock()
	if !i.confirmed {
		return
	}
	for _, c := range i.controllers {
		c.wakeLister()
	}
}

func keysOf(resource string, refs []ref) map[string]struct{} {
	keys := map[string]struct{}{}
	for _, r := range refs {
		if r.resource == resource {
			keys[r.key] = struct{}{}
		}
	}
	return keys
}
