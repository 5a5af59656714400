package agent

import (
	"context"
	"sync"
	"time"

	"github.com/pgreconciler/reconciler/client"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/throttle"
)

// session follows a target with one informer and its controller: until the agent ends, or until the server refuses to serve it.
type session struct {
	*target

	began      time.Time
	store      *client.Store
	informer   *client.Informer
	controller *client.Controller
	lister     driver.Lister // nil: the driver cannot list

	calling context.Context //nolint:containedctx // outlives that of the controller by shutdown_timeout
	gate    gate
	listed  chan struct{} // the far side has been listed, size one
	changed chan struct{} // a call has changed the far side, size one
	rested  int64         // calls when memory was returned last
	news    chan struct{} // wakes reports: the trouble or the health has changed, size one
	crowded chan struct{} // there was no room for an object that the driver named, size one

	rechecks *throttle.Rechecks[client.Ref] // what the driver names as changed
}

func newSession(t *target, store *client.Store) *session {
	s := &session{
		target: t, began: time.Now(), store: store, gate: gate{trip: make(chan struct{}, 1)},
		listed: make(chan struct{}, 1), changed: make(chan struct{}, 1), news: make(chan struct{}, 1),
		crowded: make(chan struct{}, 1), rechecks: throttle.NewRechecks[client.Ref](),
	}
	signal(s.news) // it is there
	s.informer = client.NewInformer(t.client, t.cfg.Name, client.InformerOptions{Store: store, WriteAhead: true, SameStream: true})
	opts := []client.ControllerOption{
		client.Workers(t.cfg.Concurrency), client.Backoff(t.cfg.Backoff.Min, t.cfg.Backoff.Max),
		client.RememberResults(t.cfg.OptionsFingerprint()), client.Approve(s.approves),
	}
	if t.cfg.Guard.MaxDeletes != nil {
		opts = append(opts, client.MaxDeletes(*t.cfg.Guard.MaxDeletes))
	}
	if lister, ok := t.drv.(driver.Lister); ok {
		s.lister = lister
		opts = append(opts, client.ExistingObjects(s.existing))
	}
	if s.objects != nil {
		opts = append(opts, client.Health(s.objects.of))
	}
	s.controller = client.NewTargetController(s.informer, s.handle, opts...)
	return s
}

// run works until ctx ends or the server refuses the target. Then it goes on with what it has while refused waits. calls is the
// context of the driver's calls.
func (s *session) run(ctx, calls context.Context, refused func(error)) error {
	defer func() { _ = s.store.Close() }()
	s.calling = calls
	// The informer ends last: it writes down what the controller has made.
	following, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	working, end := context.WithCancel(ctx)
	defer end()
	if time.Now().Before(s.free) {
		s.shut("calls of a process that was killed may be under way until " + s.free.UTC().Format(time.TimeOnly) + " UTC")
	}
	ended := make(chan error, 1)
	go func() { ended <- s.informer.Run(following) }()
	var loops sync.WaitGroup
	loops.Go(func() { _ = s.controller.Run(working) }) // what is wired wrongly is the informer's error, too
	loops.Go(func() { s.reopens(working) })
	loops.Go(func() { s.reports(working) })
	loops.Go(func() { s.asks(working) })
	loops.Go(func() { s.watches(working) })
	if s.breaker.IsOpen() {
		s.shut("the target did not answer before")
	}
	select {
	case <-ctx.Done():
		loops.Wait()
		stop()
		return <-ended
	case err := <-ended:
		if !final(err) {
			refused(err)
		}
		end()
		loops.Wait()
		return err
	}
}

// signal wakes the receiver of a channel of size one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
