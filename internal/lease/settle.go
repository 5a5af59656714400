package lease

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/pgreconciler/reconciler/internal/crash"
	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/store"
)

// settle decides what comes after a callback has returned.
func (s *session) settle(e ended) {
	sl := e.slot
	if IsFenced(e.err) {
		sl.hold.lose()
	}
	var crash *panicError
	switch {
	case sl.hold.remaining() == 0:
		s.afterLoss(sl, e.err)
	case errors.As(e.err, &crash):
		s.afterPanic(sl, crash)
	case e.err == nil, sl.isLeader() && s.stopping:
		s.afterEnd(sl)
	default:
		s.afterFailure(sl, e.err)
	}
}

// afterLoss: the lease is gone, so there is nothing to keep or to give back.
func (s *session) afterLoss(sl *slot, err error) {
	if !sl.noticed {
		s.lost(sl, "its term is over, or it was not renewed in time")
	}
	s.rested(sl)
	s.cfg.Logger.Info("run_ended_after_loss", "lease", sl.label(), "term", sl.term, "error", err)
	if _, crashed := errors.AsType[*panicError](err); crashed {
		sl.notBefore = s.cfg.Clock() + sl.target.CallTimeout // calls may be under way
	}
	sl.drop()
	s.beatBy(s.cfg.Clock())
}

// afterEnd: all results are written. A callback that ended without being asked rests before it is called again.
func (s *session) afterEnd(sl *slot) {
	if sl.asked || s.stopping {
		sl.failures = 0
		s.rested(sl)
	} else {
		pause := s.pause(sl)
		sl.notBefore = s.cfg.Clock() + pause
		s.cfg.Logger.Warn("run_ended_unasked", "lease", sl.label(), "term", sl.term, "again_in", pause)
	}
	s.giveBack(sl, true)
}

// afterFailure keeps the lease while the callback rests, unless it was to be given back anyway.
func (s *session) afterFailure(sl *slot, err error) {
	if s.stopping || sl.asked {
		s.rested(sl)
		s.cfg.Logger.Error("run_failed", "lease", sl.label(), "term", sl.term, "error", database.Explain(err))
		s.giveBack(sl, false)
		return
	}
	s.runs(sl).Failed(err)
	// That the database was lost says nothing about the next run, and it cannot begin before the database is back.
	pause := s.cfg.Timing.BackoffMin
	if !database.IsUnavailable(err) {
		pause = s.pause(sl)
	}
	s.cfg.Logger.Error("run_failed", "lease", sl.label(), "term", sl.term, "error", database.Explain(err), "again_in", pause)
	s.rest(sl, pause)
}

// afterPanic is a failure after which calls may still be under way: the lease is kept until they must have ended,
// and when the process stops, left to expire.
func (s *session) afterPanic(sl *slot, crash *panicError) {
	s.runs(sl).Failed(crash)
	pause := max(s.pause(sl), sl.target.CallTimeout)
	s.cfg.Logger.Error("run_panicked", "lease", sl.label(), "term", sl.term, "error", crash, "stack", string(crash.stack), "again_in", pause)
	sl.dangerous = s.cfg.Clock() + sl.target.CallTimeout
	s.rest(sl, pause)
}

// pause counts a failure and returns how long to rest.
func (s *session) pause(sl *slot) time.Duration {
	t := s.cfg.Timing
	if s.cfg.Clock()-sl.begun >= t.BackoffMax {
		sl.failures = 0
	}
	sl.failures++
	return backoff(sl.failures, t.BackoffMin, t.BackoffMax)
}

func (s *session) rest(sl *slot, pause time.Duration) {
	sl.phase, sl.asked = resting, false
	sl.notBefore = s.cfg.Clock() + pause
	s.m.signals.resting.emit(sl.label())
}

// resume calls callbacks again that have rested. Those whose lease is gone too wait for a heartbeat, which knows
// whether it is free.
func (s *session) resume(live context.Context) {
	if s.stopping {
		return
	}
	now := s.cfg.Clock()
	var rested []*slot
	for _, sl := range s.slots {
		switch {
		case sl.notBefore == 0 || sl.notBefore > now:
		case sl.phase == resting && sl.holds():
			rested = append(rested, sl)
		case sl.phase == idle:
			sl.notBefore = 0
			s.beatBy(now)
		}
	}
	if len(rested) == 0 {
		return
	}
	s.take(live, view{}, slices.Clone(rested))
	for _, sl := range rested {
		if sl.phase == resting {
			sl.notBefore = s.cfg.Clock() + s.cfg.Timing.Retry
		}
	}
}

// giveBack marks a lease for release. What may still have calls under way is left to expire instead.
func (s *session) giveBack(sl *slot, clean bool) {
	if sl.dangerous > s.cfg.Clock() {
		if s.stopping {
			s.cfg.Logger.Warn("lease_left_to_expire", "lease", sl.label(), "term", sl.term, "reason", "its run panicked, calls may be under way")
			sl.drop()
		}
		return
	}
	sl.phase, sl.clean = releasing, clean
}

// release gives back what is marked. Rows that are locked and servers that are away are tried again until the lease
// has expired by itself.
func (s *session) release(live context.Context) {
	now := s.cfg.Clock()
	if !s.any(releasing) || now < s.releaseAt {
		return
	}
	var err error
	if s.leader != nil && s.leader.phase == releasing {
		err = s.releaseLeader(live)
	}
	err = errors.Join(err, s.releaseTargets(live))
	if err != nil {
		s.cfg.Logger.Warn("lease_not_released", "error", database.Explain(err))
	}
	if s.any(releasing) {
		s.releaseAt = s.cfg.Clock() + s.cfg.Timing.Retry
	}
}

func (s *session) releaseLeader(live context.Context) error {
	ctx, cancel := s.detached(live)
	defer cancel()
	rows, err := s.queries.LeaderRelease(ctx, store.LeaderReleaseParams{Instance: s.cfg.Instance, Term: s.leader.term})
	if len(rows) > 0 {
		s.cfg.Logger.Info("leadership_released", "term", s.leader.term)
		s.leader.drop()
	}
	return err
}

func (s *session) releaseTargets(live context.Context) error {
	p := store.TargetsReleaseParams{Instance: s.cfg.Instance}
	for _, sl := range s.slots {
		if sl.phase == releasing && !sl.isLeader() {
			p.Names = append(p.Names, sl.name)
			p.Terms = append(p.Terms, sl.term)
			p.Cleans = append(p.Cleans, sl.clean)
		}
	}
	if len(p.Names) == 0 {
		return nil
	}
	ctx, cancel := s.detached(live)
	defer cancel()
	crash.Point(crash.BeforeRelease)
	rows, err := s.queries.TargetsRelease(ctx, p)
	crash.Point(crash.AfterRelease)
	for _, row := range rows {
		i := slices.IndexFunc(s.slots, func(sl *slot) bool { return sl.name == row.Name })
		s.cfg.Logger.Info("target_released", "target", row.Name, "term", s.slots[i].term, "clean", s.slots[i].clean)
		s.slots[i].drop()
	}
	return err
}
