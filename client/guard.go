package client

import "fmt"

const (
	// Without MaxDeletes a tenth of the objects may go, and this many of few.
	deletesMost   = 10
	deletesDivide = 10
)

// guard counts the deletes that were concluded from absence and not yet made, and holds all of them if there are too many, or if the
// rights of the token may be the cause. The rest of what is to be deleted may run.
func (c *Controller) guard() {
	i := c.informer
	i.mu.Lock()
	gone := i.tombstones[c.resource]
	absent, unread := 0, false
	for _, t := range gone {
		if t.absent {
			absent++
			unread = unread || t.unread
		}
	}
	most := c.deletesMost(len(i.cache.objects[c.resource]) + absent)
	hold := most >= 0 && (unread || absent > most)
	cause := fmt.Sprintf("MaxDeletes is %d, deletes from absence: %d", most, absent)
	if unread {
		cause = fmt.Sprintf("the rights of the token have changed, deletes from absence: %d", absent)
	}
	var waiting []Observation
	for key, t := range gone {
		t.held = t.absent && hold
		gone[key] = t
		if t.held && t.version > 0 {
			waiting = append(waiting, Observation{Resource: c.resource, Key: key, Version: t.version, State: StateProgressing,
				Message: "the delete waits for approval: " + cause})
		}
		if !t.held {
			c.queue.add(key)
		}
	}
	i.mu.Unlock()
	if hold {
		i.client.log.Error("deletes_held", "target", i.target, "resource", c.resource, "deletes", absent, "cause", cause)
	}
	for _, o := range waiting {
		c.reporter.add(o)
	}
}

func (c *Controller) deletesMost(objects int) int {
	if c.mostSet {
		return c.most
	}
	return max(deletesMost, objects/deletesDivide)
}

// ApproveDeletes has the controller make the deletes that MaxDeletes holds, and returns how many there were.
func (c *Controller) ApproveDeletes() int {
	i := c.informer
	approved := 0
	i.mu.Lock()
	for key, t := range i.tombstones[c.resource] {
		if t.held {
			t.absent, t.unread, t.held = false, false, false
			i.tombstones[c.resource][key] = t
			i.noteDirty(ref{c.resource, key})
			approved++
		}
	}
	i.mu.Unlock()
	c.guard()
	i.wakeSaver()
	return approved
}

// claim returns the version that a handler will see, and the delete that it will make. It returns false for an object that the far side
// must keep as it is: nothing is known of it, or its delete waits.
func (i *Informer) claim(r ref) (version int64, gone *deleted, ok bool) {
	i.mu.RLock()
	defer i.mu.RUnlock()
	if e := i.cache.get(r); e.spec != "" {
		return e.version, nil, true
	}
	t, ok := i.tombstones[r.resource][r.key]
	if _, kept := i.kept[r]; !ok || kept || t.held {
		return 0, nil, false
	}
	return t.version, &t, true
}

// forget drops a delete that was made, unless there is another one by now.
func (i *Informer) forget(r ref, made deleted) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if t, ok := i.tombstones[r.resource][r.key]; ok && t.version == made.version {
		delete(i.tombstones[r.resource], r.key)
		if c := i.controllers[r.resource]; c.made != nil {
			c.made[r.key] = struct{}{}
		}
		i.noteDirty(r)
		i.wakeSaver()
	}
}
