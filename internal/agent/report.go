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
				reporter.inventory(ctx)
			case !s.informer.Controls().Paused && (!first || s.lastSync().IsZero()):
				s.controller.List()
			}
			first = false
		case <-s.listed:
			reporter.inventory(ctx)
		case <-s.news:
			reporter.beat(ctx)
		case <-beat.C:
			if reporter.owed {
				reporter.inventory(ctx)
			} else if s.lastTold().Add(heartbeatEvery).Before(time.Now()) {
				reporter.beat(ctx)
			}
		}
		beat.Reset(max(time.Second, time.Until(s.lastTold().Add(heartbeatEvery))))
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
	off     bool // the server takes none
}

// inventory reports every object.
func (r *reporter) inventory(ctx context.Context) {
	r.owed = !r.done(ctx, r.controller.ReportInventory)
}

// beat sends an empty report, which says that the agent is there, and what it is in.
func (r *reporter) beat(ctx context.Context) {
	r.done(ctx, func(ctx context.Context) error { return r.client.Report(ctx, r.cfg.Name, client.Report{}) })
}

// done makes a report, and returns false if that is to be tried again.
func (r *reporter) done(ctx context.Context, report func(context.Context) error) bool {
	if r.off {
		return true
	}
	err := report(ctx)
	var status *client.StatusError
	switch {
	case err == nil:
		r.failing = false
		return true
	case errors.As(err, &status) && (status.Status == http.StatusForbidden || status.Status == http.StatusMethodNotAllowed):
		r.log.Warn("reports_off", "error", err)
		r.off = true
		return true
	case !r.failing && ctx.Err() == nil:
		r.log.Warn("report_failed", "error", err)
	}
	r.failing = true
	return false
}
