package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgreconciler/reconciler/internal/store"
)

// never is a time that does not come.
const never = time.Duration(1<<63 - 1)

// session is the time between Start and Stop. Its loop is the only one that touches what follows the blank line. The
// context live, which its methods take, is the parent of every run's; it ends when Stop's patience does.
type session struct {
	m          *Manager
	cfg        Config
	queries    *store.Queries
	names      []string                // of the targets of the config
	options    []string                // their fingerprints
	cancel     context.CancelCauseFunc // of live
	stopOnce   sync.Once
	stop       chan struct{} // closed when Stop was called
	registered atomic.Bool
	done       chan struct{} // closed when the loop has ended; err may be read then
	err        error
	ended      chan ended
	poked      chan struct{} // a lease ended by itself

	slots    []*slot // of the targets, then of the leader
	leader   *slot   // nil if this process never leads
	stopping bool
	cut      bool          // live has ended
	drained  bool          // while stopping: every run has returned
	giveUp   time.Duration // clock after which a stopping session waits no longer
	control  <-chan struct{}

	beatAt      time.Duration            // clock when the next heartbeat is due
	hitAt       time.Duration            // clock when the last one was answered; 0 for never
	sentAt      time.Duration            // clock when that one was sent: what it renewed lives from then on
	lastBeat    int64                    // its number
	timeline    int64                    // of the server that answered it; each failover begins one
	seen        watch                    // what it showed of others
	failing     int                      // heartbeats that failed since then
	peers       int                      // other processes seen by the last heartbeat
	undescribed bool                     // rows of targets do not say what the config says: they were locked
	releaseAt   time.Duration            // clock before which nothing is released: the last try found rows locked, or no server
	outvoted    map[string]string        // targets that others keep with other options: names of these processes
	left        []error                  // what could not be released
	moved       map[string]time.Duration // targets owned on an older timeline, with the clock when last; not yet reported to the new server
}

// newSession returns a session that runs until ctx ends, and its context live.
func newSession(ctx context.Context, m *Manager) (s *session, live context.Context) {
	s = &session{
		m: m, cfg: m.cfg, queries: store.New(m.cfg.Pool), control: m.cfg.Control,
		names: []string{}, options: []string{}, // a nil slice is NULL in SQL
		stop: make(chan struct{}), done: make(chan struct{}), poked: make(chan struct{}, 1),
		giveUp: never, beatAt: m.cfg.Clock(), releaseAt: m.cfg.Clock(), moved: map[string]time.Duration{},
	}
	live, s.cancel = context.WithCancelCause(ctx)
	for _, t := range m.cfg.Targets {
		s.names, s.options = append(s.names, t.Name), append(s.options, t.Fingerprint)
		s.slots = append(s.slots, &slot{name: t.Name, target: t, ttl: m.cfg.Timing.ttl(t.CallTimeout)})
	}
	slices.SortFunc(s.slots, func(a, b *slot) int { return cmp.Compare(a.name, b.name) })
	if m.cfg.RunLeader != nil {
		s.leader = &slot{ttl: m.cfg.Timing.MinTTL}
		s.slots = append(s.slots, s.leader)
	}
	s.ended = make(chan ended, len(s.slots))
	return s, live
}

// requestStop is safe to be called by anybody, any number of times.
func (s *session) requestStop() {
	s.stopOnce.Do(func() {
		close(s.stop)
		if !s.registered.Load() {
			s.cancel(ErrStopped)
		}
	})
}

// poke wakes the loop: a lease has ended by itself.
func (s *session) poke() {
	select {
	case s.poked <- struct{}{}:
	default:
	}
}

// loop does what is due and sleeps, until everything is given back.
func (s *session) loop(live context.Context) {
	for {
		s.noticeLosses()
		s.windDown()
		if s.finished() {
			break
		}
		s.beatIfDue(live)
		s.resume(live)
		s.release(live)
		s.publish()
		s.wait(live)
	}
	s.leave(live)
}

// wait sleeps until something is due or happens.
func (s *session) wait(live context.Context) {
	timer := time.NewTimer(s.next() - s.cfg.Clock())
	defer timer.Stop()
	stop, cut := s.stop, live.Done()
	if s.stopping {
		stop = nil
	}
	if s.cut {
		cut = nil
	}
	select {
	case <-timer.C:
	case e := <-s.ended:
		s.settle(e)
	case <-s.poked:
	case _, open := <-s.control:
		if !open {
			s.control = nil
		}
		s.beatBy(max(s.cfg.Clock(), s.hitAt+controlPause))
	case <-stop:
		s.stopping = true
	case <-cut:
		s.stopping, s.cut = true, true
		s.giveUpIn(s.cfg.Timing.StopGrace)
	}
}

