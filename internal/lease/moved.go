package lease

import (
	"context"
	"time"

	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/store"
)

// owned notes which server gave this process a lease, or renewed it, and when.
func (s *session) owned(sl *slot, timeline int64, at time.Duration) {
	s.noteMove(sl, timeline)
	sl.ownedOn, sl.ownedAt = timeline, at
}

// noteMove notes that a target was owned on an older timeline than that of the server that has just answered.
func (s *session) noteMove(sl *slot, timeline int64) {
	if sl.ownedOn != 0 && sl.ownedOn < timeline {
		if !sl.isLeader() {
			s.moved[sl.name] = sl.ownedAt
		}
		sl.ownedOn = 0
	}
}

// move reports to the new server which targets this process owned on an older timeline. If it worked with an old primary because no
// other server was reachable, the new one does not know what was changed in those targets.
func (s *session) move(live context.Context) {
	for _, sl := range s.slots {
		s.noteMove(sl, s.timeline)
	}
	if len(s.moved) == 0 {
		return
	}
	var p store.TargetsResyncAfterOldPrimaryParams
	for name, at := range s.moved {
		p.Targets, p.Ages = append(p.Targets, name), append(p.Ages, s.cfg.Clock()-at)
	}
	ctx, cancel := s.attempt(live)
	defer cancel()
	names, err := s.queries.TargetsResyncAfterOldPrimary(ctx, p)
	if err != nil {
		s.cfg.Logger.Warn("targets_not_resynced", "error", database.Explain(err), "effect", "it is tried again with the next heartbeat")
		return
	}
	s.moved = map[string]time.Duration{}
	if len(names) > 0 {
		s.cfg.Logger.Warn("old_primary_left", "targets", names, "effect", "they were changed by its rows, and are applied again in full")
	}
}
