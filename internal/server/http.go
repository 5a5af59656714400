package server

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/pgreconciler/reconciler/internal/loop"
	"github.com/pgreconciler/reconciler/internal/web"
)

const (
	// healthyBeat is how old the last answered heartbeat may be: loops tick and the database answers.
	healthyBeat = 60 * time.Second
	readyBeat   = 10 * time.Second

	// profileMost is the longest profile that can be asked for.
	profileMost = 10 * time.Minute
)

// listenHTTP binds the addresses now, so that a port in use is an error before anything starts.
func (s *Server) listenHTTP(ctx context.Context) (*web.Server, error) {
	w := web.New(s.log, s.opts.Listening)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", (&page{server: s}).serve)
	mux.HandleFunc("GET /healthz", s.healthz)
	mux.HandleFunc("GET /readyz", s.readyz)
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.opts.Registry, promhttp.HandlerOpts{ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelWarn)}))
	cfg := s.opts.Config
	if err := w.Listen(ctx, web.Address{Key: "listen", Addr: cfg.Listen, Handler: s.hosts(cfg.Listen).Only(mux)}); err != nil {
		return nil, err
	}
	prof := http.NewServeMux()
	prof.HandleFunc("/debug/pprof/", pprof.Index)
	prof.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	prof.HandleFunc("/debug/pprof/profile", pprof.Profile)
	prof.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	prof.HandleFunc("/debug/pprof/trace", pprof.Trace)
	err := w.Listen(ctx, web.Address{Key: "pprof_listen", Addr: cfg.PprofListen, Handler: s.hosts(cfg.PprofListen).Only(prof), Write: profileMost})
	if err == nil {
		err = s.serveStreams(ctx, w)
	}
	if err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

func (s *Server) hosts(listen string) web.Hosts {
	return web.NewHosts(listen, s.opts.Config.ListenNames)
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
	web.Answer(w, problems)
}

// readyz fails while the database is out of reach, a loop fails again and again, or the first sync of an owned target is not complete.
// It does not fail for every loop, see loop.Name.Stops.
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
		if f.Loop.Stops() {
			problems = append(problems, f.String())
		}
	}
	for _, name := range s.unsynced() {
		problems = append(problems, fmt.Sprintf("target %s: the first sync is not complete", name))
	}
	web.Answer(w, problems)
}
