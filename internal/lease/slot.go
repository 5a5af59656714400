package lease

import (
	"context"
	"runtime/debug"
	"time"

	"github.com/pgreconciler/reconciler/internal/loop"
)

// phase is where a slot stands.
type phase int

const (
	idle      phase = iota // nothing is held
	running                // the callback runs; its lease may be lost already, then it will return soon
	resting                // the callback failed; the lease is kept until it is called again
	releasing              // the callback has drained; the lease is to be given back
)

// slot is one lease that this process may hold: a target's, or the leader's. Only the session's loop touches it.
type slot struct {
	name   string // of the target; "" for the leader
	ttl    time.Duration
	target Target

	phase   phase
	term    int64
	hold    *hold  // nil while idle
	grant   *Grant // nil while idle, and for the leader
	asked   bool   // to drain or to end
	noticed bool   // that the lease is lost
	clean   bool   // while releasing: the run has written all its results

	ownedOn int64         // the timeline of the server that said last that this process has the lease; 0: none did
	ownedAt time.Duration // clock of that

	failures  int           // in a row
	missed    int           // tries in a row to take it that found it free and did not get it
	begun     time.Duration // clock when the run began
	notBefore time.Duration // clock before which the callback is not called
	dangerous time.Duration // clock until which calls of a run that panicked may be under way
}

// ended tells the loop that a callback has returned.
type ended struct {
	slot *slot
	err  error
}

func (sl *slot) isLeader() bool { return sl.name == "" }

// label names the slot in logs and errors.
func (sl *slot) label() string {
	if sl.isLeader() {
		return "leadership"
	}
	return "target " + sl.name
}

// runs is where it is told how the runs of a slot fare.
func (s *session) runs(sl *slot) *loop.Loop {
	if sl.isLeader() {
		return s.cfg.Loops.Loop(loop.Lead, "")
	}
	return s.cfg.Loops.Loop(loop.Own, sl.name)
}

// rested forgets what failed in the runs of a slot: they are another process's now.
func (s *session) rested(sl *slot) {
	if sl.isLeader() {
		s.cfg.Loops.RestLeader()
	} else {
		s.cfg.Loops.RestTarget(sl.name)
	}
}

// holds says whether there is a lease to renew.
func (sl *slot) holds() bool {
	return (sl.phase == running || sl.phase == resting) && sl.hold.remaining() > 0
}

// drop goes back to idle.
func (sl *slot) drop() {
	sl.hold.end()
	sl.phase, sl.hold, sl.grant = idle, nil, nil
	sl.asked, sl.noticed, sl.clean = false, false, false
}

// begin gives the slot a lease that lives for its TTL from the last heartbeat, as for everybody else, and returns the
// context of its run, to be launched next.
func (s *session) begin(live context.Context, sl *slot) context.Context {
	if sl.hold != nil {
		sl.hold.end()
	}
	ctx, cancel := context.WithCancelCause(live)
	sl.phase, sl.hold = running, newHold(s.cfg.Clock, s.sentAt+sl.ttl, cancel, s.poke)
	sl.asked, sl.noticed, sl.clean = false, false, false
	sl.begun = s.cfg.Clock()
	return ctx
}

// launch makes the call on a goroutine of its own.
func (s *session) launch(sl *slot, call func() error) {
	s.m.active.Add(1)
	release := sl.hold.cancel
	go func() {
		err := guarded(call)
		release(nil) // what the run left behind ends with it
		s.m.active.Add(-1)
		s.ended <- ended{slot: sl, err: err} // has room for every slot
	}()
}

// guarded turns a panic into an error.
func guarded(call func() error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = &panicError{value: value, stack: debug.Stack()}
		}
	}()
	return call()
}
