package client

import "fmt"

// mapper adds the keys that a change of another object concerns.
type mapper func(key, old, now string)

// Map has a controller look at the objects that a change of another one concerns: at the deployments that use a secret, say. The function
// gets both sides of the change, nil for none, and returns keys of the controller's resource, so that what is referred to no more is
// looked at, too. P must have what names the other object. Keys without an object are ignored. Call Map before Run of
// the informer: it panics afterwards.
func Map[P any](c *Controller, others *Objects[P], keys func(old, now *P) []string) {
	i := c.informer
	var problems []string
	if keys == nil {
		problems = append(problems, "it has no function")
	}
	if others.informer != i {
		problems = append(problems, "its objects and its controller have different informers")
	}
	if c.resource == everyResource {
		problems = append(problems, "the controller is one of the target, and Map needs one of a resource")
	}
	m := func(key, old, now string) {
		err := contained(func() error {
			before, err := side[P](old)
			after, failed := side[P](now)
			if before != nil || after != nil {
				for _, k := range keys(before, after) {
					c.queue.add(Ref{c.resource, k})
				}
			}
			if failed != nil {
				return failed
			}
			return err
		})
		if err != nil {
			i.client.log.Error("change_not_mapped", "target", i.target, "resource", others.resource, "key", key,
				"controller", c.resource, "error", fmt.Sprint(err))
		}
	}
	i.wire("Map", others.resource, func() { i.mappers[others.resource] = append(i.mappers[others.resource], m) }, problems...)
}

func side[P any](spec string) (*P, error) {
	if spec == "" {
		return nil, nil
	}
	object, err := decode[P](spec)
	if err != nil {
		return nil, err
	}
	return &object, nil
}
