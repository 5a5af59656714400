package web

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"
)

const (
	// Requests are short: a client that has not sent its request by then has gone.
	headerTimeout = 5 * time.Second
	readTimeout   = 5 * time.Second
	writeTimeout  = time.Minute
	idleTimeout   = time.Minute
	headerBytes   = 1 << 16
	// connectionsMost bounds the connections at once. Scrapers and probes need a few.
	connectionsMost = 128
)

// Server serves HTTP on several addresses.
type Server struct {
	log       *slog.Logger
	listening func(key, addr string)
	servers   []*http.Server
	listeners []net.Listener
}

// New returns a Server without addresses. listening, if not nil, is called with the key of the config and the address for each of them.
func New(log *slog.Logger, listening func(key, addr string)) *Server {
	return &Server{log: log, listening: listening}
}

// Address is one that is served.
type Address struct {
	Key         string // of the config
	Addr        string // host:port; "": none
	Handler     http.Handler
	Write       time.Duration // the longest response; default: 1 minute
	Endless     bool          // responses set their own deadlines
	Connections int           // at once; default: 128
	TLS         *tls.Config   // nil: none
}

// Listen binds an address, so that a port in use is an error before anything starts.
func (s *Server) Listen(ctx context.Context, at Address) error {
	if at.Addr == "" {
		return nil
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", at.Addr)
	if err != nil {
		return &ListenError{Key: at.Key, Addr: at.Addr, err: err}
	}
	// With port 0 only this line has the port.
	s.log.Info("listening", "key", at.Key, "address", l.Addr().String())
	if s.listening != nil {
		s.listening(at.Key, l.Addr().String())
	}
	l = limit(l, cmp.Or(at.Connections, connectionsMost))
	if at.TLS != nil {
		l = tls.NewListener(l, at.TLS)
	}
	s.listeners = append(s.listeners, l)
	server := &http.Server{
		Handler: at.Handler, ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, WriteTimeout: cmp.Or(at.Write, writeTimeout),
		IdleTimeout: idleTimeout, MaxHeaderBytes: headerBytes, ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	if at.Endless {
		server.ReadTimeout, server.WriteTimeout = 0, 0 // they would end the request's context, and the response
	}
	s.servers = append(s.servers, server)
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

// Close closes addresses that were never served.
func (s *Server) Close() {
	for _, l := range s.listeners {
		_ = l.Close() // was never served
	}
}

// Serve answers until ctx ends.
func (s *Server) Serve(ctx context.Context) error {
	failed := make(chan error, len(s.servers))
	for i, server := range s.servers {
		go func() { failed <- server.Serve(s.listeners[i]) }()
	}
	var err error
	served := 0
	if len(s.servers) > 0 {
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
	for _, server := range s.servers {
		if shutErr := server.Shutdown(stopCtx); shutErr != nil {
			_ = server.Close()
		}
	}
	for ; served < len(s.servers); served++ {
		if late := <-failed; err == nil {
			err = late
		}
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// Answer writes "ok", or status 503 with one problem on each line.
func Answer(w http.ResponseWriter, problems []string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if len(problems) > 0 {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = fmt.Fprintln(w, strings.Join(problems, "\n"))
		return
	}
	_, _ = fmt.Fprintln(w, "ok")
}
