package agent

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/throttle"
)

const (
	// shutAgain is when an object is looked at again that came while the target takes no calls: the controller is suspended then.
	shutAgain = time.Second
	// turnMost bounds how long an object waits for its turn under the rate limit within a handler, which snapshots wait for.
	turnMost = time.Second
)

// gate keeps a target from being called that does not answer, or that asks for no calls: the controller is suspended, so that it is
// one fact, and not ten thousand failing objects.
type gate struct {
	trip chan struct{} // it was shut, size one

	mu      sync.Mutex // guards what follows, and is held to shut or open the gate
	cause   string     // why it is shut; "": it is open
	probing bool       // one call may pass while the circuit is open
}

func (s *session) shut(cause string) {
	s.gate.mu.Lock()
	defer s.gate.mu.Unlock()
	s.shutLocked(cause)
}

func (s *session) shutLocked(cause string) {
	s.gate.cause = cause
	s.controller.Suspend(cause)
	signal(s.gate.trip)
	signal(s.news)
}

// shutFor returns why the target takes no calls; "": it does.
func (s *session) shutFor() string {
	s.gate.mu.Lock()
	defer s.gate.mu.Unlock()
	return s.gate.cause
}

// admit waits for the turn of a call. It returns false and when to look again if the target takes none now.
func (s *session) admit(ctx context.Context) (again time.Duration, ok bool) {
	if again := s.slow.Remaining(); again > 0 {
		return again, false
	}
	err := s.rate.Take(func(turn time.Duration) error {
		if turn > turnMost || !wait(ctx, turn) {
			again = throttle.Spread(turn)
			return errNoTurn
		}
		return nil
	})
	if err != nil {
		return again, false
	}
	s.gate.mu.Lock()
	defer s.gate.mu.Unlock()
	if !s.breaker.IsOpen() {
		return 0, true
	}
	if !s.gate.probing {
		s.rate.Return(1)
		return shutAgain, false
	}
	s.gate.probing = false
	s.controller.Suspend(s.gate.cause)
	return 0, true
}

var errNoTurn = errors.New("its turn has not come")

// judge counts what a call tells of the target as a whole.
func (s *session) judge(out driver.Outcome, late bool) {
	s.gate.mu.Lock()
	defer s.gate.mu.Unlock()
	opened, cause := false, ""
	switch {
	case out.Verdict == driver.VerdictUnreachable:
		opened, cause = s.breaker.Unreached(), "the target does not answer: "
	case late:
		opened, cause = s.breaker.Timeout(), "every call times out: "
	case s.breaker.Answered():
		s.log.Info("target_back")
		signal(s.gate.trip)
	}
	if opened {
		s.log.Warn("target_down", "error", out.Err)
		s.shutLocked(cause + short(out.Err))
	}
	if out.Whole {
		text := short(out.Err)
		if s.slow.Down(out.After, text) {
			s.log.Warn("target_slows_down", "error", text, "seconds", out.After.Seconds())
		}
		if !s.breaker.IsOpen() {
			s.shutLocked("the target asks to be called less often: " + text)
		}
	}
}

// reopens opens the gate when the time is over that the target asked for, and when it answers again: by the driver's own check where
// it has one, else with one call.
func (s *session) reopens(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.gate.trip:
		}
		for !s.reopen() {
			open, pause := s.breaker.IsOpen(), max(s.slow.Remaining(), time.Until(s.free))
			if open {
				pause = s.breaker.Pause()
			}
			if !s.rest(ctx, pause) {
				return
			}
			if open && s.breaker.IsOpen() {
				s.probe(ctx)
			}
		}
	}
}

// rest waits for a pause. An answer of the target ends it early.
func (s *session) rest(ctx context.Context, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	case <-s.gate.trip:
	}
	return true
}

// reopen opens the gate, unless there is a reason to keep it shut.
func (s *session) reopen() bool {
	s.gate.mu.Lock()
	defer s.gate.mu.Unlock()
	if s.breaker.IsOpen() || s.slow.Remaining() > 0 || time.Now().Before(s.free) {
		return false
	}
	s.gate.cause, s.gate.probing = "", false
	s.controller.Resume()
	signal(s.news)
	return true
}

// probe finds out whether a target answers that is taken to be down.
func (s *session) probe(ctx context.Context) {
	checker, can := s.drv.(driver.Checker)
	if !can {
		s.gate.mu.Lock()
		defer s.gate.mu.Unlock()
		s.gate.probing = true
		s.controller.Resume()
		return
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	if err := driver.Safely(func() error { return checker.Check(ctx) }); err != nil {
		s.breaker.FailedProbe()
		return
	}
	if s.breaker.Passed() {
		s.log.Info("target_back")
	}
}
