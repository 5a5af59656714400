package agent

import (
	"context"
	"time"

	"github.com/pgreconciler/reconciler/client"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/pace"
	"github.com/pgreconciler/reconciler/internal/throttle"
)

const (
	// healthSoon is how far apart two questions are at least.
	healthSoon = time.Second
	// notAsked is why a far side counts as not healthy that was changed since it was asked: a rollout must not go on because
	// of what was true before.
	notAsked = "its health was not asked since the last call"
)

// healthEvery is how often a driver is asked for its health, where it can tell.
var healthEvery = pace.Of(15 * time.Second)

// health is what the driver said of the far side last. mu of the target guards it.
type health struct {
	is      *bool  // nil: not known
	ailment string // why it is not
	calls   int    // that have changed the far side
	asked   int    // calls when it was asked
}

// told returns what a report says about the health.
func (h health) told() (is *bool, ailment string) {
	if h.is != nil && h.calls != h.asked {
		return new(bool), notAsked
	}
	return h.is, h.ailment
}

// asks asks a driver for its health that can tell: now and then, and after calls.
func (s *session) asks(ctx context.Context) {
	if reporter, can := s.drv.(driver.ObjectHealthReporter); can {
		s.asksObjects(ctx, reporter)
		return
	}
	asked, can := s.drv.(driver.HealthReporter)
	if !can {
		return
	}
	for {
		s.ask(ctx, asked)
		if !wait(ctx, healthSoon) {
			return
		}
		timer := time.NewTimer(throttle.Jittered(healthEvery))
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-s.changed:
		}
		timer.Stop()
	}
}

func (s *session) ask(ctx context.Context, asked driver.HealthReporter) {
	s.mu.Lock()
	calls := s.health.calls
	s.mu.Unlock()
	callCtx, cancel := context.WithTimeoutCause(ctx, s.cfg.Timeout, &timeoutError{after: s.cfg.Timeout})
	defer cancel()
	err := driver.Safely(func() error { return asked.Health(callCtx) })
	if ctx.Err() != nil {
		return
	}
	healthy, ailment := err == nil, ""
	if err != nil {
		ailment = short(err)
	}
	s.mu.Lock()
	before, why := s.health.told()
	s.health.is, s.health.ailment, s.health.asked = &healthy, ailment, calls
	after, now := s.health.told()
	s.mu.Unlock()
	if before == nil || *before != *after || why != now {
		signal(s.news)
	}
}

// touched notes that a call has changed an object of the far side.
func (s *session) touched(at client.Ref, wanted bool) {
	if s.objects != nil {
		s.objects.touch(at, wanted)
	}
	s.mu.Lock()
	s.health.calls++
	s.mu.Unlock()
	signal(s.changed)
}
