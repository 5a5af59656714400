package sync

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/pgreconciler/reconciler/internal/apply"
	"github.com/pgreconciler/reconciler/internal/crash"
	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/desired"
	"github.com/pgreconciler/reconciler/internal/loop"
	"github.com/pgreconciler/reconciler/internal/store"
)

func (r *Runner) log(run store.SyncNextRow) *slog.Logger {
	return r.cfg.Logger.With("target", r.cfg.Name, "sync", run.ID, "reason", run.Reason)
}

// one makes a run and records its outcome. Only what ends ownership is an error.
func (r *Runner) one(ctx context.Context, run store.SyncNextRow) error {
	started := time.Now()
	log := r.log(run)
	progress, unread, held, err := r.scan(ctx, run)
	crash.Point(crash.SyncUnfinished)
	switch {
	case err == nil:
		log.Info("sync_complete", "rows", progress.Rows, "upserts", progress.Upserts, "tombstones", progress.Tombstones,
			"drifted", progress.Drifted, "held", held, "unread", len(unread), "seconds", time.Since(started).Seconds())
		err = r.complete(ctx, run, progress, held, unread, started)
	case ctx.Err() != nil || database.IsUnavailable(err) || errors.Is(err, apply.ErrRunCut):
		return err // the run stays 'running': the next owner takes it up
	default:
		r.tell(log, err)
		err = r.failed(ctx, run, progress, err)
	}
	if err != nil {
		return err
	}
	if _, err := r.queries.SyncPrune(ctx, r.cfg.Grant.ID); err != nil {
		return fmt.Errorf("forget old syncs: %w", err)
	}
	return nil
}

// tell reports why a run, or its part of one resource, failed.
func (r *Runner) tell(log *slog.Logger, err error) {
	log.Error("sync_failed", "error", err, "effect", "nothing was deleted on its account")
	if _, ok := errors.AsType[*ListError](err); ok {
		r.loop(loop.List).Failed(err)
		return
	}
	if code := database.Code(err); code != "" && code != lockNotAvailable { // who locks a table knows
		r.loop(loop.Rows).Failed(err)
	}
}

// owe asks for a sync of a resource that a full run could not read, after a pause. Until it is complete, neither is the target, and
// deletes of the resource that the run has found are not decided on.
func (r *Runner) owe(ctx context.Context, run store.SyncNextRow, u Unread) error {
	r.tell(r.log(run).With("resource", u.Resource.Name), u.Err)
	err := r.queries.SyncOwe(ctx, store.SyncOweParams{
		ID: run.ID, Term: r.cfg.Grant.Term, ResourceID: u.Resource.ID, Error: database.Explain(u.Err).Error(), Pause: failedPause,
	})
	if err != nil {
		return fmt.Errorf("ask for a sync of resource %s: %w", u.Resource.Name, err)
	}
	return nil
}

// complete records that a run reached its end.
func (r *Runner) complete(ctx context.Context, run store.SyncNextRow, p Progress, held int64, unread []Unread, started time.Time) error {
	var why string
	for _, one := range unread {
		why = strings.TrimPrefix(why+"; "+database.Explain(one.Err).Error(), "; ")
	}
	err := r.queries.SyncComplete(ctx, store.SyncCompleteParams{
		ID: run.ID, Term: r.cfg.Grant.Term, Rows: p.Rows, Upserts: p.Upserts, Tombstones: p.Tombstones, Drifted: p.Drifted, Held: held, Error: why,
		Listed: run.ResourceID == 0 && run.Verify && r.lister != nil && len(unread) == 0,
	})
	if err != nil {
		return fmt.Errorf("record the end of a sync: %w", err)
	}
	m := r.cfg.Metrics
	m.Syncs.WithLabelValues(r.cfg.Name, "complete").Inc()
	m.SyncRows.WithLabelValues(r.cfg.Name).Add(float64(p.Rows))
	m.SyncSeconds.WithLabelValues(r.cfg.Name).Observe(time.Since(started).Seconds())
	m.LastSync.WithLabelValues(r.cfg.Name).SetToCurrentTime()
	if run.ResourceID == 0 {
		r.full = run.Mode
	}
	return nil
}

// failed records that a run failed and asks for it again.
func (r *Runner) failed(ctx context.Context, run store.SyncNextRow, p Progress, why error) error {
	err := r.queries.SyncFailed(ctx, store.SyncFailedParams{
		ID: run.ID, Term: r.cfg.Grant.Term, Rows: p.Rows, Upserts: p.Upserts, Tombstones: p.Tombstones, Drifted: p.Drifted,
		Error: database.Explain(why).Error(), Pause: failedPause,
	})
	if err != nil {
		return fmt.Errorf("record the end of a sync: %w", err)
	}
	r.cfg.Metrics.Syncs.WithLabelValues(r.cfg.Name, "failed").Inc()
	r.cfg.Metrics.SyncRows.WithLabelValues(r.cfg.Name).Add(float64(p.Rows))
	return nil
}

