package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/pgreconciler/reconciler/internal/crash"
	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/desired"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/guard"
	"github.com/pgreconciler/reconciler/internal/loop"
	"github.com/pgreconciler/reconciler/internal/outbox"
	"github.com/pgreconciler/reconciler/internal/queue"
	"github.com/pgreconciler/reconciler/internal/store"
	"github.com/pgreconciler/reconciler/internal/throttle"
)

// Owner works for one target while this process owns it: it makes its parts, starts them, and ends them in order. Each part
// knows those further down only, and all know the core:
//
//	rollout, reader             turns, and the outbox -> queue
//	dispatcher                  queue -> calls, or results
//	caller                      calls -> results
//	settler                     results -> ledger and cursor
//	circuit, health             a target that is down; how it is
//	retrier, watcher            the ledger -> queue, what the driver names -> queue
//	parking                     deletes that are counted
type Owner struct {
	*core
	parking    *parking
	retrier    *retrier
	circuit    *circuit
	settler    *settler
	caller     *caller
	dispatcher *dispatcher
	reader     *reader
	rollout    *rollout
	health     *health
	watcher    *watcher

	losses atomic.Int64 // resources that were gone when objects were counted last
}

// NewOwner prepares an owner. resync is called when a whole resource must be looked at; it must have recorded the
// request when it returns.
func NewOwner(cfg Config, resync func(ctx context.Context, resourceID int32) error) *Owner {
	c := &core{
		cfg: cfg, queries: store.New(cfg.Pool), rows: database.Rows(cmp.Or(cfg.Rows, cfg.Pool)), queue: queue.New[payload](cfg.Concurrency, cfg.Calls),
		breaker: throttle.NewBreaker(max(5, cfg.Concurrency)), resync: resync, wantSync: make(chan struct{}, 1), wantDue: make(chan struct{}, 1),
		rechecks: throttle.NewRechecks[ObjectID](),
	}
	o := &Owner{core: c, health: &health{core: c, wanted: make(chan struct{}, 1), rounds: map[int64]*round{}}, watcher: newWatcher(c)}
	tracker, firsts, later := newTracker(), newFirstCalls(), &later{added: make(chan struct{}, 1)}
	o.parking = &parking{core: c}
	o.retrier = &retrier{core: c, parking: o.parking, alarm: alarm{changed: make(chan struct{}, 1)}}
	o.circuit = &circuit{core: c, trip: make(chan struct{}, 1)}
	o.settler = newSettler(c, o.retrier, tracker, firsts, later)
	o.caller = newCaller(c, o.circuit, o.settler)
	o.dispatcher = &dispatcher{core: c, caller: o.caller, settler: o.settler, firsts: firsts}
	o.reader = &reader{core: c, parking: o.parking, tracker: tracker, brought: brought{memory: cfg.Memory}}
	o.rollout = &rollout{core: c, parking: o.parking, dispatcher: o.dispatcher, settler: o.settler, later: later, turn: make(chan struct{}, 1)}
	return o
}

// Load reads what the database knows about the target. It must be called once, before Run and everything else.
func (o *Owner) Load(ctx context.Context) error {
	crash.Point(crash.TargetTaken)
	row, err := o.queries.TargetLoad(ctx, o.cfg.Grant.ID)
	if err != nil {
		return fmt.Errorf("read the state of target %s: %w", o.cfg.Name, database.Explain(err))
	}
	// What a former owner had called for, or this process before it failed.
	if err := o.queries.FirstCallsTakeIn(ctx, o.cfg.Grant.ID); err != nil {
		return fmt.Errorf("record what former owners of target %s called for: %w", o.cfg.Name, database.Explain(err))
	}
	o.losses.Store(int64(o.cfg.Catalog.Losses()))
	objects, err := o.queries.LedgerPresent(ctx, o.cfg.Grant.ID)
	if err != nil {
		return fmt.Errorf("count the objects of target %s: %w", o.cfg.Name, err)
	}
	if err := o.health.begin(ctx); err != nil {
		return err
	}
	if err := o.loadGuard(ctx, objects); err != nil {
		return err
	}
	o.orders.paused.Store(row.Paused)
	o.orders.draining.Store(row.Draining)
	o.orders.clean.Store(row.Clean)
	if !row.Clean {
		// No former owner has seen a later revision; this process may have seen none yet.
		latest, err := o.queries.TickLatest(ctx)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return fmt.Errorf("read the newest revision: %w", err)
		}
		o.reader.replay = latest.Revision
		if row.CursorRevision == latest.Revision && row.CursorSnapshot != latest.Snapshot { // it was raised to the floor
			o.reader.replay++
		}
	}
	if _, err := o.queries.LedgerTakeOver(ctx, o.cfg.Grant.ID); err != nil {
		return fmt.Errorf("take over what target %s had in hand: %w", o.cfg.Name, err)
	}
	o.circuit.record(ctx, "") // a former owner's: the first calls will tell
	xid, err := strconv.ParseUint(row.BatchXid, 10, 64)
	if err != nil {
		return fmt.Errorf("read the cursor of target %s: %w", o.cfg.Name, err)
	}
	o.reader.start = cursor{
		base:  outbox.Tick{Revision: row.CursorRevision, Snapshot: row.CursorSnapshot},
		batch: outbox.Tick{Revision: row.BatchRevision, Snapshot: row.BatchSnapshot},
		at:    outbox.Position{Xid: xid, Seq: row.BatchSeq},
	}
	if err := o.startDriver(ctx); err != nil {
		return err
	}
	_, err = o.parking.decide(ctx, heldByBatch, math.MaxInt64)
	return err
}

