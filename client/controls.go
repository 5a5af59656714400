package client

// Controls are what people have ordered for a target in the database. A number grows with each order of its kind.
type Controls struct {
	Paused  bool  `json:"paused,omitempty"`  // see pause()
	Resync  int64 `json:"resync,omitempty"`  // see resync()
	Retry   int64 `json:"retry,omitempty"`   // see retry()
	Approve int64 `json:"approve,omitempty"` // see approve()
}

// Controls returns the newest controls that the server has sent. With a store they are there after a restart, too.
func (i *Informer) Controls() Controls {
	i.mu.RLock()
	defer i.mu.RUnlock()
	if i.controls == nil {
		return Controls{}
	}
	return *i.controls
}

// obey has controllers do what was ordered since the last controls. Numbers mean nothing to an informer that has none yet, and numbers
// that are lower than before come from a restored database: both are noted only. Orders are noted after they were carried out, so that a
// crash in between repeats them.
func (i *Informer) obey(now *Controls) {
	if now == nil {
		return // of a server that sends none
	}
	i.mu.RLock()
	old := i.controls
	i.mu.RUnlock()
	if old == nil {
		old = now
	}
	for _, c := range i.controllers {
		if now.Paused {
			c.queue.hold(closedByPause)
		}
		if now.Approve > old.Approve {
			c.ApproveDeletes()
		}
		if now.Retry > old.Retry {
			c.queue.retry(true)
		}
	}
	if now.Resync > old.Resync {
		i.mu.Lock()
		i.epoch++
		i.mu.Unlock()
		i.enqueue(false)
		i.list()
	}
	for _, c := range i.controllers {
		if !now.Paused {
			c.queue.release(closedByPause)
		}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.controls = now
}