func (r *Runner) resources(ctx context.Context, id int32) ([]*desired.Resource, error) {
	if _, err := r.cfg.Catalog.Reload(ctx, r.cfg.Pool); err != nil {
		return nil, err
	}
	if id == 0 {
		return r.cfg.Catalog.All(), nil
	}
	if one, ok := r.cfg.Catalog.ByID(id); ok {
		return []*desired.Resource{one}, nil
	}
	return nil, nil // untracked meanwhile
}

// scan finds what differs and, in repair mode, has it looked at; it returns when every such object is settled and the
// deletes are decided on.
func (r *Runner) scan(ctx context.Context, run store.SyncNextRow) (progress Progress, unread []Unread, held int64, err error) {
	resources, err := r.resources(ctx, run.ResourceID)
	if err != nil {
		return progress, nil, 0, err
	}
	// What was ordered with the run, such as release(), is told by the same notification: it must be known before.
	if err := r.cfg.Owner.Refresh(ctx); err != nil {
		return progress, nil, 0, err
	}
	if err := r.cfg.Owner.KnowCalls(ctx); err != nil {
		return progress, nil, 0, err
	}
	work := &apply.Run{}
	if run.Reason == reasonStart || run.Reason == reasonTakeover || run.Reason == reasonInterval || run.Reason == reasonWatch {
		if _, err := r.awaitCursor(ctx, time.After(backlogMost)); err != nil {
			return progress, nil, 0, err
		}
	}
	report, err := newReport(ctx, r, run)
	if err != nil {
		return progress, nil, 0, err
	}
	scan := r.prepare(run, report, work)
	// Whatever else is asked for, the first look after a crash must see what the former owner's last call has done.
	if run.Reason == reasonTakeover || r.cfg.Owner.Unclean() {
		if err := r.outlive(ctx); err != nil {
			return progress, nil, 0, err
		}
		scan.Since = r.began
	}
	progress, unread, err = scan.Run(ctx, resources)
	if err != nil {
		return progress, nil, 0, err
	}
	if err := report.finish(ctx); err != nil {
		return progress, nil, 0, err
	}
	if err := work.Wait(ctx); err != nil {
		return progress, nil, 0, err
	}
	for _, one := range unread {
		if err := r.owe(ctx, run, one); err != nil {
			return progress, nil, 0, err
		}
	}
	held, err = r.cfg.Owner.DecideParked(ctx, work)
	return progress, unread, held, err
}

// prepare returns the scan of a run: what it finds goes into the report, or onto the sync lane as part of work.
func (r *Runner) prepare(run store.SyncNextRow, report *report, work *apply.Run) *Scan {
	scan := &Scan{
		DB: database.Rows(cmp.Or(r.cfg.Rows, r.cfg.Pool)), Target: r.cfg.Name, TargetID: r.cfg.Grant.ID, Drain: r.cfg.Owner.Draining(),
		Force:   run.Verify && r.lister == nil,
		Tracked: func(name string) bool { _, ok := r.cfg.Catalog.ByName(name); return ok },
		Know:    r.cfg.Owner.KnowCalls,
		Page:    r.progress(run.ID),
		Found: func(ctx context.Context, f Finding) error {
			if f.Kind == KindMissing || f.Kind == KindDifferent || f.Kind == KindOrphan {
				r.cfg.Metrics.Drift.WithLabelValues(r.cfg.Name, string(f.Kind)).Inc()
			}
			if report.leaves(f) {
				return report.add(ctx, f)
			}
			id := apply.ObjectID{ResourceID: f.Resource.ID, Key: f.Key}
			force := f.Kind != KindStale && f.Kind != KindTombstone
			park := f.Kind == KindTombstone || f.Kind == KindOrphan
			return r.cfg.Owner.Enqueue(ctx, id, force, park, work)
		},
	}
	// Changes of a resource are applied in any mode; with a listing, what differs without them would be, too.
	if run.Verify && r.lister != nil && !(run.Reason == reasonResource && r.cfg.Mode == ModeReport) {
		scan.Lister = heard{r.lister, r.loop(loop.Sync)}
	}
	return scan
}

// outlive waits until the last call of a crashed owner must have ended: its effect is then there to be found.
func (r *Runner) outlive(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(time.Until(r.local.Add(r.cfg.Timeout))):
		return nil
	}
}

// progress writes down how far a run is, at most once a second.
func (r *Runner) progress(id int64) func(context.Context, Progress) error {
	var last time.Time
	return func(ctx context.Context, p Progress) error {
		if time.Since(last) < progressEvery {
			return nil
		}
		last = time.Now()
		err := r.queries.SyncProgress(ctx, store.SyncProgressParams{
			ID: id, Term: r.cfg.Grant.Term, Rows: p.Rows, Upserts: p.Upserts, Tombstones: p.Tombstones, Drifted: p.Drifted,
			AtResource: p.Resource, AtKey: p.Key,
		})
		if err != nil {
			return fmt.Errorf("record the progress of a sync: %w", err)
		}
		return nil
	}
}
