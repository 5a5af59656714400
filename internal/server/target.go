package server

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pgreconciler/reconciler/internal/apply"
	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/desired"
	"github.com/pgreconciler/reconciler/internal/lease"
	"github.com/pgreconciler/reconciler/internal/loop"
	"github.com/pgreconciler/reconciler/internal/outbox"
	"github.com/pgreconciler/reconciler/internal/pace"
	"github.com/pgreconciler/reconciler/internal/store"
	"github.com/pgreconciler/reconciler/internal/stream"
	"github.com/pgreconciler/reconciler/internal/sync"
	"github.com/pgreconciler/reconciler/internal/throttle"
)

const (
	// successorPatience is how long a process tries to ask the next owner of a target for a sync.
	successorPatience = 10 * time.Second
	successorRetry    = 200 * time.Millisecond
)

// turnsAgain is the pause after it could not be read whose turn it is.
var turnsAgain = pace.Of(2 * time.Second)

// runTarget is lease.Config.RunTarget: the apply side, the syncs, and an ear for commands.
func (s *Server) runTarget(ctx context.Context, grant *lease.Grant) error {
	target, ok := s.opts.Config.Target(grant.Target)
	if !ok {
		return fmt.Errorf("target %s is not in the config", grant.Target)
	}
	log := s.log.With("target", target.Name, "term", grant.Term)
	owner := apply.NewOwner(s.applyConfig(target, grant), sync.RequestResource(s.work, grant.ID))
	if err := owner.Load(ctx); err != nil {
		return err
	}
	if publisher, ok := stream.Of(s.opts.Drivers[target.Name]); ok {
		if err := s.ownStream(ctx, publisher, grant.ID, grant.Term); err != nil {
			return err
		}
	}
	control := s.listener.Subscribe(outbox.ChannelControl)
	defer s.listener.Unsubscribe(outbox.ChannelControl, control)
	syncControl := s.listener.Subscribe(outbox.ChannelControl)
	defer s.listener.Unsubscribe(outbox.ChannelControl, syncControl)
	s.setOwner(grant.ID, owner)
	defer s.setOwner(grant.ID, nil)
	runner := sync.NewRunner(s.syncConfig(target, grant, owner, syncControl))

	log.Info("target_owned", "clean", grant.Clean, "fresh", grant.Fresh)
	s.metrics.Owned.WithLabelValues(target.Name).Set(1)
	defer s.metrics.Owned.WithLabelValues(target.Name).Set(0)
	defer s.metrics.Contested.WithLabelValues(target.Name).Set(0)
	defer s.setSynced(target.Name, false)
	group, work := errgroup.WithContext(ctx)
	group.Go(func() error { return owner.Run(work) })
	group.Go(func() error { return runner.Run(work) })
	group.Go(func() error { return s.steer(work, grant, owner, control) })
	err := group.Wait()
	if owner.Overran() {
		s.askSuccessor(ctx, runner, log)
	}
	if err != nil && ctx.Err() == nil {
		log.Warn("target_stopped", "error", err)
	} else {
		log.Info("target_left")
	}
	return err
}

// askSuccessor asks for a sync when a call of this process, frozen meanwhile, ended after its lease: the target may have
// something older than what its next owner has applied. The connections may have died with the lease.
func (*Server) askSuccessor(ctx context.Context, runner *sync.Runner, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), successorPatience)
	defer cancel()
	for {
		err := runner.AskSuccessor(ctx)
		if err == nil {
			log.Warn("call_outlived_lease", "effect", "the target's owner looks again at what it has applied")
			return
		}
		select {
		case <-time.After(successorRetry):
		case <-ctx.Done():
			log.Error("call_outlived_lease", "error", err, "remedy", "SELECT reconciler.resync(...)")
			return
		}
	}
}

func (s *Server) applyConfig(t config.Target, grant *lease.Grant) apply.Config {
	return apply.Config{
		Name: t.Name, Instance: s.instance, Grant: grant, Driver: s.opts.Drivers[t.Name], Pool: s.work, Rows: s.rows, Feed: s.feed, Catalog: s.catalog,
		Concurrency: t.Concurrency, Timeout: t.Timeout, Rate: t.Rate, Backoff: throttle.Backoff{Min: t.Backoff.Min, Max: t.Backoff.Max},
		Guard: t.Guard.Limits(), Memory: s.memory, Calls: s.budget.Calls, Logger: s.log, Metrics: s.metrics, Loops: s.loops, Observe: s.opts.Events,
		ReportOnly: t.SyncMode == config.SyncReport, List: sync.RequestListing(s.work, grant.ID, string(t.SyncMode), s.opts.Drivers[t.Name]),
	}
}

