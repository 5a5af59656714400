package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/pgreconciler/reconciler/internal/apply"
	"github.com/pgreconciler/reconciler/internal/budget"
	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/desired"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/leader"
	"github.com/pgreconciler/reconciler/internal/lease"
	"github.com/pgreconciler/reconciler/internal/loop"
	"github.com/pgreconciler/reconciler/internal/metrics"
	"github.com/pgreconciler/reconciler/internal/migrate"
	"github.com/pgreconciler/reconciler/internal/outbox"
	"github.com/pgreconciler/reconciler/internal/pace"
	"github.com/pgreconciler/reconciler/internal/watch"
)

const (
	// workConns, rowsConns, directConns and leaseConns bound the connections of a process, whatever the number of targets.
	workConns   = 8
	rowsConns   = 4
	directConns = 2
	leaseConns  = 2
)

var (
	// catalogAgain is the pause after definitions could not be read.
	catalogAgain = pace.Of(2 * time.Second)
	// catalogEvery is how often definitions are read again when nobody says that they changed.
	catalogEvery = pace.Of(30 * time.Second)
	// steerEvery is how often an owner looks for what a person has changed when nobody says so.
	steerEvery = pace.Of(15 * time.Second)
)

// Event is one driver call, for whoever watches.
type Event = apply.Observation

// Options are what a Server is made from. Config and Drivers (by target name) are required; the rest has defaults.
type Options struct {
	Config   *config.Config
	Drivers  map[string]driver.Driver
	Version  string               // of the binary; shown in psql
	Logger   *slog.Logger         // default: none
	Registry *prometheus.Registry // default: a new one
	// Events is told of every driver call; it must not block. Nil: nobody is.
	Events func(Event)
	// Listening is called with the key of the config and the address for everything that is listened on. Nil: it is not.
	Listening func(key, addr string)
	// Getenv looks up the variables that hold tokens. Default: os.Getenv.
	Getenv func(string) string

	// SteerEvery is for tests of notifications, which lengthen the poll for what a person has changed. Default: 15 s.
	SteerEvery time.Duration
}

// Server runs every loop of one process.
type Server struct {
	opts     Options
	instance string
	name     string
	source   string // host and config file
	log      *slog.Logger
	metrics  *metrics.Metrics

	fleet  *database.Fleet
	direct *pgxpool.Pool // definitions, the leader's other work
	beats  *pgxpool.Pool // leases, so that nothing else can keep a heartbeat waiting
	work   *pgxpool.Pool // ledger, outbox
	rows   *pgxpool.Pool // users' rows; work, where that leads through a pooler
	// leaderRows is what the leader reads users' rows through: not a pooler, for it needs the transaction of a session.
	leaderRows *pgxpool.Pool
	streams    *pgxpool.Pool // what streams have published, for watchers; nil: not served here
	hub        *watch.Hub    // nil: as above
	access     *watch.Access // who may read streams; nil: as above
	home       string        // driver.Home as clients of streams see it
	feed       *outbox.Feed
	catalog    *desired.Catalog
	listener   *outbox.Listener
	ticker     *leader.Ticker
	steward    *leader.Steward
	leases     *lease.Manager
	memory     *apply.Memory
	budget     *budget.Budget
	loops      *loop.Monitor

	published chan struct{} // of size one: processes with watchers are to be notified

	mu     sync.Mutex // guards what follows
	synced map[string]bool
	owners map[int32]*apply.Owner // by target
}

// New prepares a server. Nothing is opened before Run.
func New(opts Options) *Server {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.Registry == nil {
		opts.Registry = prometheus.NewRegistry()
	}
	opts.SteerEvery = cmp.Or(opts.SteerEvery, steerEvery)
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	s := &Server{
		opts: opts, instance: uuid.NewString(), name: fmt.Sprintf("%s:%d", host, os.Getpid()), source: source(host, opts.Config.File), log: opts.Logger,
		metrics: metrics.New(opts.Registry), catalog: &desired.Catalog{}, synced: map[string]bool{}, owners: map[int32]*apply.Owner{},
		memory: apply.NewMemory(), budget: budget.New(cmp.Or(opts.Config.MemoryLimit, config.MemoryLimitDefault)), fleet: database.NewFleet(opts.Logger), published: make(chan struct{}, 1),
	}
	metrics.Budget(opts.Registry, s.budget)
	names := make([]string, len(opts.Config.Targets))
	for i, t := range opts.Config.Targets {
		names[i] = t.Name
	}
	s.loops = loop.New(s.log, s.metrics, names...)
	return s
}

// source names the host and the config file; without a file the working directory.
func source(host, file string) string {
	if path, err := filepath.Abs(file); err == nil {
		file = path
	}
	return host + ":" + file
}

