package desired

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/pgreconciler/reconciler/internal/store"
)

// Catalog is what is tracked, as last read. It is safe for concurrent use; a zero Catalog is empty.
type Catalog struct {
	mu        sync.RWMutex
	resources map[int32]*Resource // guarded by mu; never changed in place
	depends   bool                // whether any of them is joined from base tables
	gone      []int32             // ids of resources that were there
}

// Reload reads all definitions. It reports whether any of them is new, changed or gone.
func (c *Catalog) Reload(ctx context.Context, db store.DBTX) (changed bool, err error) {
	rows, err := store.New(db).ResourceList(ctx)
	if err != nil {
		return false, fmt.Errorf("read the tracked resources: %w", err)
	}
	next, depends := make(map[int32]*Resource, len(rows)), false
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, row := range rows {
		depends = depends || row.Depends
		if old, ok := c.resources[row.ID]; ok && old.is(row) {
			next[row.ID] = old
			continue
		}
		next[row.ID] = newResource(row)
		changed = true
	}
	changed = changed || len(next) != len(c.resources)
	for id := range c.resources {
		if next[id] == nil {
			c.gone = append(c.gone, id)
		}
	}
	c.resources, c.depends = next, depends
	return changed, nil
}

// ByID returns the resource with this id.
func (c *Catalog) ByID(id int32) (*Resource, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	r, ok := c.resources[id]
	return r, ok
}

// Gone reports whether there was a resource with this id, and is none any more. One of the same name may be in its place.
func (c *Catalog) Gone(id int32) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return slices.Contains(c.gone, id)
}

// Losses returns how many resources are gone since the catalog was read first.
func (c *Catalog) Losses() int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return len(c.gone)
}

// ByName returns the resource with this name.
func (c *Catalog) ByName(name string) (*Resource, bool) {
	for _, r := range c.All() {
		if r.Name == name {
			return r, true
		}
	}
	return nil, false
}

// All returns every resource, by id.
func (c *Catalog) All() []*Resource {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return slices.SortedFunc(maps.Values(c.resources), func(a, b *Resource) int { return int(a.ID - b.ID) })
}

// HasDependencies reports whether any resource is joined from base tables.
func (c *Catalog) HasDependencies() bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.depends
}
