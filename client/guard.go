package client

import "fmt"

const (
	// Without MaxDeletes a tenth of the objects may go, and this many of few.
	deletesMost   = 10
	deletesDivide = 10
)

// absences are those of a controller, by resource.
type absences map[string]*absence

// absence counts the deletes of a resource that were concluded from absence and not yet made.
type absence struct {
	deletes int
	unread  bool   // the rights of the token may be the cause of one of them
	cause   string // why all of them wait; "": they do not
}

// guardLocked counts the deletes that were concluded from absence, and holds all of a resource if there are too many, or if the rights of
// the token may be the cause. The rest of what is to be deleted may run. It needs mu, and the caller must not have released mu since it
// concluded deletes, unless the queue is held. The caller logs the result after it has released mu.
func (c *Controller) guardLocked() absences {
	i := c.informer
	absences := absences{}
	for r, t := range i.tombstones {
		if !t.absent || i.controller(r.Resource) != c {
			continue
		}
		if absences[r.Resource] == nil {
			absences[r.Resource] = &absence{}
		}
		absences[r.Resource].deletes++
		absences[r.Resource].unread = absences[r.Resource].unread || t.unread
	}
	for resource, a := range absences {
		a.judge(c.deletesMost(len(i.cache.objects[resource]) + a.deletes))
	}
	for r, t := range i.tombstones {
		if i.controller(r.Resource) != c {
			continue
		}
		t.held = t.absent && absences[r.Resource].cause != ""
		i.tombstones[r] = t
		if !t.held {
			c.queue.add(r)
			continue
		}
		c.reportLocked(Observation{Resource: r.Resource, Key: r.Key, Version: t.version, State: StateProgressing,
			Message: "the delete waits for approval: " + absences[r.Resource].cause})
	}
	return absences
}

// log names the resources of i whose deletes wait.
func (a absences) log(i *Informer) {
	for resource, a := range a {
		if a.cause != "" {
			i.client.log.Error("deletes_held", "target", i.target, "resource", resource, "deletes", a.deletes, "cause", a.cause)
		}
	}
}

// judge decides whether the deletes wait. A negative number is no limit.
func (a *absence) judge(most int) {
	switch {
	case most < 0:
	case a.unread:
		a.cause = fmt.Sprintf("the rights of the token have changed, deletes from absence: %d", a.deletes)
	case a.deletes > most:
		a.cause = fmt.Sprintf("MaxDeletes is %d, deletes from absence: %d", most, a.deletes)
	}
}

func (c *Controller) deletesMost(objects int) int {
	if c.mostSet {
		return c.most
	}
	return max(deletesMost, objects/deletesDivide)
}

// ApproveDeletes has the controller make the deletes that MaxDeletes holds, and returns how many there were, with those of Approve.
func (c *Controller) ApproveDeletes() int {
	i := c.informer
	approved := 0
	i.mu.Lock()
	for r, t := range i.tombstones {
		if t.held && i.controller(r.Resource) == c {
			t.absent, t.unread, t.held = false, false, false
			i.tombstones[r] = t
			i.noteDirty(r, true)
			approved++
		}
	}
	absences := c.guardLocked()
	i.mu.Unlock()
	absences.log(i)
	i.wakeSaver(true)
	if c.approve != nil {
		approved += c.approve()
	}
	return approved
}