// startDriver tells a driver that wants to know that the target is this process's.
func (o *Owner) startDriver(ctx context.Context) error {
	starter, ok := o.cfg.Driver.(driver.Starter)
	if !ok {
		return nil
	}
	home, err := o.queries.Home(ctx)
	if err != nil {
		return fmt.Errorf("ask which installation owns target %s: %w", o.cfg.Name, database.Explain(err))
	}
	ctx, cancel := context.WithTimeout(ctx, o.cfg.Timeout)
	defer cancel()
	// A driver that panics here panics in calls, too: those are recorded.
	_ = o.safely(func() error {
		starter.Start(ctx, driver.Home{ID: home.ID, System: home.System, Database: home.Database})
		return nil
	})
	return nil
}

// loadGuard makes the guard: deletes that former owners let pass within the window count.
func (o *Owner) loadGuard(ctx context.Context, objects int64) error {
	o.guard = guard.New(o.cfg.Guard, objects)
	rows, err := o.queries.GuardPasses(ctx, store.GuardPassesParams{TargetID: o.cfg.Grant.ID, GuardWindow: o.cfg.Guard.Window.Seconds()})
	if err != nil {
		return fmt.Errorf("read the latest deletes of target %s: %w", o.cfg.Name, database.Explain(err))
	}
	for _, row := range rows {
		o.guard.Remember(time.Duration(row.Age*float64(time.Second)), row.Deletes, row.Objects)
	}
	return nil
}

