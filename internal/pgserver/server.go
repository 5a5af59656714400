package pgserver

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// Superuser is the role that every server has.
	Superuser = "postgres"

	// StartTimeout is for a first start on a busy machine, initdb or the making of a container included.
	StartTimeout = 4 * time.Minute
	stopTimeout  = time.Minute
	pingTimeout  = 2 * time.Second
	pingPeriod   = 50 * time.Millisecond

	// What errors and failed tests show of the server's log: the last lines, and the first of each long statement.
	logLines       = 60
	statementLines = 8

	stateFile = "server.json"
)

// Mode is how a server stops, in the words of pg_ctl.
type Mode string

const (
	// Fast ends every session and shuts down in good order.
	Fast Mode = "fast"
	// Immediate stops as a crash does: the next start recovers. It ends a server in any state.
	Immediate Mode = "immediate"
)

// Engine is where a server runs: Local or Container.
type Engine interface {
	// Start starts a server that has been made.
	Start(ctx context.Context) error
	// Stop stops the server. One that does not run is not an error.
	Stop(ctx context.Context, mode Mode) error
	// Alive returns an error if the started server has ended.
	Alive(ctx context.Context) error
	// Destroy ends the server in whatever state it is, and removes what it has outside its directory.
	Destroy(ctx context.Context) error
	Log(ctx context.Context) (string, error)
	// Script runs a shell script in the data directory of the stopped server.
	Script(ctx context.Context, text string) error
}

// Server is what other processes need to use a server, and to end it.
type Server struct {
	Dir     string `json:"dir"`
	Port    int    `json:"port"`
	Version int    `json:"version"`        // major version
	Keep    bool   `json:"keep,omitempty"` // its end leaves the directory and the container, stopped
	// Its end has been asked for. The engine may still be at it after the process that asked has given up: a server that
	// answers can vanish at any moment then.
	Ending bool `json:"ending,omitempty"`

	// One of the two is set.
	Local     *Local     `json:"local,omitempty"`
	Container *Container `json:"container,omitempty"`
}

// Engine returns where the server runs.
func (s *Server) Engine() Engine {
	if s.Container != nil {
		return s.Container
	}
	return s.Local
}

// Save writes the state file. Save before you make anything that must be ended.
func (s *Server) Save() error {
	text, err := json.Marshal(s)
	// Renamed into place: a reader sees all of it or nothing.
	draft := filepath.Join(s.Dir, stateFile+".draft")
	if err == nil {
		err = os.WriteFile(draft, text, 0o600)
	}
	if err == nil {
		err = os.Rename(draft, filepath.Join(s.Dir, stateFile))
	}
	if err != nil {
		return fmt.Errorf("write the state file of the server: %w", err)
	}
	return nil
}

// Load reads the state file. It returns nil if no server was begun in dir.
func Load(dir string) (*Server, error) {
	path := filepath.Join(dir, stateFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	s := new(Server)
	if err == nil {
		err = json.Unmarshal(text, s)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if s.Local == nil && s.Container == nil {
		return nil, fmt.Errorf("%s names no server", path)
	}
	return s, nil
}

// Clear ends the server and removes its data, but not its directory.
func (s *Server) Clear(ctx context.Context) error {
	if err := s.Engine().Destroy(ctx); err != nil {
		return fmt.Errorf("end the server in %s: %w", s.Dir, err)
	}
	return errors.Join(os.RemoveAll(filepath.Join(s.Dir, "data")), os.Remove(filepath.Join(s.Dir, stateFile)))
}

// URL returns the URL of a database, without TLS.
func (s *Server) URL(role *url.Userinfo, database string) string {
	u := url.URL{Scheme: "postgres", User: role, Host: fmt.Sprintf("127.0.0.1:%d", s.Port), Path: "/" + database, RawQuery: "sslmode=disable"}
	return u.String()
}

// Answers reports whether the server takes connections at a URL right now.
func Answers(ctx context.Context, url string) bool {
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	return Exec(ctx, url, "SELECT 1") == nil
}

// AwaitReady waits until the server takes connections at a URL, has ended, or ctx ends.
func (s *Server) AwaitReady(ctx context.Context, url string) error {
	tick := time.NewTicker(pingPeriod)
	defer tick.Stop()
	for !Answers(ctx, url) {
		if err := s.Engine().Alive(ctx); err != nil {
			return s.withLog(ctx, err)
		}
		select {
		case <-ctx.Done():
			return s.withLog(ctx, fmt.Errorf("the server on port %d does not answer: %w", s.Port, context.Cause(ctx)))
		case <-tick.C:
		}
	}
	return nil
}

func (s *Server) withLog(ctx context.Context, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	return fmt.Errorf("%w\n%s", err, s.LastLines(ctx, func(string) bool { return true }))
}

// LastLines returns the last lines of the server's log among those to keep, or why there are none.
func (s *Server) LastLines(ctx context.Context, keep func(line string) bool) string {
	text, err := s.Engine().Log(ctx)
	if err != nil {
		return fmt.Sprintf("(no server log: %v)", err)
	}
	var lines []string
	continued := 0
	for line := range strings.Lines(text) {
		if continued++; !strings.HasPrefix(line, "\t") {
			continued = 0
		}
		if keep(line) && continued < statementLines {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines[max(0, len(lines)-logLines):], "")
}

// Exec runs statements one by one on a connection of their own.
func Exec(ctx context.Context, url string, statements ...string) (err error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	for _, statement := range statements {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	return nil
}

// Unique returns the prefix and twelve random letters and digits. It needs no quotes in SQL if the prefix needs none.
func Unique(prefix string) string { return prefix + strings.ToLower(rand.Text()[:12]) }
