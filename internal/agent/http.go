package agent

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/pgreconciler/reconciler/internal/web"
)

// Approved is the answer to POST /approve.
type Approved struct {
	Target   string `json:"target"`
	Approved int    `json:"approved"` // deletes
}

func (a *Agent) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { web.Answer(w, nil) })
	mux.HandleFunc("GET /readyz", a.readyz)
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) { write(w, a.Status()) })
	mux.HandleFunc("POST /approve", a.approve)
	errorLog := slog.NewLogLogger(a.opts.Logger.Handler(), slog.LevelWarn)
	mux.Handle("GET /metrics", promhttp.HandlerFor(a.opts.Registry, promhttp.HandlerOpts{ErrorLog: errorLog}))
	return mux
}

// readyz names each target that does not work as it should. That the server is away is no reason: work goes on.
func (a *Agent) readyz(w http.ResponseWriter, _ *http.Request) {
	var problems []string
	for _, t := range a.targets {
		if st := t.status(); st.ready != "" {
			problems = append(problems, fmt.Sprintf("target %s: %s", st.Target, st.ready))
		}
	}
	web.Answer(w, problems)
}

// approve has a target make the deletes that its guard holds.
func (a *Agent) approve(w http.ResponseWriter, r *http.Request) {
	if !local(r.RemoteAddr) || !local(r.Host) {
		http.Error(w, "approvals are taken on the loopback interface only: run reconciler agent approve on the agent's host, or "+
			"SELECT reconciler.approve(...) in the database", http.StatusForbidden)
		return
	}
	name := r.URL.Query().Get("target")
	names := make([]string, len(a.targets))
	for i, t := range a.targets {
		names[i] = t.cfg.Name
		if t.cfg.Name == name {
			write(w, Approved{Target: name, Approved: t.approve()})
			return
		}
	}
	http.Error(w, fmt.Sprintf("no target is named %q here; there are %s", name, strings.Join(names, ", ")), http.StatusNotFound)
}

// approve returns how many deletes were approved.
func (t *target) approve() int {
	t.mu.Lock()
	s := t.session
	t.mu.Unlock()
	if s == nil {
		return 0
	}
	n := s.controller.ApproveDeletes()
	t.log.Info("deletes_approved", "deletes", n)
	return n
}

// approves lets the calls pass that the driver has asked about, and returns how many.
func (s *session) approves() int {
	refs, err := s.asked.approve()
	if err != nil {
		s.log.Error("approvals_not_written", "error", err)
	}
	s.controller.Enqueue(refs...)
	return len(refs)
}

// local reports whether a host, with or without a port, is this one.
func local(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.Trim(host, "[]")
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}

func write(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	lines := json.NewEncoder(w)
	lines.SetEscapeHTML(false)
	lines.SetIndent("", "  ")
	_ = lines.Encode(value) //nolint:errchkjson // a Status or an Approved; the client may have gone
}
