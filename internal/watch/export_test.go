package watch

// Small has a hub read and keep little, so that few changes are many.
func (h *Hub) Small(rows int32, bytes int) { h.rows, h.keeping = rows, bytes }

// Watched returns how many streams the hub follows, and how many groups and watchers these have.
func (h *Hub) Watched() (targets, groups, watchers int) {
	for _, t := range h.list() {
		t.mu.Lock()
		targets, groups, watchers = targets+1, groups+len(t.groups.byFilter), watchers+len(t.watchers)
		t.mu.Unlock()
	}
	return targets, groups, watchers
}

// Read reads the tokens again.
func (a *Access) Read() error { return a.read() }

// Kept returns the bytes of frames that the hub keeps.
func (h *Hub) Kept() int { return h.bytes }
