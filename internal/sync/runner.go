package sync

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgreconciler/reconciler/internal/apply"
	"github.com/pgreconciler/reconciler/internal/crash"
	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/desired"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/lease"
	"github.com/pgreconciler/reconciler/internal/loop"
	"github.com/pgreconciler/reconciler/internal/metrics"
	"github.com/pgreconciler/reconciler/internal/pace"
	"github.com/pgreconciler/reconciler/internal/store"
)

// Reasons of runs that the product asks for itself. What a person asks for has the reason "resync".
const (
	reasonStart    = "start"    // ownership began
	reasonTakeover = "takeover" // ownership began after a crash
	reasonInterval = "interval"
	reasonResource = "resource" // TRUNCATE, a changed definition, or a write whose row could not be evaluated
	reasonResync   = "resync"
)

// Modes of a run.
const (
	ModeRepair = "repair"
	ModeReport = "report" // drift is shown, nothing is touched
)

const (
	progressEvery = time.Second
	coversEvery   = 100 * time.Millisecond
	// backlogMost is how long a run that nobody asked for leaves the first turn to changes that were there before it: what it would
	// find to differ because of them is done then, and not done twice.
	backlogMost = 10 * time.Second
	// lockNotAvailable is the SQLSTATE of a lock that was not to be had in time.
	lockNotAvailable = "55P03"
)

var (
	// failedPause is the pause before a failed run is made again.
	failedPause = pace.Of(10 * time.Second)
)

// Config is what a Runner needs.
type Config struct {
	Name     string // of the target
	Instance string
	Grant    *lease.Grant
	Driver   driver.Driver
	Pool     *pgxpool.Pool
	Rows     *pgxpool.Pool // users' rows are read through it, see database.RowsSession; nil: Pool
	Catalog  *desired.Catalog
	Owner    *apply.Owner
	Interval time.Duration // between full runs; 0: none at intervals
	Mode     string        // of every full run that nobody has asked for by name; ModeRepair or ModeReport
	Timeout  time.Duration // of one driver call
	Control  <-chan struct{}
	Logger   *slog.Logger
	Metrics  *metrics.Metrics
	Loops    *loop.Monitor // nil: nobody is told what fails
	// Complete is called after every complete full run, with its mode. Nil: nothing is. An error ends Run.
	Complete func(ctx context.Context, mode string) error
}

// Runner runs the syncs of one owned target, one at a time.
type Runner struct {
	cfg     Config
	queries *store.Queries
	lister  driver.Lister
	full    string    // mode of a complete full run from which nothing follows yet, because syncs of its resources are owed; ""
	began   time.Time // by the database's clock
	local   time.Time
}

// NewRunner prepares a runner.
func NewRunner(cfg Config) *Runner {
	r := &Runner{cfg: cfg, queries: store.New(cfg.Pool)}
	r.lister, _ = cfg.Driver.(driver.Lister)
	return r
}

// RequestResource asks for a sync of one resource; it is apply.NewOwner's resync.
func RequestResource(pool *pgxpool.Pool, targetID int32) func(ctx context.Context, resourceID int32) error {
	return func(ctx context.Context, resourceID int32) error {
		return request(ctx, store.New(pool), targetID, resourceID, reasonResource, ModeRepair, false)
	}
}

func request(ctx context.Context, q *store.Queries, targetID, resourceID int32, reason, mode string, verify bool) error {
	err := q.SyncRequest(ctx, store.SyncRequestParams{TargetID: targetID, ResourceID: resourceID, Reason: reason, Mode: mode, Verify: verify})
	if err != nil {
		return fmt.Errorf("ask for a sync (%s): %w", reason, err)
	}
	return nil
}

// Run asks for the sync that begins ownership and then runs whatever is asked for, until ctx ends or the grant drains.
func (r *Runner) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-r.cfg.Grant.Draining():
			cancel()
		case <-ctx.Done():
		}
	}()
	if err := r.begin(ctx); err != nil {
		return r.stopped(ctx, err)
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.cfg.Control:
		case <-r.cfg.Owner.WantSync():
		case <-timer.C:
			if err := r.requestInterval(ctx); err != nil {
				return r.stopped(ctx, err)
			}
		}
		if err := r.drain(ctx); err != nil {
			return r.stopped(ctx, err)
		}
		wait, owed, err := r.untilNext(ctx)
		if err == nil && !owed {
			err = r.synced(ctx)
		}
		if err != nil {
			return r.stopped(ctx, err)
		}
		timer.Reset(wait)
	}
}

