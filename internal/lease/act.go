package lease

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/loop"
	"github.com/pgreconciler/reconciler/internal/store"
)

// act takes what falls to this process, hands over one target if another has too few, and as the leader keeps
// targets.configured true.
func (s *session) act(live context.Context, v view) {
	s.beatBy(v.nextExpiry(s.names, s.leader != nil))
	s.ensureRows(live, v)
	plan := v.plan(s.names)
	s.tellOutvoted(v)
	var take []*slot
	for _, sl := range s.slots {
		wanted := plan[sl.name] == s.cfg.Instance || sl.isLeader()
		switch {
		case sl.phase != idle:
		case !wanted || !v.lease(sl).availableTo(s.cfg.Instance):
			sl.missed = 0
		case sl.notBefore <= s.cfg.Clock():
			take = append(take, sl)
		}
	}
	s.take(live, v, take)
	s.handOver(v, plan)
	s.forget(live, v)
	if s.leader != nil && s.leader.holds() {
		s.keepConfigured(live, v)
	}
}

// tellOutvoted logs which targets this process leaves to others because it has other options for them, once for each.
func (s *session) tellOutvoted(v view) {
	outvoted := v.outvoted(s.names)
	for name, process := range outvoted {
		if _, known := s.outvoted[name]; !known {
			s.cfg.Logger.Warn("target_options_differ", "target", name, "process", process,
				"effect", "this process does not take the target while that one runs", "remedy", "give both the same driver and options, or stop the one with the old ones")
		}
	}
	s.outvoted = outvoted
}

// ensureRows writes targets again whose rows a person removed with release() while this process had them listed, and
// those whose rows were locked when it started.
func (s *session) ensureRows(live context.Context, v view) {
	missing := slices.ContainsFunc(s.names, func(name string) bool { _, ok := v.targets[name]; return !ok })
	if !missing && !s.undescribed {
		return
	}
	ctx, cancel := s.attempt(live)
	defer cancel()
	if err := s.describe(ctx, s.queries); err != nil {
		s.cfg.Logger.Warn("targets_not_described", "error", database.Explain(err))
	}
	if missing {
		s.beatBy(s.cfg.Clock() + s.cfg.Timing.Retry)
	}
}

// take acquires leases and begins their runs. What somebody else was faster with, or holds locked, is tried again
// soon, if it is still to be had then.
func (s *session) take(live context.Context, v view, slots []*slot) {
	var targets []*slot
	var err error
	for _, sl := range slots {
		sl.notBefore = 0
		if sl.isLeader() {
			err = s.takeLeader(live, v.leader)
		} else {
			targets = append(targets, sl)
		}
	}
	if err = errors.Join(err, s.takeTargets(live, v, targets)); err == nil {
		err = s.missed(slots)
	}
	if live.Err() == nil {
		s.cfg.Loops.Loop(loop.Acquire, "").Done(err)
	}
	if slices.ContainsFunc(slots, func(sl *slot) bool { return sl.phase != running }) {
		s.beatBy(s.cfg.Clock() + s.cfg.Timing.Retry)
	}
}

// missed counts the tries in a row that found a lease free and did not get it. It returns an error while there are leases of which it cannot
// be that somebody else was faster, also when others were tried.
func (s *session) missed(tried []*slot) error {
	for _, sl := range tried {
		sl.missed++
	}
	var locked []string
	for _, sl := range s.slots {
		if sl.phase == running {
			sl.missed = 0
		}
		if sl.missed >= missedMax {
			locked = append(locked, sl.label())
		}
	}
	if len(locked) == 0 {
		return nil
	}
	return fmt.Errorf("take %s: the row is locked, as by a transaction that somebody left open", strings.Join(locked, ", "))
}

func (s *session) takeLeader(live context.Context, seen seenLease) error {
	ctx, cancel := s.attempt(live)
	defer cancel()
	terms, err := s.queries.LeaderAcquire(ctx, store.LeaderAcquireParams{
		Instance: s.cfg.Instance, Ttl: s.leader.ttl, SeenOwner: seen.owner, SeenTerm: seen.term, SeenBeat: seen.beat,
	})
	if err != nil {
		s.acquireFailed(live, err)
		return fmt.Errorf("take the leadership: %w", err)
	}
	for _, term := range terms {
		s.leader.term = term
		s.cfg.Logger.Info("leadership_acquired", "term", term)
		ctx := s.begin(live, s.leader)
		s.launch(s.leader, func() error { return s.cfg.RunLeader(ctx, term) })
	}
	return nil
}

