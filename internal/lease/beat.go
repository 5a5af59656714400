package lease

import (
	"context"
	"errors"

	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/loop"
	"github.com/pgreconciler/reconciler/internal/store"
)

// beatIfDue says that this process is there, which renews what it holds, and acts on what it sees.
func (s *session) beatIfDue(live context.Context) {
	if s.cut || s.cfg.Clock() < s.beatAt {
		return
	}
	number := s.m.beats.Add(1)
	sent := s.cfg.Clock() // others count from later on
	ctx, cancel := s.attempt(live)
	defer cancel()
	rows, err := s.queries.LeaseHeartbeat(ctx, s.heartbeat(number))
	s.answered(live, err)
	if err != nil {
		return
	}
	s.sentAt, s.lastBeat = sent, number
	s.seen.look(rows, s.hitAt)
	v := see(rows, s.cfg.Instance, &s.seen, s.cfg.Timing)
	v.options = s.options
	s.beatAt = s.hitAt + jittered(s.cfg.Timing.Heartbeat)
	s.peers, s.timeline = v.peers(), v.timeline
	s.move(live)
	for _, sl := range s.slots {
		if sl.holds() {
			s.renewed(sl, v.lease(sl))
			if sl.phase == running && s.hitAt-sl.begun >= steadyAfter {
				s.runs(sl).Succeeded()
				s.cfg.Loops.Steady(sl.name, s.hitAt-sl.begun)
			}
		}
	}
	if !s.stopping {
		s.act(live, v)
	}
	s.disown(live, v)
	s.m.signals.planned.emit(struct{}{})
}

// attempt bounds one statement.
func (s *session) attempt(live context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(live, attemptTimeout, errSlowDatabase)
}

func (s *session) heartbeat(number int64) store.LeaseHeartbeatParams {
	p := store.LeaseHeartbeatParams{
		Instance: s.cfg.Instance, InstanceName: s.cfg.Name, Version: s.cfg.Version, Listed: s.names, Options: s.options, Names: s.names,
		Beat: number, Answered: s.lastBeat, Failing: s.cfg.Loops.Report(),
	}
	if s.stopping {
		p.Listed, p.Options = []string{}, []string{} // others plan without this process
	}
	return p
}

// answered keeps count of what became of a heartbeat, and says once when they begin to fail and when they work again.
func (s *session) answered(live context.Context, err error) {
	now := s.cfg.Clock()
	if live.Err() == nil {
		s.cfg.Loops.Loop(loop.Heartbeat, "").Done(err)
	}
	switch {
	case err != nil:
		s.failing++
		if s.cfg.Silent != nil && live.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
			s.cfg.Silent()
		}
		s.beatAt = now + s.cfg.Timing.Retry
		if s.failing == 1 && !s.cut && live.Err() == nil {
			s.cfg.Logger.Warn("heartbeat_failed", "error", database.Explain(err), "retry_every", s.cfg.Timing.Retry)
		}
		if database.IsReadOnly(err) {
			s.cfg.Pool.Reset() // the server was demoted: connect again, to the one that is primary now
		}
	case s.failing > 0:
		s.cfg.Logger.Info("heartbeat_recovered", "failures", s.failing)
		if s.cfg.Heard != nil {
			s.cfg.Heard()
		}
		fallthrough
	default:
		s.failing, s.hitAt = 0, now
	}
	s.m.signals.beat.emit(err)
}

// renewed draws the conclusion for one lease that the heartbeat has renewed, if it still is this process's.
func (s *session) renewed(sl *slot, seen seenLease) {
	if seen.owner != s.cfg.Instance || seen.term != sl.term {
		s.lost(sl, "taken by another process, or taken away")
		return
	}
	sl.hold.renew(s.sentAt + sl.ttl)
	s.owned(sl, s.timeline, s.hitAt)
}
