package client

import (
	"context"
	"math/rand/v2"
)

// wakeLister has the controller list the far side.
func (c *Controller) wakeLister() {
	select {
	case c.lister <- struct{}{}:
	default:
	}
}

// lists lists the far side as often as it is woken, until ctx ends.
func (c *Controller) lists(ctx context.Context) {
	for failures := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-c.lister:
		}
		keys, err := c.listed(ctx)
		if err == nil {
			failures = 0
			c.absent(keys)
			continue
		}
		if ctx.Err() != nil {
			return
		}
		pause := min(c.queue.max, c.queue.min<<min(failures, 30))
		pause -= rand.N(pause/2 + 1)
		failures++
		c.informer.client.log.Warn("existing_failed", "target", c.informer.target, "resource", c.resource,
			"error", err.Error(), "again_in", pause)
		if !wait(ctx, pause) {
			return
		}
		c.wakeLister()
	}
}

// listed returns every key of the far side, or an error.
func (c *Controller) listed(ctx context.Context) (keys []string, err error) {
	c.informer.mu.Lock()
	c.made = map[string]struct{}{}
	c.informer.mu.Unlock()
	err = contained(func() error {
		for key, err := range c.existing(ctx) {
			if err != nil {
				return err
			}
			keys = append(keys, key)
		}
		return nil
	})
	return keys, err
}

// absent deletes what the far side has and nothing wants, unless the guard holds it. During a snapshot nothing is concluded: its end
// asks for another list.
func (c *Controller) absent(keys []string) {
	i := c.informer
	found := 0
	i.mu.Lock()
	for _, key := range keys {
		r := ref{c.resource, key}
		_, gone := i.tombstones[c.resource][key]
		_, kept := i.kept[r]
		_, made := c.made[key] // the list may be older
		if i.snapshot || gone || kept || made || i.cache.get(r).spec != "" {
			continue
		}
		i.bury(r, &deleted{version: i.head, absent: true})
		i.noteDirty(r)
		found++
	}
	c.made = nil
	i.mu.Unlock()
	if found > 0 {
		i.client.log.Info("orphans_found", "target", i.target, "resource", c.resource, "objects", found)
		c.guard()
		i.wakeSaver()
	}
}