// Run starts everything, and returns nil when ctx has ended and all work in flight was finished and recorded. At most
// the config's shutdown_timeout after ctx has ended it cancels what is still going on. An unreachable database or a
// schema that does not fit are errors at the start; later ones are waited out. The drivers are closed when it returns.
func (s *Server) Run(ctx context.Context) error {
	defer s.closeDrivers(ctx)
	if err := s.open(ctx); err != nil {
		return err
	}
	defer s.closePools()
	s.assemble()
	http, err := s.listenHTTP(ctx)
	if err != nil {
		return err
	}

	// Loops outlive ctx by the time that draining takes.
	loops, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	group, running := errgroup.WithContext(loops)
	group.Go(func() error { return http.Serve(running) })
	group.Go(func() error { return s.listener.Run(running) })
	group.Go(func() error { return s.ticker.Follow(running) })
	group.Go(func() error { return s.followCatalog(running) })
	group.Go(func() error { return s.watchTurns(running) })
	group.Go(func() error { return s.notifyWatchers(running) })
	if s.hub != nil {
		group.Go(func() error { return s.hub.Run(running) })
		group.Go(func() error { return s.access.Run(running) })
	}
	s.watchLoops(running, group)
	if err := s.leases.Start(loops); err != nil {
		stop()
		return errors.Join(database.Explain(err), group.Wait())
	}
	s.log.Info("started", "instance", s.instance, "name", s.name, "version", s.opts.Version, "targets", len(s.opts.Config.Targets))
	select {
	case <-ctx.Done():
		s.log.Info("draining")
	case <-running.Done():
	}
	grace, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), s.opts.Config.ShutdownTimeout, errShutdownTimeout)
	defer cancel()
	stopErr := s.leases.Stop(grace)
	stop()
	if err := group.Wait(); err != nil {
		return err
	}
	if stopErr != nil {
		return fmt.Errorf("stop: %w", stopErr)
	}
	s.log.Info("stopped")
	return nil
}

var errShutdownTimeout = errors.New("draining took longer than shutdown_timeout")

// open connects; when it fails nothing stays open.
func (s *Server) open(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			s.closePools()
		}
	}()
	cfg := s.opts.Config
	for _, url := range s.urls() {
		if err = s.fleet.Survey(ctx, url); err != nil {
			return err
		}
	}
	s.direct, err = database.NewPool(ctx, cfg.DirectURL.Reveal(), database.Options{Name: "reconciler " + s.name, MaxConns: directConns, Fleet: s.fleet})
	if err != nil {
		return err
	}
	if err = s.checkSchema(ctx); err != nil {
		return err
	}
	if database.Pooled(s.direct.Config().ConnConfig) {
		s.log.Warn("direct_url_pooled", "effect", "LISTEN may not work, sessions have no timeouts of ours", "remedy", "let direct_url lead to the server itself")
	}
	s.beats, err = database.NewPool(ctx, cfg.DirectURL.Reveal(), database.Options{Name: "reconciler " + s.name + " lease", MaxConns: leaseConns, Fleet: s.fleet})
	if err != nil {
		return err
	}
	pooled := cfg.DatabaseURL.Reveal() != cfg.DirectURL.Reveal()
	s.work, err = database.NewPool(ctx, cfg.DatabaseURL.Reveal(), database.Options{
		Name: "reconciler " + s.name + " work", MaxConns: workConns, Simple: pooled, Fleet: s.fleet,
		// Results can be recomputed: ledger and cursor are lost together, and the target is looked at again.
		Settings: map[string]string{"synchronous_commit": "off"},
	})
	if err != nil {
		return err
	}
	if err = s.openStreams(ctx, pooled); err != nil {
		return err
	}
	if database.Pooled(s.work.Config().ConnConfig) {
		s.rows = s.work
		s.leaderRows, err = database.NewPool(ctx, cfg.DirectURL.Reveal(), database.Options{
			Name: "reconciler " + s.name + " rows", MaxConns: directConns, Fleet: s.fleet, Settings: database.RowsSession(),
		})
		return err
	}
	s.rows, err = database.NewPool(ctx, cfg.DatabaseURL.Reveal(), database.Options{
		Name: "reconciler " + s.name + " rows", MaxConns: rowsConns, Fleet: s.fleet, Settings: database.RowsSession(),
	})
	s.leaderRows = s.rows
	return err
}

// urls are those of the config, each once.
func (s *Server) urls() []string {
	return slices.Compact([]string{s.opts.Config.DirectURL.Reveal(), s.opts.Config.DatabaseURL.Reveal()})
}

// hangUpAfter is how long a stopping process waits for its connections to close before it cuts them.
const hangUpAfter = 2 * time.Second

func (s *Server) closePools() {
	told := make(chan struct{})
	hangUp := time.AfterFunc(hangUpAfter, func() {
		defer close(told)
		s.log.Warn("connections_given_up", "connections", s.fleet.End(), "effect", "the server did not answer when they were closed; it ends what they asked in time")
	})
	defer func() {
		if !hangUp.Stop() {
			<-told
		}
	}()
	for _, pool := range []*pgxpool.Pool{s.direct, s.beats, s.work, s.rows, s.leaderRows, s.streams} {
		if pool != nil {
			pool.Close() // more than once does nothing
		}
	}
}

