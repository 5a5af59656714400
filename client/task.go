package client

// task is what a handler makes: an object as it is, or a delete.
type task struct {
	entry

	gone  *deleted
	epoch int32 // in which it began
}

// claim returns what a handler will make of an object. It returns false for an object that the far side must keep as it is: nothing is
// known of it, its delete waits, or the store does not have it yet.
func (i *Informer) claim(r Ref) (t task, ok bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if w := i.written[r]; i.unwritten(r) {
		if !w.due || w.spec == "" {
			return t, false // the saver adds it to the queue again
		}
		i.written[r] = written{entry: w.entry}
	}
	i.controller(r.Resource).queue.begin(r) // holding mu: what changes from here on adds it again
	if e := i.seen(r); e.spec != "" {
		return task{entry: e, epoch: i.epoch}, true
	}
	gone, ok := i.tombstones[r]
	if _, kept := i.kept[r]; !ok || kept || gone.held {
		return t, false
	}
	return task{gone: &gone, entry: entry{version: gone.version}}, true
}

// failure is a result that is neither Applied nor Absent.
type failure struct {
	version int64
	state   State
	message string
}

// note takes over the result of a task, and has it reported.
func (c *Controller) note(r Ref, t task, result Result, err error) {
	o := Observation{Resource: r.Resource, Key: r.Key, Version: t.version, State: result.state, Message: cut(result.reason, messageMost)}
	if err != nil {
		o.State, o.Message = StateFailed, cut(err.Error(), messageMost)
	}
	i := c.informer
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case t.gone == nil:
		if o.State == StateApplied {
			o = c.appliedObservation(r, t.version)
		}
		c.rememberLocked(r, t, o.State == StateApplied)
	case o.State == StateAbsent || o.State == StateApplied:
		c.forgetLocked(r, *t.gone)
	}
	c.reportLocked(o)
}

// rememberLocked notes whether the far side has an object as it is, unless the object has changed by now.
func (c *Controller) rememberLocked(r Ref, made task, applied bool) {
	i := c.informer
	now := i.cache.get(r)
	epoch := int32(0)
	if applied {
		epoch = made.epoch
	}
	if now.spec == "" || now.spec != made.spec || now.version != made.version || now.applied == epoch {
		return
	}
	now.applied = epoch
	i.cache.put(r, now)
	if c.remember {
		i.noteDirty(r, false)
		i.wakeSaver(false)
	}
}

// forgetLocked drops a delete that was made, unless there is another one by now.
func (c *Controller) forgetLocked(r Ref, made deleted) {
	i := c.informer
	if t, ok := i.tombstones[r]; ok && t.version == made.version {
		delete(i.tombstones, r)
		if c.made != nil {
			c.made[r] = struct{}{}
		}
		i.noteDirty(r, false)
		i.wakeSaver(false)
	}
}

// reportLocked has an observation reported. A failed or progressing one that is the same as the last one of its object is not news.
func (c *Controller) reportLocked(o Observation) {
	r := Ref{o.Resource, o.Key}
	switch now := (failure{o.Version, o.State, o.Message}); o.State {
	case StateFailed, StateProgressing:
		if c.failing[r] == now {
			return
		}
		c.failing[r] = now
	case StateApplied, StateAbsent:
		delete(c.failing, r)
	}
	if o.State != "" && o.Version > 0 {
		c.reporter.add(o)
	}
}
