package lease

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/store"
)

const lockNotAvailable = "55P03"

// beatIfDue says that this process is there, renews what it holds, and acts on what it sees.
func (s *session) beatIfDue(live context.Context) {
	if s.cut || s.cfg.Clock() < s.beatAt {
		return
	}
	held := s.held()
	sent := s.cfg.Clock() // the server counts from later on
	ctx, cancel := s.attempt(live)
	defer cancel()
	rows, err := s.queries.LeaseHeartbeat(ctx, s.heartbeat(held))
	s.answered(live, err)
	if err != nil {
		return
	}
	v := see(rows, s.cfg.Instance, s.hitAt, s.cfg.Timing)
	s.beatAt = s.hitAt + jittered(s.cfg.Timing.Heartbeat)
	s.peers = v.peers()
	for _, sl := range held {
		s.renewed(live, sl, v.lease(sl), sent)
	}
	if !s.stopping {
		s.act(live, v)
	}
	s.m.signals.planned.emit(struct{}{})
}

// attempt bounds one statement.
func (s *session) attempt(live context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(live, attemptTimeout, errSlowDatabase)
}

func (s *session) held() []*slot {
	var held []*slot
	for _, sl := range s.slots {
		if sl.holds() {
			held = append(held, sl)
		}
	}
	return held
}

func (s *session) heartbeat(held []*slot) store.LeaseHeartbeatParams {
	p := store.LeaseHeartbeatParams{
		Instance: s.cfg.Instance, InstanceName: s.cfg.Name, Version: s.cfg.Version, Listed: s.names, Names: s.names,
		GoneAfter: s.cfg.Timing.Gone, LiveWithin: s.cfg.Timing.Live, LeaderTtl: s.cfg.Timing.MinTTL,
		HeldNames: []string{}, HeldTerms: []int64{}, HeldTtls: []time.Duration{},
	}
	if s.stopping {
		p.Listed = []string{} // others plan without this process
	}
	for _, sl := range held {
		if sl.isLeader() {
			p.LeaderTerm = sl.term
			continue
		}
		p.HeldNames = append(p.HeldNames, sl.name)
		p.HeldTerms = append(p.HeldTerms, sl.term)
		p.HeldTtls = append(p.HeldTtls, sl.ttl)
	}
	return p
}

// answered keeps count of what became of a heartbeat, and says once when they begin to fail and when they work again.
func (s *session) answered(live context.Context, err error) {
	now := s.cfg.Clock()
	switch {
	case err != nil:
		s.failing++
		s.beatAt = now + s.cfg.Timing.Retry
		if s.failing == 1 && !s.cut && live.Err() == nil {
			s.cfg.Logger.Warn("heartbeat_failed", "error", database.Explain(err), "retry_every", s.cfg.Timing.Retry)
		}
		if database.IsReadOnly(err) {
			s.cfg.Pool.Reset() // the server was demoted: connect again, to the one that is primary now
		}
	case s.failing > 0:
		s.cfg.Logger.Info("heartbeat_recovered", "failures", s.failing)
		fallthrough
	default:
		s.failing, s.hitAt = 0, now
	}
	s.m.signals.beat.emit(err)
}

// renewed draws the conclusion for one lease that the heartbeat was to renew.
func (s *session) renewed(live context.Context, sl *slot, seen seenLease, sent time.Duration) {
	switch {
	case seen.renewed:
		sl.hold.renew(sent + sl.ttl)
	case seen.owner != s.cfg.Instance || seen.term != sl.term:
		s.lost(sl, "taken by another process, or taken away")
	default:
		s.renewLocked(live, sl)
	}
}

// renewLocked renews a lease whose row was locked, and waits its turn for it: an owner that writes a lot may hold
// its own row most of the time, so that only trying might fail until the lease is gone. One row that is held for
// long costs the others one pause of RetryInterval, not more.
func (s *session) renewLocked(live context.Context, sl *slot) {
	s.m.signals.lateBeat.emit(sl.label())
	ctx, cancel := s.attempt(live)
	defer cancel()
	sent := s.cfg.Clock()
	var n int64
	err := pgx.BeginFunc(ctx, s.cfg.Pool, func(tx pgx.Tx) (err error) {
		q := store.New(tx)
		if err = q.LockTimeoutSet(ctx, s.cfg.Timing.Retry.Milliseconds()); err != nil {
			return err
		}
		if sl.isLeader() {
			n, err = q.LeaderRenew(ctx, store.LeaderRenewParams{Ttl: sl.ttl, Instance: s.cfg.Instance, Term: sl.term})
		} else {
			n, err = q.TargetRenew(ctx, store.TargetRenewParams{Ttl: sl.ttl, Name: sl.name, Instance: s.cfg.Instance, Term: sl.term})
		}
		return err
	})
	switch {
	case err != nil:
		s.beatBy(s.cfg.Clock() + s.cfg.Timing.Retry)
		if database.Code(err) != lockNotAvailable {
			s.cfg.Logger.Warn("lease_renewal_failed", "lease", sl.label(), "error", database.Explain(err))
		}
	case n == 0:
		s.lost(sl, "taken by another process, or taken away")
	default:
		sl.hold.renew(sent + sl.ttl)
	}
}
