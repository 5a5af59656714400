package client

import (
	"fmt"
	"slices"
	"strings"
)

// wire adds to what Run will need. Problems are kept for Run, which returns all of them at once. When Run has begun it is too late for
// both, and wire panics.
func (i *Informer) wire(what, resource string, add func(), problems ...string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	late := what == wireFor
	switch {
	case resource == "" && what != wireTarget:
		problems = append(problems, "the resource has no name")
	case resource != "" && len(i.opts.Resources) > 0 && !slices.Contains(i.opts.Resources, resource):
		problems = append(problems, "the informer follows "+strings.Join(i.opts.Resources, ", ")+" only")
	}
	if what != wireTarget {
		what = fmt.Sprintf("%s for resource %q", what, resource)
	}
	if i.begun && !late {
		panic(fmt.Sprintf("client: %s after Run of the informer of target %s has begun: call it before", what, i.target))
	}
	for _, p := range problems {
		err := fmt.Errorf("%s: %s", what, p)
		if i.begun {
			panic("client: " + err.Error())
		}
		i.problems = append(i.problems, err)
	}
	if len(problems) == 0 {
		add()
	}
}

// wireFor is the one part of the wiring that is also possible after Run has begun: it adds nothing.
const wireFor = "For"

// wireTarget is the one part of the wiring that names no resource.
const wireTarget = "NewTargetController"
