package apply

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgreconciler/reconciler/internal/budget"
	"github.com/pgreconciler/reconciler/internal/desired"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/guard"
	"github.com/pgreconciler/reconciler/internal/lease"
	"github.com/pgreconciler/reconciler/internal/loop"
	"github.com/pgreconciler/reconciler/internal/metrics"
	"github.com/pgreconciler/reconciler/internal/outbox"
	"github.com/pgreconciler/reconciler/internal/throttle"
)

// Config is what an Owner needs. Everything but Rows, Rate, Calls and Loops is required.
type Config struct {
	Name        string // of the target
	Instance    string // uuid of this process
	Grant       *lease.Grant
	Driver      driver.Driver
	Pool        *pgxpool.Pool
	Rows        *pgxpool.Pool // users' rows are read through it, see database.RowsSession; nil: Pool
	Feed        *outbox.Feed
	Catalog     *desired.Catalog
	Concurrency int           // driver calls at once
	Timeout     time.Duration // of one call
	Rate        float64       // calls a second; 0: unlimited
	Backoff     throttle.Backoff
	Guard       guard.Limits
	Memory      *Memory        // shared by the owners of a process
	Calls       *budget.Shares // for what they read and call for, shared likewise; nil: without a bound
	Logger      *slog.Logger
	Metrics     *metrics.Metrics
	Loops       *loop.Monitor // where failures are reported; optional
	// ReportOnly says that what changes in the target is not applied again.
	ReportOnly bool
	// List requests a sync of a resource that looks at what the target has. Nil: none would find anything. Optional.
	List func(ctx context.Context, resourceID int32) error
	// Observe is called after every driver call. It must not block. Optional.
	Observe func(Observation)
}

// Observation is one driver call.
type Observation struct {
	Target, Resource, Key string
	Action                string // apply or delete
	Verdict               driver.Verdict
	Err                   error
	Took                  time.Duration // the call
	Lag                   time.Duration // since the change became known; 0 when the sync or a retry asked
}