// stopped hides an error that only says that this runner was told to stop.
func (r *Runner) stopped(ctx context.Context, err error) error {
	if errors.Is(err, apply.ErrRunCut) {
		<-ctx.Done() // the owner may hear of it first
	}
	if ctx.Err() == nil {
		r.loop().Failed(database.Explain(err))
		return err
	}
	return nil
}

// loop is where syncs report their failures; those of drivers are no failures of this process.
func (r *Runner) loop() *loop.Loop { return r.cfg.Loops.Loop(loop.Sync, r.cfg.Name) }

func (r *Runner) begin(ctx context.Context) error {
	now, err := r.queries.TimeNow(ctx)
	if err != nil {
		return fmt.Errorf("read the database's clock: %w", err)
	}
	r.began, r.local = now, time.Now()
	if _, err := r.queries.SyncAbandoned(ctx, store.SyncAbandonedParams{TargetID: r.cfg.Grant.ID, Term: r.cfg.Grant.Term}); err != nil {
		return fmt.Errorf("take up the syncs of a former owner of target %s: %w", r.cfg.Name, err)
	}
	if r.cfg.Grant.Fresh {
		return nil // the target's first cursor asks for its first sync
	}
	reason := reasonStart
	if r.cfg.Owner.Unclean() {
		reason = reasonTakeover
	}
	return request(ctx, r.queries, r.cfg.Grant.ID, 0, reason, ModeRepair, r.lister != nil)
}

// AskSuccessor has whoever owns the target now look again at what it has applied: a call of this run may have come after.
func (r *Runner) AskSuccessor(ctx context.Context) error {
	if err := request(ctx, r.queries, r.cfg.Grant.ID, 0, reasonTakeover, ModeRepair, r.lister != nil); err != nil {
		return err
	}
	if err := r.queries.ControlNotify(ctx); err != nil {
		return fmt.Errorf("tell of a sync that is asked for: %w", err)
	}
	return nil
}

// untilNext is the time until something is to be run although nobody asks: a full run, or one that failed (owed).
func (r *Runner) untilNext(ctx context.Context) (wait time.Duration, owed bool, err error) {
	interval, err := r.untilInterval(ctx)
	if err != nil {
		return 0, false, err
	}
	pause, err := r.queries.SyncPause(ctx, r.cfg.Grant.ID)
	if err != nil {
		return 0, false, fmt.Errorf("read the syncs that are asked for: %w", err)
	}
	if pause < 0 {
		return interval, false, nil
	}
	return min(interval, max(failedPause/10, time.Duration(pause*float64(time.Second)))), true, nil
}

// synced is called when every sync that was asked for is complete, and none is owed.
func (r *Runner) synced(ctx context.Context) error {
	r.loop().Succeeded()
	if r.full == "" {
		return nil
	}
	if r.cfg.Complete != nil {
		if err := r.cfg.Complete(ctx, r.full); err != nil {
			return err
		}
	}
	if r.cfg.Owner.Unclean() { // in report mode, too: what the ledger does not know was reported
		if err := r.settleClean(ctx); err != nil {
			return err
		}
	}
	r.full = ""
	return nil
}

// untilInterval is the time until the next full run is due: the interval, a tenth more or less.
func (r *Runner) untilInterval(ctx context.Context) (time.Duration, error) {
	if r.cfg.Interval <= 0 {
		return time.Hour, nil
	}
	since, err := r.queries.SyncSinceComplete(ctx, r.cfg.Grant.ID)
	if err != nil {
		return 0, fmt.Errorf("read when target %s was synced: %w", r.cfg.Name, err)
	}
	if since < 0 {
		return failedPause, nil
	}
	interval := time.Duration(float64(r.cfg.Interval) * (0.9 + 0.2*rand.Float64()))
	return max(failedPause/10, interval-time.Duration(since*float64(time.Second))), nil
}

