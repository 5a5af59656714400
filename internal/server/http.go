package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/pgreconciler/reconciler/internal/loop"
)

const (
	// healthyBeat is how old the last answered heartbeat may be: loops tick and the database answers.
	healthyBeat = 60 * time.Second
	readyBeat   = 10 * time.Second

	// Requests are short: one that is not read by then is nobody's.
	headerTimeout = 5 * time.Second
	readTimeout   = 5 * time.Second
	writeTimeout  = time.Minute
	idleTimeout   = time.Minute
	headerBytes   = 1 << 16
	// connectionsMost bounds the connections at once. Scrapers and probes need a few.
	connectionsMost = 128
	// profileMost is the longest profile that can be asked for.
	profileMost = 10 * time.Minute
)

// web serves the status page, probes and metrics, and the profiler on an address of its own.
type web struct {
	log       *slog.Logger
	listening func(key, addr string)
	servers   []*http.Server
	listeners []net.Listener
}

// listenHTTP binds the addresses now, so that a port in use is an error before anything starts.
func (s *Server) listenHTTP(ctx context.Context) (*web, error) {
	w := &web{log: s.log, listening: s.opts.Listening}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", (&page{server: s}).serve)
	mux.HandleFunc("GET /healthz", s.healthz)
	mux.HandleFunc("GET /readyz", s.readyz)
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.opts.Registry, promhttp.HandlerOpts{ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelWarn)}))
	cfg := s.opts.Config
	if err := w.listen(ctx, listening{key: "listen", addr: cfg.Listen, handler: s.hosts(cfg.Listen).only(mux), write: writeTimeout}); err != nil {
		return nil, err
	}
	prof := http.NewServeMux()
	prof.HandleFunc("/debug/pprof/", pprof.Index)
	prof.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	prof.HandleFunc("/debug/pprof/profile", pprof.Profile)
	prof.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	prof.HandleFunc("/debug/pprof/trace", pprof.Trace)
	err := w.listen(ctx, listening{key: "pprof_listen", addr: cfg.PprofListen, handler: s.hosts(cfg.PprofListen).only(prof), write: profileMost})
	if err == nil {
		err = s.serveStreams(ctx, w)
	}
	if err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

func (s *Server) hosts(listen string) hosts { return newHosts(listen, s.opts.Config.ListenNames) }

// listening is an address that is served. Responses of an endless one set their own deadlines.
type listening struct {
	key, addr   string
	handler     http.Handler
	write       time.Duration
	endless     bool
	connections int // at once; default: connectionsMost
	tls         *tls.Config
}

func (w *web) listen(ctx context.Context, at listening) error {
	if at.addr == "" {
		return nil
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", at.addr)
	if err != nil {
		return &ListenError{Key: at.key, Addr: at.addr, err: err}
	}
	// With port 0 nobody would know otherwise.
	w.log.Info("listening", "key", at.key, "address", l.Addr().String())
	if w.listening != nil {
		w.listening(at.key, l.Addr().String())
	}
	l = limit(l, cmp.Or(at.connections, connectionsMost))
	if at.tls != nil {
		l = tls.NewListener(l, at.tls)
	}
	w.listeners = append(w.listeners, l)
	server := &http.Server{
		Handler: at.handler, ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, WriteTimeout: at.write, IdleTimeout: idleTimeout, MaxHeaderBytes: headerBytes,
		ErrorLog: slog.NewLogLogger(w.log.Handler(), slog.LevelDebug),
	}
	if at.endless {
		server.ReadTimeout = 0 // it would end the request's context
	}
	w.servers = append(w.servers, server)
	return nil
}

// ListenError says that an address of the config cannot be listened on.
type ListenError struct {
	Key  string // of the config
	Addr string
	err  error
}

func (e *ListenError) Error() string {
	cause := e.err
	for next := errors.Unwrap(cause); next != nil; next = errors.Unwrap(cause) {
		cause = next
	}
	return fmt.Sprintf("%s: cannot listen on %s: %v (is another process running there? \"off\" disables it)", e.Key, e.Addr, cause)
}

// Unwrap returns the cause.
func (e *ListenError) Unwrap() error { return e.err }

func (w *web) close() {
	for _, l := range w.listeners {
		_ = l.Close() // was never served
	}
}

// serve answers until ctx ends: longer than all other loops, so that probes stay truthful while they drain.
func (w *web) serve(ctx context.Context) error {
	failed := make(chan error, len(w.servers))
	for i, server := range w.servers {
		go func() { failed <- server.Serve(w.listeners[i]) }()
	}
	var err error
	served := 0
	if len(w.servers) > 0 {
		select {
		case <-ctx.Done():
		case err = <-failed:
			served++
		}
	} else {
		<-ctx.Done()
	}
	stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	for _, server := range w.servers {
		if shutErr := server.Shutdown(stopCtx); shutErr != nil {
			_ = server.Close()
		}
	}
	for ; served < len(w.servers); served++ {
		if late := <-failed; err == nil {
			err = late
		}
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

func answer(w http.ResponseWriter, problems []string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if len(problems) > 0 {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = fmt.Fprintln(w, strings.Join(problems, "\n"))
		return
	}
	_, _ = fmt.Fprintln(w, "ok")
}

// healthz fails when the process should be restarted: its loops do not tick.
func (s *Server) healthz(w http.ResponseWriter, _ *http.Request) {
	var problems []string
	select {
	case <-s.leases.Started():
		if status := s.leases.Status(); status.SinceBeat > healthyBeat && status.Failing == 0 {
			problems = append(problems, fmt.Sprintf("the last heartbeat was %s ago", status.SinceBeat.Round(time.Second)))
		}
	default:
	}
	answer(w, problems)
}

// readyz fails while the database is out of reach, a loop fails again and again, or the first sync of an owned target is not complete.
// It does not fail for a resource that cannot be read: no other process could read it either.
func (s *Server) readyz(w http.ResponseWriter, _ *http.Request) {
	var problems []string
	status := s.leases.Status()
	switch {
	case status.Failing > 0 || status.SinceBeat > readyBeat:
		problems = append(problems, "the database does not answer")
	case status.SinceBeat == 0:
		problems = append(problems, "starting")
	}
	for _, f := range s.loops.Failing(loop.Lasting) {
		if f.Loop != loop.Rows {
			problems = append(problems, f.String())
		}
	}
	for _, name := range s.unsynced() {
		problems = append(problems, fmt.Sprintf("target %s: the first sync is not complete", name))
	}
	answer(w, problems)
}
