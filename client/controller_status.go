package client

// ControllerStatus is how a Controller stands.
type ControllerStatus struct {
	Queued  int // keys that wait to be handled
	Running int // keys that are handled now
	Failing int // keys that have failed last, or that look again after the back-off
	Held    int // deletes that wait for ApproveDeletes; see MaxDeletes
}

// Status returns how the controller stands.
func (c *Controller) Status() ControllerStatus {
	var s ControllerStatus
	s.Queued, s.Running, s.Failing = c.queue.counts()
	c.informer.mu.RLock()
	defer c.informer.mu.RUnlock()
	for _, t := range c.informer.tombstones[c.resource] {
		if t.held {
			s.Held++
		}
	}
	return s
}