func (r *Runner) requestInterval(ctx context.Context) error {
	if r.cfg.Interval <= 0 {
		return nil
	}
	since, err := r.queries.SyncSinceComplete(ctx, r.cfg.Grant.ID)
	if err != nil {
		return fmt.Errorf("read when target %s was synced: %w", r.cfg.Name, err)
	}
	if since >= 0 && since < 0.9*r.cfg.Interval.Seconds() {
		return nil
	}
	if since < 0 && r.cfg.Grant.Fresh {
		return nil // the target's first cursor asks for its first sync; two would call every object of it twice
	}
	return request(ctx, r.queries, r.cfg.Grant.ID, 0, reasonInterval, r.cfg.Mode, r.lister != nil)
}

// drain runs what is asked for until nothing is.
func (r *Runner) drain(ctx context.Context) error {
	for {
		run, err := r.queries.SyncNext(ctx, store.SyncNextParams{TargetID: r.cfg.Grant.ID, Owner: r.cfg.Instance, Term: r.cfg.Grant.Term, Mode: r.cfg.Mode})
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the syncs that are asked for: %w", err)
		}
		if err := r.one(ctx, run); err != nil {
			return err
		}
	}
}

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
	if code := database.Code(err); code != "" && code != lockNotAvailable { // who locks a table knows
		r.loop().Failed(database.Explain(err))
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
	if run.Reason == reasonStart || run.Reason == reasonTakeover || run.Reason == reasonInterval {
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
	held, err = r.cfg.Owner.DecideParked(ctx)
	return progress, unread, held, err
}

// prepare returns the scan of a run: what it finds goes into the report, or onto the sync lane as part of work.
func (r *Runner) prepare(run store.SyncNextRow, report *report, work *apply.Run) *Scan {
	scan := &Scan{
		DB: database.Rows(cmp.Or(r.cfg.Rows, r.cfg.Pool)), Target: r.cfg.Name, TargetID: r.cfg.Grant.ID, Drain: r.cfg.Owner.Draining(),
		Force: run.Verify && r.lister == nil,
		Page:  r.progress(run.ID),
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
	if run.Verify {
		scan.Lister = r.lister
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

// settleClean marks the target clean once the cursor has passed everything that was committed before now: until then a
// delete of an object that the ledger never knew may still be on its way, and must be carried out.
func (r *Runner) settleClean(ctx context.Context) error {
	if covers, err := r.awaitCursor(ctx, nil); !covers {
		return err
	}
	crash.Point(crash.BeforeClean)
	_, err := r.queries.TargetMarkClean(ctx, store.TargetMarkCleanParams{TargetID: r.cfg.Grant.ID, Owner: r.cfg.Instance, Term: r.cfg.Grant.Term})
	if err != nil {
		return fmt.Errorf("mark target %s clean: %w", r.cfg.Name, err)
	}
	return r.cfg.Owner.Refresh(ctx)
}

// awaitCursor waits until the cursor has passed everything that was committed before now, and says whether it has; not when
// the context ends or until comes before that. A nil until never comes.
func (r *Runner) awaitCursor(ctx context.Context, until <-chan time.Time) (bool, error) {
	snapshot, err := r.queries.SnapshotNow(ctx)
	if err != nil {
		return false, fmt.Errorf("take a snapshot for a sync: %w", err)
	}
	revision := int64(-1)
	for {
		if revision < 0 {
			if revision, err = r.queries.CoveringRevision(ctx, snapshot); err != nil {
				return false, fmt.Errorf("find the revision of what was committed before a sync: %w", err)
			}
		}
		if revision >= 0 {
			passed, err := r.queries.CursorPassed(ctx, store.CursorPassedParams{TargetID: r.cfg.Grant.ID, Revision: revision})
			if err != nil {
				return false, fmt.Errorf("compare the cursor with a revision: %w", err)
			}
			if passed {
				return true, nil
			}
		}
		select {
		case <-ctx.Done():
			return false, nil
		case <-until:
			return false, nil
		case <-time.After(coversEvery):
		}
	}
}
