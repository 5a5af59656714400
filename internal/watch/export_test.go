package watch

import (
	"time"

	"github.com/pgreconciler/reconciler/internal/budget"
)

// Small has a hub read and keep little, so that few changes are many.
func (h *Hub) Small(rows int32, bytes int64) { h.rows, h.keeping = rows, bytes }

// Stall sets how long a write may make no progress while others wait for memory.
func (h *Hub) Stall(after time.Duration) { h.stall = after }

// Lend gives watchers another pool of memory.
func (h *Hub) Lend(pages *budget.Pool) { h.pages = pages }

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

// Era returns how often versions of a stream have lost their meaning, as far as the hub has seen.
func (h *Hub) Era(name string) int64 {
	h.mu.Lock()
	t := h.targets[name]
	h.mu.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.state.era
}

// Patience sets how long a report may take to arrive.
func (h *Handler) Patience(d time.Duration) { h.reports.patience = d }

// Reports returns how many reports of large bodies and how many in all have their places.
func (h *Handler) Reports() (large, all int) { return len(h.reports.large), len(h.reports.places) }