func (s *Server) syncConfig(t config.Target, grant *lease.Grant, owner *apply.Owner, control <-chan struct{}) sync.Config {
	return sync.Config{
		Name: t.Name, Instance: s.instance, Grant: grant, Driver: s.opts.Drivers[t.Name], Pool: s.work, Rows: s.rows, Catalog: s.catalog, Owner: owner,
		Interval: t.SyncInterval, Mode: string(t.SyncMode), Timeout: t.Timeout, Control: control, Logger: s.log, Metrics: s.metrics, Loops: s.loops,
		Complete: func(ctx context.Context, mode string) error { return s.completeSync(ctx, t.Name, mode) },
	}
}

// steer tells the owner of commands, until the grant drains.
func (s *Server) steer(ctx context.Context, grant *lease.Grant, owner *apply.Owner, control <-chan struct{}) error {
	entry := s.loops.Loop(loop.Steer, grant.Target)
	timer := time.NewTimer(s.opts.SteerEvery)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-grant.Draining():
			return nil
		case <-control:
		case <-timer.C:
		}
		if err := owner.Refresh(ctx); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			entry.Failed(err)
			return err
		}
		entry.Succeeded()
		timer.Reset(s.opts.SteerEvery)
	}
}

// setOwner remembers who works on a target; nil: nobody any more.
func (s *Server) setOwner(target int32, owner *apply.Owner) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if owner == nil {
		delete(s.owners, target)
	} else {
		s.owners[target] = owner
	}
}

// watchTurns tells owners that there may be something for them to do in an apply. One look serves them all: they may be
// a thousand, and mostly it is the turn of one.
func (s *Server) watchTurns(ctx context.Context) error {
	turn := s.listener.Subscribe(outbox.ChannelTurn)
	defer s.listener.Unsubscribe(outbox.ChannelTurn, turn)
	return s.loops.Loop(loop.Turns, "").Run(ctx, loop.Schedule{
		Wake: turn, First: -1, AgainMin: turnsAgain, AgainMax: turnsAgain, // after a failure nobody may call any more
		Turn: func(ctx context.Context) (time.Duration, error) {
			since, known := s.knownGates()
			rows, err := store.New(s.work).TargetsWithTurn(ctx, store.TargetsWithTurnParams{Owner: s.instance, Since: since, Known: known})
			s.tellTurns(rows, err != nil) // then every target asks by itself
			return -1, err                //nolint:wrapcheck // the loop's name says what failed
		},
	})
}

// knownGates returns what all owners know of the operations of applies: since when, and which there were.
func (s *Server) knownGates() (since uint64, operations []int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	operations = []int64{}
	for _, owner := range s.owners {
		known := owner.Gates()
		if known.Since == 0 || len(operations)+len(known.Operations) > desired.GatesMost {
			return 0, []int64{}
		}
		if since == 0 || known.Since < since {
			since = known.Since
		}
		operations = append(operations, known.Operations...)
	}
	return since, operations
}

// tellTurns tells those owners whose targets are named; all: every one, since nobody knows.
func (s *Server) tellTurns(rows []store.TargetsWithTurnRow, all bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if all {
		for _, owner := range s.owners {
			owner.Turn(true, true)
		}
		return
	}
	for _, row := range rows {
		if owner := s.owners[row.TargetID]; owner != nil {
			owner.Turn(row.Turn, row.Health)
		}
	}
}

// completeSync notes a complete full sync of a target. One that repaired has published every object of a stream.
func (s *Server) completeSync(ctx context.Context, target, mode string) error {
	s.setSynced(target, true)
	if publisher, ok := stream.Of(s.opts.Drivers[target]); ok && mode == sync.ModeRepair {
		return publisher.Complete(ctx)
	}
	return nil
}

func (s *Server) setSynced(target string, synced bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.synced[target] = synced
}

// unsynced returns the owned targets whose first sync of this ownership is not complete.
func (s *Server) unsynced() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for _, name := range s.leases.Status().Targets {
		if !s.synced[name] {
			names = append(names, name)
		}
	}
	return names
}
