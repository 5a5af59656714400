package client

import (
	"cmp"
	"context"
	"slices"
)

const (
	resetScope   = "scope"   // other filters or rights; the filter of an informer is always the same
	resetUnknown = "unknown" // another stream
)

// restart begins a snapshot: nothing was named, and no version counts. Controllers begin nothing until it has ended. Unless it is known
// that the server still has what controllers reported, they look at everything then, and report it again.
func (i *Informer) restart(reason string) {
	for _, c := range i.controllers {
		c.queue.hold(closedBySnapshot)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.cache.round++
	for r := range i.kept {
		i.noteDirty(r, false)
	}
	clear(i.kept)
	i.snapshot, i.bookmark, i.status.Revision = true, "", 0
	i.rights = i.rights || reason == resetScope
	i.anew = i.anew || !slices.Contains([]string{resetCut, "expired", resetScope}, reason)
}

// complete ends a snapshot: what it did not name does not exist.
func (i *Informer) complete(ctx context.Context, f Frame) {
	i.obey(f.Controls) // before the guard: an approval is not one of what this snapshot has left out
	// A handler that began before the reset must not find its object gone before the guard has counted it.
	i.mu.Lock()
	gone := i.cache.unnamed()
	i.status.Waiting = "handlers of objects that are gone still run"
	i.mu.Unlock()
	for _, c := range i.controllers {
		if !c.queue.settle(ctx, gone) {
			return // the next process gets the same snapshot
		}
	}
	for _, r := range gone {
		old := i.entry(r)
		i.change(r, old, entry{}, &deleted{version: cmp.Or(f.Version, old.version), absent: true, unread: i.rights})
	}
	i.mu.Lock()
	first, before := !i.primed, i.before
	i.snapshot, i.primed, i.before = false, true, map[Ref]entry{}
	i.placeLocked(f)
	i.renumberLocked()
	if i.anew {
		for _, c := range i.controllers {
			clear(c.failing) // the server may not have them any more
		}
	}
	i.mu.Unlock()
	if first {
		i.prime()
	} else {
		if i.anew {
			i.enqueue(false)
		}
		for r, old := range before {
			if now := i.entry(r); now.spec != old.spec || now.version != old.version {
				i.deliver(r, old.spec, now.spec)
			}
		}
		i.release()
	}
	i.anew, i.rights = false, false
	i.wakeSaver(true)
}

// renumberLocked lowers versions of deletes from before a restore, which the server would refuse.
func (i *Informer) renumberLocked() {
	for r, t := range i.tombstones {
		if i.head > 0 && t.version > i.head {
			t.version = i.head
			i.tombstones[r] = t
			i.noteDirty(r, false)
		}
	}
}

// prime has controllers begin, now that all objects are there for the first time.
func (i *Informer) prime() {
	i.enqueue(true)
	i.release()
	close(i.synced)
}

// enqueue has controllers look at every object, or at those of which they remember no result.
func (i *Informer) enqueue(remembered bool) {
	i.mu.RLock()
	defer i.mu.RUnlock()
	for resource, objects := range i.cache.objects {
		c := i.controller(resource)
		if c == nil {
			continue
		}
		for key, e := range objects {
			if !remembered || !c.remember || e.applied != i.epoch {
				c.queue.add(Ref{resource, key})
			}
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
	i.obey(f.Controls)
	i.wakeSaver(true)
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
		i.mu.Lock()
		absences := c.guardLocked()
		i.mu.Unlock()
		absences.log(i)
		c.queue.retry(false)
		c.queue.release(closedBySnapshot)
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
		c.List()
	}
}
