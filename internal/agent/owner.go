package agent

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/guard"
)

const (
	// removalsFraction and removalsLeast are which part of the objects, and how many, the parts of objects may be that applies remove
	// within removalsWindow, without guard.max_deletes.
	removalsFraction = 0.1
	removalsLeast    = 10
	removalsWindow   = time.Minute
)

// removalLimits are those of what applies remove: the server's guard counts objects, and does not see into them.
func removalLimits(g config.Guard) guard.Limits {
	limits := guard.Limits{MaxDeletes: -1, MaxFraction: removalsFraction, Floor: removalsLeast, Window: removalsWindow}
	if g.MaxDeletes != nil {
		limits.MaxDeletes, limits.MaxFraction = *g.MaxDeletes, 1
	}
	return limits
}

// MayRemove implements driver.Caller.
func (s *session) MayRemove(n int) bool {
	s.removing.Lock()
	defer s.removing.Unlock()
	objects := int64(len(s.controller.Applied()))
	s.removals.Count(objects - s.counted)
	s.counted = objects
	return s.removals.Take(int64(n))
}

// Wanted implements driver.Caller.
func (s *session) Wanted(_ context.Context, resource, key string) (json.RawMessage, error) {
	switch object, wanted := s.informer.Object(resource, key); {
	case wanted:
		return object.Spec, nil
	case s.informer.Absent(resource, key):
		return nil, nil
	}
	return nil, errors.New("whether its row wants it is not known at the moment")
}