// next is when something is due.
func (s *session) next() time.Duration {
	at := s.giveUp
	if !s.cut {
		at = min(at, s.beatAt)
	}
	for _, sl := range s.slots {
		switch {
		case sl.phase == releasing:
			at = min(at, s.releaseAt)
		case sl.phase == resting, sl.phase == idle && sl.notBefore > s.cfg.Clock():
			at = min(at, sl.notBefore)
		}
	}
	return at
}

// beatBy makes the next heartbeat due at a time, or leaves it earlier.
func (s *session) beatBy(at time.Duration) { s.beatAt = min(s.beatAt, at) }

// noticeLosses deals with leases that ended by themselves.
func (s *session) noticeLosses() {
	for _, sl := range s.slots {
		if sl.phase != idle && !sl.noticed && sl.hold.remaining() == 0 {
			s.lost(sl, "not renewed in time")
		}
	}
}

// lost ends a lease that this process does not have any more.
func (s *session) lost(sl *slot, why string) {
	s.cfg.Logger.Warn("lease_lost", "lease", sl.label(), "term", sl.term, "reason", why)
	sl.hold.lose()
	sl.noticed = true
	s.rested(sl)
	if sl.phase == releasing && s.stopping {
		s.left = append(s.left, fmt.Errorf("%s: the lease expired before it could be released", sl.label()))
	}
	if sl.phase != running {
		sl.drop()
	}
	s.beatBy(s.cfg.Clock())
	s.m.signals.dropped.emit(sl.label())
}

// windDown asks everything to end once the session is stopping.
func (s *session) windDown() {
	if !s.stopping {
		return
	}
	for _, sl := range s.slots {
		switch {
		case sl.phase == resting:
			s.giveBack(sl, false)
		case sl.phase == running && !sl.asked:
			sl.asked = true
			s.beatBy(s.cfg.Clock()) // tells others that this process takes no part any more
			if sl.isLeader() {
				sl.hold.cancel(ErrStopped)
			} else {
				sl.grant.Drain()
			}
		}
	}
	if !s.drained && !s.any(running) {
		s.drained = true
		s.giveUpIn(releasePatience)
	}
}

// giveUpIn bounds how long a stopping session waits.
func (s *session) giveUpIn(d time.Duration) { s.giveUp = min(s.giveUp, s.cfg.Clock()+d) }

func (s *session) any(p phase) bool {
	return slices.ContainsFunc(s.slots, func(sl *slot) bool { return sl.phase == p })
}

// finished says whether a stopping session has nothing to wait for.
func (s *session) finished() bool {
	if !s.stopping {
		return false
	}
	return !s.any(running) && !s.any(releasing) || s.cfg.Clock() >= s.giveUp
}

// leave removes this process's row, as long as a stopping session has patience, and says what is left behind.
func (s *session) leave(live context.Context) {
	for _, sl := range s.slots {
		switch sl.phase {
		case running:
			s.left = append(s.left, fmt.Errorf("%s: the run has not returned %v after its context ended; its lease expires by itself", sl.label(), s.cfg.Timing.StopGrace))
			sl.hold.lose()
		case releasing:
			s.left = append(s.left, fmt.Errorf("%s: the lease could not be released and expires by itself", sl.label()))
			sl.drop()
		case idle, resting:
		}
	}
	err := s.unlist(live)
	for err != nil && s.cfg.Clock() < s.giveUp {
		<-time.After(min(s.cfg.Timing.Retry, s.giveUp-s.cfg.Clock()))
		err = s.unlist(live)
	}
	if err != nil {
		s.left = append(s.left, fmt.Errorf("remove the row of process %s: %w", s.cfg.Name, err))
	}
	s.err = errors.Join(s.left...)
	s.cancel(ErrStopped)
}

// unlist removes this process's row.
func (s *session) unlist(live context.Context) error {
	ctx, cancel := s.detached(live)
	defer cancel()
	return s.queries.InstanceRemove(ctx, s.cfg.Instance)
}

// detached is for what must still be done after live has ended.
func (s *session) detached(live context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(context.WithoutCancel(live), attemptTimeout, errSlowDatabase)
}

func (s *session) publish() {
	status := Status{Failing: s.failing, Peers: s.peers}
	for _, sl := range s.slots {
		switch {
		case sl.phase != running || !sl.holds():
		case sl.isLeader():
			status.Leader = true
		default:
			status.Targets = append(status.Targets, sl.name)
		}
	}
	s.m.publish(status, s.hitAt)
}