// Run works until the grant drains (then it finishes what is in flight and returns nil), or until ctx ends, or until
// the ledger cannot be written. It returns only when no driver call is running any more.
func (o *Owner) Run(ctx context.Context) error {
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	group, work := errgroup.WithContext(inner)
	intake, stopIntake := context.WithCancel(work)
	defer stopIntake()

	var sources sync.WaitGroup
	source := func(name loop.Name, run func(context.Context) error) {
		sources.Add(1)
		group.Go(func() error {
			defer sources.Done()
			if err := run(intake); err != nil && intake.Err() == nil {
				o.part(name).Failed(err)
				return err
			}
			return nil
		})
	}
	source(loop.Read, o.reader.read)
	source(loop.Due, o.retrier.retryDue)
	source(loop.Due, o.circuit.probe)
	source(loop.Dispatch, o.dispatcher.dispatch)
	source(loop.Dispatch, o.dispatcher.watchResting)
	source(loop.Turn, o.rollout.takeTurns)
	source(loop.Health, o.health.watch)
	source(loop.Watch, o.watcher.watch)
	source(loop.Watch, o.watcher.recheck)
	group.Go(func() error {
		err := o.settler.run(work)
		if err != nil && work.Err() == nil {
			o.part(loop.Settle).Failed(err)
		}
		return err
	})
	var workers sync.WaitGroup
	for range o.cfg.Concurrency {
		workers.Add(1)
		group.Go(func() error {
			defer workers.Done()
			return o.caller.work(work)
		})
	}
	group.Go(func() error {
		// Stop taking new work, finish what is in flight, then let the settler write the rest.
		asked := false
		select {
		case <-o.cfg.Grant.Draining():
			asked = true
		case <-work.Done():
		}
		stopIntake()
		o.queue.Stop() // from here on no call begins
		if asked {
			o.cfg.Logger.Info("target_draining", "target", o.cfg.Name)
		}
		sources.Wait()
		close(o.caller.calls[LaneLive])
		close(o.caller.calls[LaneSync])
		workers.Wait()
		o.parking.parked.Wait()
		close(o.settler.settled)
		return nil
	})
	err := group.Wait()
	o.queue.Abandon()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// Refresh reads what a person may have changed: paused, guard approved, draining, objects to be tried again.
func (o *Owner) Refresh(ctx context.Context) error {
	known := o.orders.known()
	unopened, operations := known.Known()
	row, err := o.queries.TargetSteering(ctx, store.TargetSteeringParams{TargetID: o.cfg.Grant.ID, Since: known.Since, Unopened: unopened, Operations: operations})
	if err != nil {
		return fmt.Errorf("read the state of target %s: %w", o.cfg.Name, err)
	}
	o.orders.gates.Store(new(desired.NewGates(row.Since, row.Unopened, row.Operations)))
	o.orders.paused.Store(row.Paused)
	o.orders.draining.Store(row.Draining)
	o.orders.clean.Store(row.Clean)
	o.cfg.Metrics.GuardHeld.WithLabelValues(o.cfg.Name).Set(float64(row.GuardDeletes))
	if row.GuardDeletes == 0 {
		o.parking.holding.Store(false)
	}
	live, sync, flying := o.queue.Depth()
	o.cfg.Metrics.Queued.WithLabelValues(o.cfg.Name, "live").Set(float64(live))
	o.cfg.Metrics.Queued.WithLabelValues(o.cfg.Name, "sync").Set(float64(sync))
	o.cfg.Metrics.InFlight.WithLabelValues(o.cfg.Name).Set(float64(flying))
	if row.Due {
		signal(o.wantDue)
	}
	if losses := int64(o.cfg.Catalog.Losses()); o.losses.Swap(losses) != losses {
		signal(o.settler.recount)
	}
	o.Turn(len(row.Operations) > 0, row.Health)
	return o.recordTrouble(ctx, row.Trouble)
}

// Turn tells the owner that there may be something for it to do in an apply, or that somebody waits for its target's health.
func (o *Owner) Turn(turn, health bool) {
	if turn {
		signal(o.rollout.turn)
	}
	if health {
		signal(o.health.wanted)
	}
}

// recordTrouble shows what the driver says of its work beside calls, if that is not what is shown.
func (o *Owner) recordTrouble(ctx context.Context, shown string) error {
	troubled, ok := o.cfg.Driver.(driver.Troubled)
	text := o.caller.slow.Trouble()
	if ok {
		text = cmp.Or(troubleOf(troubled), text)
	}
	o.cfg.Metrics.Contested.WithLabelValues(o.cfg.Name).Set(float64(driver.ContestedBy(o.cfg.Driver)))
	if text == shown {
		return nil
	}
	err := o.queries.TargetTrouble(ctx, store.TargetTroubleParams{TargetID: o.cfg.Grant.ID, Owner: o.cfg.Instance, Term: o.cfg.Grant.Term, Trouble: text})
	if err != nil {
		return fmt.Errorf("record the trouble of target %s: %w", o.cfg.Name, err)
	}
	return nil
}

// troubleOf is what a driver says of its work beside calls; "": that all is well. A panic is trouble.
func troubleOf(d driver.Troubled) string {
	err := driver.Safely(d.Trouble)
	if panicked, ok := errors.AsType[*driver.PanicError](err); ok {
		return panicked.Short()
	}
	if err != nil {
		return clip(err.Error())
	}
	return ""
}

// Unclean reports whether the last calls of a former owner may have changed what the ledger takes for unchanged.
func (o *Owner) Unclean() bool { return !o.orders.clean.Load() }

// Overran reports whether a call returned after the lease was lost: the process was frozen meanwhile. What it did may
// have come after what the next owner did.
func (o *Owner) Overran() bool { return o.caller.overran.Load() }

// Draining reports whether nothing is wanted in the target any more.
func (o *Owner) Draining() bool { return o.orders.draining.Load() }

// WantSync receives a value when this owner has asked for a sync of its target.
func (o *Owner) WantSync() <-chan struct{} { return o.wantSync }

// Enqueue puts an object on the sync lane, waiting for room; it counts in run until it is settled.
func (o *Owner) Enqueue(ctx context.Context, id ObjectID, force bool, park bool, run *Run) error {
	it := &Item{ObjectID: id, Lane: LaneSync, Force: force, Payload: payload{runs: []*Run{run}}}
	if park {
		it.Payload.park = heldBySync
	}
	run.add(park)
	if err := o.queue.Push(ctx, it); err != nil {
		run.done(false)
		return err
	}
	return nil
}

// DecideParked ends a sync's count of deletes: those that its run parked go ahead, or are held for approval. It returns how
// many are held.
func (o *Owner) DecideParked(ctx context.Context, run *Run) (held int64, err error) {
	return o.parking.decide(ctx, heldBySync, run.deletes())
}

// Gates returns what the owner knows of applies.
func (o *Owner) Gates() desired.Gates { return o.orders.known() }

// KnowCalls returns when the ledger knows every object that is called for on the strength of rows, or orders, of before.
func (o *Owner) KnowCalls(ctx context.Context) error {
	o.dispatcher.awaitReads()
	return o.settler.knowCalls(ctx)
}
