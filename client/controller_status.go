package client

// ControllerStatus is how a Controller stands.
type ControllerStatus struct {
	Queued    int    // objects that wait to be handled
	Running   int    // objects that are handled now
	Failing   int    // objects that have failed last, or that look again after the back-off
	Held      int    // deletes that wait for ApproveDeletes; see MaxDeletes
	Suspended string // the reason of Suspend; "": it is not suspended
}

// Status returns how the controller stands.
func (c *Controller) Status() ControllerStatus {
	var s ControllerStatus
	s.Queued, s.Running, s.Failing = c.queue.counts()
	i := c.informer
	i.mu.RLock()
	defer i.mu.RUnlock()
	s.Suspended = c.suspended
	for r, t := range i.tombstones {
		if t.held && i.controller(r.Resource) == c {
			s.Held++
		}
	}
	return s
}

// Enqueue has the handler run soon for objects, also for those whose result the store remembers. What has neither an object nor an
// outstanding delete is ignored.
func (c *Controller) Enqueue(objects ...Ref) {
	for _, r := range objects {
		c.queue.add(r)
	}
}

// Suspend has no handler begin until Resume, with a reason for Status. Handlers that run go on.
func (c *Controller) Suspend(reason string) {
	c.informer.mu.Lock()
	c.suspended = reason
	c.informer.mu.Unlock()
	c.queue.hold(closedByUser)
}

// Resume ends Suspend.
func (c *Controller) Resume() {
	c.informer.mu.Lock()
	c.suspended = ""
	c.informer.mu.Unlock()
	c.queue.release(closedByUser)
}
