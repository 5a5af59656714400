package client

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
)

// List asks Existing or ExistingObjects again, soon. While the server has not confirmed the objects, nothing is deleted because of it.
func (c *Controller) List() {
	wake(c.lister)
}

// lists lists the far side as often as it is woken, until ctx ends.
func (c *Controller) lists(ctx context.Context) {
	for failures := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-c.lister:
		}
		objects, err := c.listed(ctx)
		if err == nil {
			failures = 0
			c.absent(objects)
			continue
		}
		if ctx.Err() != nil {
			return
		}
		pause := min(c.queue.max, c.queue.min<<min(failures, 30))
		pause -= rand.N(pause/2 + 1)
		failures++
		c.informer.client.log.Warn("existing_failed", "resource", c.resource,
			"error", err.Error(), "again_in", pause)
		if !wait(ctx, pause) {
			return
		}
		c.List()
	}
}

// listed returns every object of the far side, or an error.
func (c *Controller) listed(ctx context.Context) (objects []Ref, err error) {
	c.informer.mu.Lock()
	c.made = map[Ref]struct{}{}
	c.informer.mu.Unlock()
	err = contained(func() error {
		for object, err := range c.existing(ctx) {
			if err != nil {
				return err
			}
			objects = append(objects, object)
		}
		return nil
	})
	return objects, err
}

// absent deletes what the far side has and nothing wants, unless the guard holds it. Before the server has confirmed the objects, and
// during a snapshot, nothing is concluded: the controller lists again afterwards.
func (c *Controller) absent(objects []Ref) {
	i := c.informer
	found, ignored := 0, 0
	var absences absences
	i.mu.Lock()
	for _, r := range objects {
		_, gone := i.tombstones[r]
		_, kept := i.kept[r]
		_, made := c.made[r] // the list may be older
		if i.snapshot || !i.confirmed || gone || kept || made || i.cache.get(r).spec != "" {
			continue
		}
		if !i.followsLocked(c, r) {
			ignored++
			continue
		}
		i.bury(r, &deleted{version: i.head, absent: true})
		i.noteDirty(r, true)
		found++
	}
	c.made = nil
	if found > 0 {
		absences = c.guardLocked()
	}
	i.mu.Unlock()
	log := i.client.log.With("target", i.target, "resource", c.resource)
	if ignored > 0 {
		log.Warn("orphans_ignored", "objects", ignored, "cause", "the informer does not follow them")
	}
	if found > 0 {
		log.Info("orphans_found", "objects", found)
		absences.log(i)
		i.wakeSaver(true)
	}
}

// followsLocked reports whether the objects would have an object if something wanted it.
func (i *Informer) followsLocked(c *Controller, r Ref) bool {
	switch {
	case r.Key == "" || !strings.HasPrefix(r.Key, i.opts.Prefix):
		return false
	case len(i.opts.Resources) > 0:
		return slices.Contains(i.opts.Resources, r.Resource)
	}
	return c.resource == r.Resource || len(i.cache.objects[r.Resource]) > 0
}
