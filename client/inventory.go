package client

import (
	"cmp"
	"context"
	"fmt"
	"slices"
)

// inventoryMost is how many observations a report may have.
const inventoryMost = 100_000

// ReportInventory reports the newest result of every object and of every outstanding delete of the controller, so that the server has what
// reports that were lost had. For a controller of a whole target the report is complete: it confirms every delete that was made, too. More
// than 100,000 objects are several reports, which are not complete. It returns an error while the server has not confirmed the objects,
// or a snapshot is under way.
func (c *Controller) ReportInventory(ctx context.Context) error {
	var rest []Observation
	_, err := c.informer.client.report(ctx, c.informer.target, 0, func() (Report, error) {
		r, err := c.inventory()
		if len(r.Observations) > inventoryMost {
			rest = r.Observations[inventoryMost:]
			r = Report{Observations: r.Observations[:inventoryMost]}
		}
		return r, err
	})
	for part := range slices.Chunk(rest, inventoryMost) {
		if err == nil {
			err = c.informer.client.Report(ctx, c.informer.target, Report{Observations: part})
		}
	}
	return err
}

func (c *Controller) inventory() (r Report, err error) {
	i := c.informer
	i.mu.RLock()
	defer i.mu.RUnlock()
	if i.snapshot || !i.confirmed {
		return r, fmt.Errorf("there is no inventory of target %s yet: %s", i.target, i.status.Waiting)
	}
	if c.resource == everyResource && len(i.opts.Resources) == 0 && i.opts.Prefix == "" {
		r.Complete, r.Version = true, i.head
	}
	for resource, objects := range i.cache.objects {
		if i.controller(resource) != c {
			continue
		}
		for key, e := range objects {
			o := c.newestLocked(Ref{resource, key}, e.version, "it was not handled yet")
			switch {
			case e.version == 0:
				o.Message = "it is not published: the far side keeps what it has"
			case e.applied != 0:
				o = c.appliedObservation(Ref{resource, key}, e.version)
			}
			r.Observations = append(r.Observations, o)
		}
	}
	for object, t := range i.tombstones {
		if i.controller(object.Resource) == c {
			r.Observations = append(r.Observations, c.newestLocked(object, t.version, "its delete was not made yet"))
		}
	}
	r.Observations = slices.DeleteFunc(r.Observations, func(o Observation) bool { return o.Version < 1 }) // of a server without versions
	return r, nil
}

// Applied returns the objects of which the newest result is Applied, for the spec that they have now.
func (c *Controller) Applied() (applied []Ref) {
	i := c.informer
	i.mu.RLock()
	defer i.mu.RUnlock()
	for resource, objects := range i.cache.objects {
		for key, e := range objects {
			if e.applied == i.epoch && i.controller(resource) == c {
				applied = append(applied, Ref{resource, key})
			}
		}
	}
	return applied
}

// IsApplied reports whether the newest result of an object is Applied, for the spec that it has now.
func (c *Controller) IsApplied(object Ref) bool {
	i := c.informer
	i.mu.RLock()
	defer i.mu.RUnlock()
	e := i.cache.get(object)
	return e.spec != "" && e.applied == i.epoch && i.controller(object.Resource) == c
}

// newestLocked returns the newest failure of an object or delete, or that there is none.
func (c *Controller) newestLocked(r Ref, version int64, none string) Observation {
	o := Observation{Resource: r.Resource, Key: r.Key, Version: cmp.Or(version, c.informer.head), State: StateProgressing, Message: none}
	if last, failing := c.failing[r]; failing && last.version == version {
		o.State, o.Message = last.state, last.message
	}
	return o
}
