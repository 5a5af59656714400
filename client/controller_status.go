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

// ReportHealth has the health of objects reported whose newest result is Applied; see Health. The others have it in their next report.
func (c *Controller) ReportHealth(objects ...Ref) {
	i := c.informer
	i.mu.RLock()
	defer i.mu.RUnlock()
	for _, r := range objects {
		if e := i.cache.get(r); e.spec != "" && e.applied != 0 && e.version > 0 {
			c.reporter.add(c.appliedObservation(r, e.version))
		}
	}
}

// appliedObservation is that of an applied object, with its health.
func (c *Controller) appliedObservation(r Ref, version int64) Observation {
	o := Observation{Resource: r.Resource, Key: r.Key, Version: version, State: StateApplied}
	if c.health != nil {
		o.Healthy, o.Message = c.health(r)
		o.Message = cut(o.Message, messageMost)
	}
	return o
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