func (s *session) takeTargets(live context.Context, v view, slots []*slot) error {
	if len(slots) == 0 {
		return nil
	}
	ctx, cancel := s.attempt(live)
	defer cancel()
	p := store.TargetsAcquireParams{Instance: s.cfg.Instance}
	for _, sl := range slots {
		p.Names = append(p.Names, sl.name)
		p.Fingerprints = append(p.Fingerprints, sl.target.Fingerprint)
		p.Ttls = append(p.Ttls, sl.ttl)
		p.Places = append(p.Places, sl.target.Place)
		p.PlaceKeys = append(p.PlaceKeys, sl.target.PlaceKey)
		seen := v.lease(sl)
		p.SeenOwners = append(p.SeenOwners, seen.owner)
		p.SeenTerms = append(p.SeenTerms, seen.term)
		p.SeenBeats = append(p.SeenBeats, seen.beat)
	}
	rows, err := s.queries.TargetsAcquire(ctx, p)
	if err != nil {
		s.acquireFailed(live, err)
		return fmt.Errorf("take targets: %w", err)
	}
	for _, row := range rows {
		i := slices.IndexFunc(slots, func(sl *slot) bool { return sl.name == row.Name })
		s.own(live, slots[i], row)
	}
	return nil
}

// own begins the run of a target that was just acquired.
func (s *session) own(live context.Context, sl *slot, row store.TargetsAcquireRow) {
	s.cfg.Logger.Info("target_acquired", "target", row.Name, "term", row.Term, "clean", row.Clean, "fresh", row.Fresh, "options_changed", row.OptionsChanged)
	if row.LeftObjects > 0 {
		s.cfg.Logger.Warn("place_left", "target", row.Name, "place", row.LeftPlace, "objects", row.LeftObjects,
			"effect", "they may remain there: they are applied again where the options lead now", "remedy", "delete there what is not wanted; then SELECT reconciler.acknowledge(...)")
	}
	sl.term = row.Term
	ctx := s.begin(live, sl)
	s.owned(sl, row.Timeline, sl.begun)
	grant := &Grant{
		Target: row.Name, ID: row.ID, Owner: s.cfg.Instance, Term: row.Term,
		Clean: row.Clean, Fresh: row.Fresh, OptionsChanged: row.OptionsChanged,
		hold: sl.hold, draining: make(chan struct{}),
	}
	sl.grant = grant
	s.launch(sl, func() error { return s.cfg.RunTarget(ctx, grant) })
}

// acquireFailed says so, unless heartbeats fail too: that has been said.
func (s *session) acquireFailed(live context.Context, err error) {
	if live.Err() == nil && s.failing == 0 {
		s.cfg.Logger.Warn("lease_not_acquired", "error", database.Explain(err))
	}
}

// handOver drains the first target that the plan gives to somebody else, one in a heartbeat: the others go on
// meanwhile, and the next heartbeat knows better.
func (s *session) handOver(v view, plan map[string]string) {
	for _, sl := range s.slots {
		taker, planned := plan[sl.name]
		if sl.isLeader() || sl.asked || !sl.holds() || !planned || taker == s.cfg.Instance || v.targets[sl.name].owner != s.cfg.Instance {
			continue
		}
		s.cfg.Logger.Info("target_handed_over", "target", sl.name, "to", taker)
		if sl.phase == resting {
			s.giveBack(sl, false)
			return
		}
		sl.asked = true
		sl.grant.Drain()
		return
	}
}

// keepConfigured is the leader's part: targets.configured says which targets some process lists, running or stopped.
func (s *session) keepConfigured(live context.Context, v view) {
	var p store.TargetsConfigureParams
	for _, name := range slices.Sorted(maps.Keys(v.targets)) {
		seen := v.targets[name]
		if !seen.misconfigured {
			continue
		}
		if !seen.expired() {
			seen = seenLease{} // only if nobody owns it
		}
		p.Names = append(p.Names, name)
		p.SeenOwners = append(p.SeenOwners, seen.owner)
		p.SeenTerms = append(p.SeenTerms, seen.term)
		p.SeenBeats = append(p.SeenBeats, seen.beat)
	}
	err := s.configure(live, p)
	if live.Err() == nil {
		s.cfg.Loops.Loop(loop.Configure, "").Done(err)
	}
}

func (s *session) configure(live context.Context, p store.TargetsConfigureParams) error {
	if len(p.Names) == 0 {
		return nil
	}
	ctx, cancel := s.attempt(live)
	defer cancel()
	gone, err := s.queries.TargetsConfigure(ctx, p)
	if err != nil {
		return fmt.Errorf("note which targets are in a config: %w", err)
	}
	for _, name := range gone {
		s.cfg.Logger.Info("target_unconfigured", "target", name, "effect", "no process lists it: its objects are kept, its changes no longer")
		s.m.signals.left.emit(name)
	}
	return nil
}
