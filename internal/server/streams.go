package server

import (
	"context"
	"net/http"
	"os"
	"time"

	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/loop"
	"github.com/pgreconciler/reconciler/internal/outbox"
	"github.com/pgreconciler/reconciler/internal/store"
	"github.com/pgreconciler/reconciler/internal/stream"
	"github.com/pgreconciler/reconciler/internal/watch"
	"github.com/pgreconciler/reconciler/internal/web"
)

const (
	// notifyWatchersEvery bounds how often other processes are notified of what this one publishes.
	notifyWatchersEvery = 5 * time.Millisecond
	// streamConnections bounds the connections to streams.listen: those of watchers, and a few that are refused.
	streamConnections = 20_100
)

// openStreams connects for those who follow streams, if they are served here.
func (s *Server) openStreams(ctx context.Context, pooled bool) (err error) {
	cfg := s.opts.Config
	if cfg.Streams.Listen == "" {
		return nil
	}
	s.streams, err = database.NewPool(ctx, cfg.DatabaseURL.Reveal(), database.Options{
		Name: "reconciler " + s.name + " streams", MaxConns: watch.Conns, Simple: pooled, Fleet: s.fleet, Settings: database.WatchSession(),
	})
	if err != nil {
		return err
	}
	getenv := s.opts.Getenv
	if getenv == nil {
		getenv = os.Getenv
	}
	if s.access, err = watch.NewAccess(cfg.Streams, getenv, s.loops); err != nil {
		return err
	}
	home, err := store.New(s.direct).Home(ctx)
	if err != nil {
		return database.Explain(err)
	}
	s.home = driver.Home{ID: home.ID, System: home.System, Database: home.Database}.String()
	return nil
}

// serveStreams listens for those who follow streams.
func (s *Server) serveStreams(ctx context.Context, w *web.Server) error {
	if s.streams == nil {
		return nil
	}
	var db store.DBTX = s.streams
	if database.Pooled(s.streams.Config().ConnConfig) {
		db = database.Walk(s.streams)
	}
	s.hub = watch.NewHub(watch.Config{
		DB: db, Instance: s.instance, Metrics: s.metrics, Loops: s.loops, Budget: s.budget, Published: s.listener.Subscribe(outbox.ChannelPublished),
	})
	addr := s.opts.Config.Streams.Listen
	var configured []string
	for _, t := range s.opts.Config.Targets {
		if _, ok := stream.Of(s.opts.Drivers[t.Name]); ok {
			configured = append(configured, t.Name)
			s.metrics.Stream(t.Name)
		}
	}
	var handler http.Handler = watch.NewHandler(s.hub, s.access, s.home, configured, ctx.Done())
	if s.access.Open() {
		handler = s.hosts(addr).Only(handler) // a browser reaches the loopback interface, too
	}
	return w.Listen(ctx, web.Address{
		Key: "streams.listen", Addr: addr, Connections: streamConnections, Endless: true, Handler: handler, TLS: s.access.TLS(),
	})
}

// ownStream hands the publisher of a stream the database.
func (s *Server) ownStream(ctx context.Context, publisher *stream.Publisher, targetID int32, term int64) error {
	return publisher.Own(ctx, stream.Owner{
		Pool: s.work, TargetID: targetID, Instance: s.instance, Term: term,
		Published: func(watched bool) {
			if s.hub != nil {
				s.hub.Wake()
			}
			if watched {
				select {
				case s.published <- struct{}{}:
				default:
				}
			}
		},
	})
}

// notifyWatchers notifies the other processes of what this one has published, after the commit: a NOTIFY inside would hold a lock
// of the whole server while it is flushed. One that is lost is found by the next poll.
func (s *Server) notifyWatchers(ctx context.Context) error {
	return s.loops.Loop(loop.NotifyWatchers, "").Run(ctx, loop.Schedule{Wake: s.published, First: -1, Turn: func(ctx context.Context) (time.Duration, error) {
		sendCtx, cancel := context.WithTimeout(ctx, poolTimeout)
		defer cancel()
		if err := store.New(s.work).StreamNotify(sendCtx); err != nil {
			return -1, err
		}
		select { // what is published meanwhile goes with the next
		case <-ctx.Done():
		case <-time.After(notifyWatchersEvery):
		}
		return -1, nil
	}})
}
