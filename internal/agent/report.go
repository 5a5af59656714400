package agent

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/pgreconciler/reconciler/client"
	"github.com/pgreconciler/reconciler/internal/throttle"
)

const (
	// heartbeatEvery is how far apart reports are at most.
	heartbeatEvery = time.Minute
	// offEvery is how far apart they are while the server takes none.
	offEvery = 10 * time.Minute
	// firstSync is when the far side is listed after a start if the server has not been reached by then: then it is the controller's turn.
	firstSync = 5 * time.Second
)

// reports lists the far side every sync_interval and sends what the agent has: the whole of it after each listing, and a sign of life
// when nothing else was reported for a minute. Results go out by themselves.
func (s *session) reports(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-s.informer.Synced():
	}
	reporter := reporter{session: s}
	sync, beat := time.NewTimer(min(firstSync, s.syncPause())), time.NewTimer(heartbeatEvery)
	defer sync.Stop()
	defer beat.Stop()
	for first := true; ; {
		select {
		case <-ctx.Done():
			return
		case <-sync.C:
			sync.Reset(s.syncPause())
			switch {
			case s.lister == nil:
				s.checkObjects()
				reporter.inventory(ctx)
			case !s.informer.Controls().Paused && (!first || s.lastSync().IsZero()):
				s.controller.List()
			}
			first = false
		case <-s.listed:
			s.checkObjects()
			reporter.inventory(ctx)
		case <-s.news:
			reporter.beat(ctx)
		case <-beat.C:
			switch {
			case reporter.owed:
				reporter.inventory(ctx)
			case reporter.off, s.lastTold().Add(heartbeatEvery).Before(time.Now()):
				reporter.off = false
				reporter.beat(ctx)
				s.returnMemory()
			}
		}
		due := s.lastTold().Add(heartbeatEvery)
		if reporter.off {
			due = reporter.asked.Add(offEvery)
		}
		beat.Reset(max(time.Second, time.Until(due)))
	}
}

// returnMemory returns memory to the system, once after calls: a first sync needs three times what is kept.
func (s *session) returnMemory() {
	if made := s.calls.made(); made != s.rested {
		s.rested = made
		s.agent.free()
	}
}

// syncPause is the time until the next listing; without one, an inventory is still sent now and then.
func (s *session) syncPause() time.Duration {
	if s.cfg.SyncInterval > 0 {
		return throttle.Jittered(s.cfg.SyncInterval)
	}
	return throttle.Jittered(24 * time.Hour)
}

// lastTold returns when a report was tried last.
func (t *target) lastTold() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.told
}

func (t *target) lastSync() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.synced
}

// reporter sends reports of a session.
type reporter struct {
	*session

	owed    bool // an inventory could not be sent
	failing bool
	off     bool // the server takes none; it is asked again with a beat
	refused bool // the last one was refused because of that
	asked   time.Time
}

// inventory reports every object.
func (r *reporter) inventory(ctx context.Context) {
	if !r.off {
		r.owed = !r.done(ctx, r.controller.ReportInventory)
	}
}

// beat sends an empty report, which says that the agent is there, and what it is in.
func (r *reporter) beat(ctx context.Context) {
	if !r.off {
		r.done(ctx, func(ctx context.Context) error { return r.client.Report(ctx, r.cfg.Name, client.Report{}) })
	}
}

// done makes a report, and returns false if that is to be tried again.
func (r *reporter) done(ctx context.Context, report func(context.Context) error) bool {
	err := report(ctx)
	r.asked = time.Now()
	var status *client.StatusError
	switch {
	case err == nil:
		r.failing, r.refused = false, false
		return true
	case errors.As(err, &status) && (status.Status == http.StatusForbidden || status.Status == http.StatusMethodNotAllowed):
		if !r.refused {
			r.log.Warn("reports_off", "error", err, "again_in", offEvery)
		}
		r.off, r.refused = true, true
		return true
	case !r.failing && ctx.Err() == nil:
		r.log.Warn("report_failed", "error", err)
	}
	r.failing = true
	return false
}