func (s *Server) checkSchema(ctx context.Context) error {
	conn, err := s.direct.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("check the schema: %w", err)
	}
	defer conn.Release()
	if err := migrate.Check(ctx, conn.Conn()); err != nil {
		return &SchemaError{err: err}
	}
	if _, err := s.catalog.Reload(ctx, conn); err != nil {
		return database.Explain(err)
	}
	return nil
}

// SchemaError says that the schema in the database is missing, or older or newer than this binary needs.
type SchemaError struct{ err error }

func (e *SchemaError) Error() string { return e.err.Error() }

// Unwrap returns the cause, an error of package migrate.
func (e *SchemaError) Unwrap() error { return e.err }

// assemble makes the parts that share the connections.
func (s *Server) assemble() {
	cfg := s.opts.Config
	s.feed = outbox.NewFeed(s.work, s.metrics)
	s.feed.Fleet = s.fleet
	s.listener = &outbox.Listener{
		URL: cfg.DirectURL.Reveal(), Fleet: s.fleet, Name: "reconciler " + s.name, Off: cfg.Notify == config.NotifyOff, Logger: s.log, Metrics: s.metrics,
		Loops: s.loops,
	}
	s.ticker = &leader.Ticker{
		URL: cfg.DirectURL.Reveal(), Fleet: s.fleet, Name: "reconciler " + s.name, Instance: s.instance, Feed: s.feed, Listener: s.listener,
		Poll: cfg.PollInterval, Peers: s.hasPeers, Logger: s.log, Metrics: s.metrics, Loops: s.loops,
	}
	s.steward = &leader.Steward{
		Pool: s.direct, Rows: s.leaderRows, Instance: s.instance, Feed: s.feed, Catalog: s.catalog,
		MaxAge: cfg.Retention.MaxAge, MaxRows: cfg.Retention.MaxRows, Wake: s.listener.Wake, Logger: s.log, Metrics: s.metrics, Loops: s.loops,
	}
	targets := make([]lease.Target, len(cfg.Targets))
	for i, t := range cfg.Targets {
		s.metrics.Target(t.Name)
		targets[i] = leaseTarget(t, s.opts.Drivers[t.Name])
	}
	s.leases = lease.New(lease.Config{
		Pool: s.beats, Instance: s.instance, Name: s.name, Version: s.opts.Version, Source: s.source, Targets: targets, Logger: s.log,
		RunTarget: s.runTarget, RunLeader: s.runLeader, Control: s.listener.Subscribe(outbox.ChannelControl),
		Loops: s.loops, Silent: s.fleet.Suspect, Heard: s.fleet.Heard,
	})
}

func leaseTarget(t config.Target, drv driver.Driver) lease.Target {
	limits := t.Guard.Limits()
	out := lease.Target{Name: t.Name, Driver: t.Driver, Fingerprint: t.OptionsFingerprint(), CallTimeout: t.Timeout}
	if place, ok := driver.PlaceOf(drv); ok {
		out.Place, out.PlaceKey = place.Name, place.Key(t.Driver)
	}
	if limits.MaxDeletes >= 0 {
		n := int64(limits.MaxDeletes)
		out.MaxDeletes = &n
	}
	out.MaxFraction = &limits.MaxFraction
	return out
}

// runLeader is lease.Config.RunLeader: the tick, and the leader's other work.
func (s *Server) runLeader(ctx context.Context, term int64) error {
	group, ctx := errgroup.WithContext(ctx)
	ready := make(chan struct{})
	group.Go(func() error { return s.ticker.Keep(ctx, term, ready) })
	group.Go(func() error { return s.steward.Run(ctx, term, ready) }) // its first cursor is the leader's first tick
	return group.Wait()
}

// followCatalog keeps the definitions up to date.
func (s *Server) followCatalog(ctx context.Context) error {
	control := s.listener.Subscribe(outbox.ChannelControl)
	defer s.listener.Unsubscribe(outbox.ChannelControl, control)
	return s.loops.Loop(loop.Definitions, "").Run(ctx, loop.Schedule{
		Wake: control, First: catalogEvery, AgainMin: catalogAgain, AgainMax: catalogAgain,
		Turn: func(ctx context.Context) (time.Duration, error) {
			if _, err := s.catalog.Reload(ctx, s.direct); err != nil {
				return catalogAgain, err
			}
			return catalogEvery, nil
		},
	})
}

func (s *Server) hasPeers() bool { return s.leases.Status().Peers > 0 }

// closeTimeout is how long drivers have to end what they do beside calls.
const closeTimeout = 10 * time.Second

// closeDrivers closes what the caller opened, after the last call has returned: all at once, so that one which takes its time
// takes none of the others'.
func (s *Server) closeDrivers(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	var closing sync.WaitGroup
	for name, d := range s.opts.Drivers {
		closing.Go(func() {
			if err := driver.Safely(func() error { return d.Close(ctx) }); err != nil {
				s.log.Warn("driver_not_closed", "target", name, "error", err)
			}
		})
	}
	closing.Wait()
}
