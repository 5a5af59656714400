package lease

import (
	"context"

	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/store"
)

// disown ends what the database still calls this process's, and it does not hold: a lease that it did not renew in time,
// or took by a statement whose answer was lost. Its heartbeats would keep it from everybody else. The row goes on naming
// this process: who let a lease expire is not waited for, as its run may never return.
func (s *session) disown(live context.Context, v view) {
	now := s.cfg.Clock()
	p := store.TargetsDisownParams{Instance: s.cfg.Instance}
	for _, sl := range s.slots {
		seen := v.lease(sl)
		if seen.owner != s.cfg.Instance || seen.expired() || sl.hold != nil && sl.hold.remaining() > 0 || sl.dangerous > now {
			continue
		}
		if sl.isLeader() {
			s.disownLeader(live, seen.term)
			continue
		}
		p.Names = append(p.Names, sl.name)
		p.Terms = append(p.Terms, seen.term)
	}
	if len(p.Names) == 0 {
		return
	}
	ctx, cancel := s.attempt(live)
	defer cancel()
	if _, err := s.queries.TargetsDisown(ctx, p); err != nil {
		s.acquireFailed(live, err)
	}
}

func (s *session) disownLeader(live context.Context, term int64) {
	ctx, cancel := s.attempt(live)
	defer cancel()
	if err := s.queries.LeaderDisown(ctx, store.LeaderDisownParams{Instance: s.cfg.Instance, Term: term}); err != nil {
		s.acquireFailed(live, err)
	}
}

// forget removes the rows of processes that were not heard of for long.
func (s *session) forget(live context.Context, v view) {
	var p store.InstancesForgetParams
	for _, i := range v.instances {
		if i.gone {
			p.Ids = append(p.Ids, i.id)
			p.Beats = append(p.Beats, i.beat)
		}
	}
	if len(p.Ids) == 0 {
		return
	}
	ctx, cancel := s.attempt(live)
	defer cancel()
	if err := s.queries.InstancesForget(ctx, p); err != nil {
		s.cfg.Logger.Warn("processes_not_removed", "error", database.Explain(err))
	}
}
