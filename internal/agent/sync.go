package agent

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/pgreconciler/reconciler/client"
	"github.com/pgreconciler/reconciler/internal/driver"
)

// existing lists what the far side has. On the way it finds what is missing there or different, and has it applied again; what is
// there and not wanted is the controller's to find, and its guard's to hold.
func (s *session) existing(ctx context.Context) iter.Seq2[client.Ref, error] {
	return func(yield func(client.Ref, error) bool) {
		s.start(ctx)
		applied := map[client.Ref]struct{}{} // before the listing: what is applied from now on may be missing in it
		for _, at := range s.controller.Applied() {
			applied[at] = struct{}{}
		}
		var different []client.Ref
		for one, err := range s.list(ctx) {
			if err != nil {
				err = fmt.Errorf("list what the target has: %s", short(err))
				s.noteSync(err)
				yield(client.Ref{}, err)
				return
			}
			at := client.Ref{Resource: one.Resource, Key: one.Key}
			if _, ok := applied[at]; ok && s.differs(at, one) {
				different = append(different, at)
			}
			delete(applied, at)
			if !yield(at, nil) {
				return
			}
		}
		s.drift("different", different)
		missing := make([]client.Ref, 0, len(applied))
		for at := range applied {
			missing = append(missing, at)
		}
		s.drift("missing", missing)
		s.noteSync(nil)
		signal(s.listed)
	}
}

// list lists the far side. A program may name the resource of an object wrongly, and a delete would then remove the object of another
// one: a resource that the stream has no object of makes the listing worthless.
func (s *session) list(ctx context.Context) iter.Seq2[driver.Listed, error] {
	return func(yield func(driver.Listed, error) bool) {
		resources := s.informer.Resources()
		if len(resources) == 0 {
			return
		}
		for one, err := range driver.List(ctx, s.lister, resources) {
			if err == nil && one.Unmarked && !slices.Contains(resources, one.Resource) {
				if resources = s.informer.Resources(); !slices.Contains(resources, one.Resource) {
					err = unknownResource(one)
				}
			}
			if !yield(one, err) || err != nil {
				return
			}
		}
	}
}

func unknownResource(one driver.Listed) error {
	const shownMax = 100
	return fmt.Errorf("it names an object of resource %s, of which the stream has none: key %s; nothing is deleted. Correct what makes the listing: "+
		"it must name the resource of each object, and leave out what reconciler did not apply here",
		driver.Snippet([]byte(one.Resource), shownMax), driver.Snippet([]byte(one.Key), shownMax))
}

// noteSync notes whether a listing failed. What is news is reported at once.
func (s *session) noteSync(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.unlist
	if err != nil {
		s.unlist = "the sync failed: " + err.Error()
	} else {
		s.synced, s.unlist = time.Now(), ""
	}
	if s.unlist != before {
		signal(s.news)
	}
}

// differs reports whether the far side has another content than the object's spec, or another memory than what is remembered.
func (s *session) differs(at client.Ref, one driver.Listed) bool {
	object, wanted := s.informer.Object(at.Resource, at.Key)
	if one.Memory != nil {
		memory, err := s.memory.of(at)
		return wanted && (err != nil || memory == nil || !bytes.Equal(memory, one.Memory))
	}
	return wanted && len(one.Hashes) > 0 && !slices.Contains(one.Hashes, driver.HashSpec(object.Spec))
}

// drift has objects applied again.
func (s *session) drift(kind string, objects []client.Ref) {
	s.metrics.drift.WithLabelValues(s.cfg.Name, kind).Add(float64(len(objects)))
	if len(objects) > 0 {
		s.log.Info("drift_found", "kind", kind, "objects", len(objects))
		s.controller.Enqueue(objects...)
	}
}
