package kubernetes

import (
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// A member goes from row to row when a key is renamed, or a manifest moves from one spec to another. Two rules keep it from being deleted
// in between, in whatever order the calls for the rows are made:
//
//   - An apply takes over what another row has by its marks, and does not want any more.
//   - A removal waits for a row that has claimed the member, and still wants it.
//
// Both ask for the other row as it is now. So a claim is a hint, which says whom to ask for: it may be out of date.

// Claim notes which members an object is to have that it is not known to have, and reports whether its Apply removes others.
func (c *cluster) Claim(obj driver.Object) (removes bool) {
	members, err := parse(obj.Spec)
	if err != nil {
		return false // it is blocked
	}
	return c.claim(obj.Ref, members)
}

func (c *cluster) claim(ref driver.Ref, members []member) (removes bool) {
	has, named := map[place]bool{}, map[place]bool{}
	for _, m := range members {
		named[c.slot(m.at)] = true
	}
	for at, k := range decode(ref.Memory) {
		has[c.slot(at)] = k.uid != ""
		removes = removes || !named[c.slot(at)]
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for at := range named {
		if !has[at] {
			c.claims.add(at, rowName{ref.Resource, ref.Key})
		}
	}
	return removes
}

// claims are the rows that are to have a member, by its slot. Guarded by cluster.mu.
type claims map[place]map[rowName]struct{}

func (all claims) add(at place, row rowName) {
	if all[at] == nil {
		all[at] = map[rowName]struct{}{}
	}
	all[at][row] = struct{}{}
}

func (all claims) drop(at place, row rowName) {
	if delete(all[at], row); len(all[at]) == 0 {
		delete(all, at)
	}
}

// slot is the place of a member, whatever is known of its kind: with the namespace of manifests that name none.
func (c *cluster) slot(at place) place {
	if at.Namespace == "" {
		at.Namespace = c.namespace
	}
	return at
}

// dropClaim forgets that a row is to have a member: it has it, or does not want it any more.
func (c *cluster) dropClaim(at place, row rowName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.claims.drop(c.slot(at), row)
}

// claimed returns another row that has claimed a member and wants it now, if there is one.
func (w *work) claimed(at place) (row rowName, ok bool, err error) {
	if w.ref.Owner == nil {
		return row, false, nil
	}
	w.mu.Lock()
	rows := slices.Collect(maps.Keys(w.claims[w.slot(at)]))
	w.mu.Unlock()
	for _, row := range rows {
		if row == (rowName{w.ref.Resource, w.ref.Key}) {
			continue
		}
		wants, err := w.wants(row, at)
		if err != nil {
			return row, false, fmt.Errorf("%s: %s %q has asked for it: %w", at, row.resource, row.key, err)
		}
		if wants {
			return row, true, nil
		}
		w.dropClaim(at, row)
	}
	return row, false, nil
}

// wants reports whether a row names a member as it is now.
func (w *work) wants(row rowName, at place) (bool, error) {
	spec, err := w.ref.Owner.Wanted(w.ctx, row.resource, row.key)
	if err != nil || spec == nil {
		return false, err //nolint:wrapcheck // by the caller
	}
	members, err := parse(spec)
	if err != nil {
		return true, nil //nolint:nilerr // what the row wants cannot be said: it keeps what it has
	}
	for _, m := range members {
		if w.slot(m.at) == w.slot(at) {
			return true, nil
		}
	}
	return false, nil
}

// released returns an outcome that is not done if the row that has an object by its marks still wants it.
func (w *work) released(at place, now *metav1.PartialObjectMetadata) driver.Outcome {
	resource, key, named := rowOf(now)
	if named && w.ref.Owner != nil {
		switch wants, err := w.wants(rowName{resource, key}, at); {
		case err != nil:
			return driver.Backoff(fmt.Errorf("%s: %s %q has it: %w", at, resource, key, err))
		case !wants:
			return w.stays(at, now)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.claims.add(w.slot(at), rowName{w.ref.Resource, w.ref.Key})
	return driver.Backoff(fmt.Errorf("%s: two rows name it: %s %q has it, and %s %q asks for it", at, resource, key, w.ref.Resource, w.ref.Key))
}
