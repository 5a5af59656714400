package apply

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/pgreconciler/reconciler/internal/desired"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/guard"
	"github.com/pgreconciler/reconciler/internal/loop"
	"github.com/pgreconciler/reconciler/internal/queue"
	"github.com/pgreconciler/reconciler/internal/store"
	"github.com/pgreconciler/reconciler/internal/throttle"
)

// core is what the parts of an Owner share: the config, the queue, what limits calls to the target as a whole, and the commands
// given in psql.
type core struct {
	cfg      Config
	queries  *store.Queries
	rows     store.DBTX // what users' rows are read through
	queue    *queue.Queue[payload, *payload]
	guard    *guard.Guard
	breaker  *throttle.Breaker
	orders   orders
	resync   func(ctx context.Context, resourceID int32) error
	wantSync chan struct{}                // receives a value when a sync was requested
	wantDue  chan struct{}                // receives a value when objects may be due
	rechecks *throttle.Rechecks[ObjectID] // what the driver names as changed
}

// orders hold the state that commands in psql set for the target, and its state in applies.
type orders struct {
	paused   atomic.Bool
	draining atomic.Bool
	clean    atomic.Bool
	gates    atomic.Pointer[desired.Gates]  // what the last look at the target knew of applies; nil: there was none
	closed   atomic.Pointer[map[int64]bool] // operations that are being stopped
}

// steering is the part of the orders that decides about every object.
type steering struct{ paused, drain bool }

func (o *orders) steering() steering {
	return steering{paused: o.paused.Load(), drain: o.draining.Load()}
}

// closing reports whether an operation is being stopped.
func (o *orders) closing(operation int64) bool {
	closed := o.closed.Load()
	return closed != nil && operation != 0 && (*closed)[operation]
}

// known returns what is known of applies.
func (o *orders) known() desired.Gates {
	if known := o.gates.Load(); known != nil {
		return *known
	}
	return desired.Gates{}
}

// askSync has a whole resource looked at.
func (c *core) askSync(ctx context.Context, resourceID int32) error {
	if err := c.resync(ctx, resourceID); err != nil {
		return err
	}
	signal(c.wantSync)
	return nil
}

// part is where a part of this owner reports its turns.
func (c *core) part(name loop.Name) *loop.Loop { return c.cfg.Loops.Loop(name, c.cfg.Name) }

// resource finds a definition, reading the catalog again when it is new. It returns nil when there is none.
func (c *core) resource(ctx context.Context, id int32) (*desired.Resource, error) {
	if r, ok := c.cfg.Catalog.ByID(id); ok {
		return r, nil
	}
	if _, err := c.cfg.Catalog.Reload(ctx, c.cfg.Pool); err != nil {
		return nil, err
	}
	r, _ := c.cfg.Catalog.ByID(id)
	return r, nil
}

// safely calls the driver. A panic is an error, and logged.
func (c *core) safely(call func() error) error {
	err := driver.Safely(call)
	if _, ok := errors.AsType[*driver.PanicError](err); ok {
		c.cfg.Logger.Error("driver_panicked", "target", c.cfg.Name, "error", err)
	}
	return err //nolint:wrapcheck // the driver's
}

// timeoutError is that of a call that was not answered in time.
type timeoutError struct{ after time.Duration }

func (e *timeoutError) Error() string { return fmt.Sprintf("timed out after %s", e.after) }
