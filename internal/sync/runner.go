package sync

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgreconciler/reconciler/internal/apply"
	"github.com/pgreconciler/reconciler/internal/crash"
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
	reasonWatch    = "watch" // the target's watch named what may have changed
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

// RequestListing returns a function that requests a sync of one resource because of what the target's watch has named; it is
// apply.Config.List. Nil: a sync that only reports finds nothing in a target that cannot list.
func RequestListing(pool *pgxpool.Pool, targetID int32, mode string, drv driver.Driver) func(ctx context.Context, resourceID int32) error {
	if _, lists := drv.(driver.Lister); !lists && mode == ModeReport {
		return nil
	}
	return func(ctx context.Context, resourceID int32) error {
		if err := store.New(pool).SyncList(ctx, store.SyncListParams{TargetID: targetID, ResourceID: resourceID, Reason: reasonWatch, Mode: mode}); err != nil {
			return fmt.Errorf("request a sync of what target and ledger have: %w", err)
		}
		return nil
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
		r.loop(loop.Sync).Failed(err)
		return err
	}
	return nil
}

// loop is where syncs report their failures; those of drivers are no failures of this process.
func (r *Runner) loop(name loop.Name) *loop.Loop { return r.cfg.Loops.Loop(name, r.cfg.Name) }

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

// untilNext returns the time until the next run that begins without a new request: a full run at its interval, or a failed run that is
// made again (owed).
func (r *Runner) untilNext(ctx context.Context) (wait time.Duration, owed bool, err error) {
	interval, err := r.untilInterval(ctx)
	if err != nil {
		return 0, false, err
	}
	pause, err := r.queries.SyncPause(ctx, store.SyncPauseParams{TargetID: r.cfg.Grant.ID, Pause: failedPause})
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
	r.loop(loop.Sync).Succeeded()
	r.loop(loop.Rows).Succeeded()
	r.loop(loop.List).Succeeded()
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
		run, err := r.queries.SyncNext(ctx, store.SyncNextParams{TargetID: r.cfg.Grant.ID, Owner: r.cfg.Instance, Term: r.cfg.Grant.Term, Mode: r.cfg.Mode, Pause: failedPause})
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
