package devdb

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	superuser    = "postgres"
	startTimeout = 2 * time.Minute // a first start on a busy machine, initdb or the making of a container included
	stopTimeout  = 20 * time.Second
	readyPause   = 50 * time.Millisecond

	// VersionMin is the oldest major version of PostgreSQL that will do.
	VersionMin = 14
)

// Options choose the server.
type Options struct {
	// Base is the directory that holds those of all runs. Default: reconciler-dev-<user id> in the directory for
	// temporary files.
	Base string
	// Image is a Docker image of PostgreSQL. "": local binaries, else an image that is on this machine, else the
	// official one is fetched.
	Image string
	// Keep leaves the directory (and a container, stopped) when the server is stopped.
	Keep bool
	// Durable leaves fsync, and what goes with it, as PostgreSQL has them by default: for who measures. Without it
	// the server is fast, and lost with the machine.
	Durable bool
}

// Server is a running PostgreSQL of its own. Its directory is free for the caller's files.
type Server struct {
	Dir     string
	Port    int
	Version string // such as "15.4 (/usr/lib/postgresql/15/bin)"

	password string
	keep     bool
	base     string // directory of all runs, removed with the last of them; "" for one that is the caller's
	lock     *os.File
	state    *state
	ended    <-chan struct{}
}

// engine is where a server runs. Its fields are what is needed to end it, by another process too.
type engine interface {
	// start makes the server and starts it. The channel is closed when the server has ended by itself.
	start(ctx context.Context, password string, settings []string) (port int, ended <-chan struct{}, err error)
	// stop ends the server in whatever state it is. One that is gone already is not an error.
	stop(ctx context.Context) error
	// remove removes what the engine keeps outside the directory.
	remove(ctx context.Context) error
	// log returns what the server said.
	log(ctx context.Context) string
	describe() string
	// restart says how a person starts a kept server again.
	restart(port int) string
}

// Start removes what killed runs left, and starts a server. The error says what was tried and what would help.
func Start(ctx context.Context, opts Options) (*Server, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("PostgreSQL did not start within %s", startTimeout))
	defer cancel()
	base := opts.Base
	if base == "" {
		base = filepath.Join(os.TempDir(), "reconciler-dev-"+strconv.Itoa(os.Geteuid()))
	}
	s := &Server{password: rand.Text(), keep: opts.Keep}
	if opts.Base == "" {
		s.base = base // made for this
	}
	var err error
	if s.Dir, s.lock, err = enter(ctx, base); err != nil {
		return nil, err
	}
	if err := s.start(ctx, opts); err != nil {
		s.keep = false
		return nil, errors.Join(err, s.Stop(context.WithoutCancel(ctx)))
	}
	return s, nil
}

func (s *Server) start(ctx context.Context, opts Options) (err error) {
	if s.state, err = choose(ctx, s.Dir, opts.Image); err != nil {
		return err
	}
	s.state.Keep = s.keep
	// Saved first: what was begun can be ended by others, whatever happens to this process.
	if err := s.state.save(s.Dir); err != nil {
		return err
	}
	engine := s.state.engine()
	s.Version = engine.describe()
	if s.Port, s.ended, err = engine.start(ctx, s.password, settings(opts.Durable)); err != nil {
		return fmt.Errorf("start PostgreSQL %s: %w", s.Version, err)
	}
	if err := s.awaitReady(ctx); err != nil {
		return fmt.Errorf("start PostgreSQL %s: %w\n%s", s.Version, err, engine.log(context.WithoutCancel(ctx)))
	}
	return s.writePassfile()
}

// awaitReady waits until the server takes connections.
func (s *Server) awaitReady(ctx context.Context) error {
	for {
		conn, err := pgx.Connect(ctx, s.URL(superuser))
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-s.ended:
			return errors.New("the server ended")
		case <-time.After(readyPause):
		}
	}
}

// URL returns the superuser's URL of a database, with its password.
func (s *Server) URL(database string) string {
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(superuser, s.password), Host: fmt.Sprintf("127.0.0.1:%d", s.Port),
		Path: "/" + database, RawQuery: "sslmode=disable",
	}
	return u.String()
}

// CreateDatabase makes a database.
func (s *Server) CreateDatabase(ctx context.Context, name string) error {
	conn, err := pgx.Connect(ctx, s.URL(superuser))
	if err != nil {
		return fmt.Errorf("create database %s: %w", name, err)
	}
	_, err = conn.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize())
	if err = errors.Join(err, conn.Close(ctx)); err != nil {
		return fmt.Errorf("create database %s: %w", name, err)
	}
	return nil
}

// Psql returns the command that opens a database. The password is in a file that only this user can read: an argument
// could be read by everybody.
func (s *Server) Psql(database string) string {
	return fmt.Sprintf("PGPASSFILE=%s psql -h 127.0.0.1 -p %d -U %s %s", s.passfile(), s.Port, superuser, database)
}

func (s *Server) passfile() string { return filepath.Join(s.Dir, "pgpass") }

func (s *Server) writePassfile() error {
	line := fmt.Sprintf("127.0.0.1:%d:*:%s:%s\n", s.Port, superuser, s.password)
	if err := os.WriteFile(s.passfile(), []byte(line), 0o600); err != nil {
		return fmt.Errorf("write the password file: %w", err)
	}
	return nil
}

// Ended is closed when the server has ended by itself.
func (s *Server) Ended() <-chan struct{} { return s.ended }

// Restart says how a kept server is started again.
func (s *Server) Restart() string { return s.state.engine().restart(s.Port) }

// Stop ends the server and, unless it is kept, removes its directory. It takes its time whatever ctx says, but not forever.
func (s *Server) Stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), stopTimeout, fmt.Errorf("the throwaway PostgreSQL did not stop within %s", stopTimeout))
	defer cancel()
	err := errors.Join(end(ctx, s.Dir, s.state, s.keep), s.lock.Close())
	if s.base != "" {
		removeBase(s.base)
	}
	return err
}

// end ends what runs in dir and removes it, unless it is kept.
func end(ctx context.Context, dir string, st *state, keep bool) error {
	if st != nil {
		engine := st.engine()
		if err := engine.stop(ctx); err != nil {
			return fmt.Errorf("stop the throwaway PostgreSQL in %s: %w", dir, err)
		}
		if keep {
			return leave(dir)
		}
		if err := engine.remove(ctx); err != nil {
			return fmt.Errorf("remove the throwaway PostgreSQL of %s: %w", dir, err)
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove the throwaway PostgreSQL in %s: %w", dir, err)
	}
	return nil
}

// leave makes a directory none of ours any more: a person may start the server in it again.
func leave(dir string) error {
	if err := os.Remove(filepath.Join(dir, lockFile)); err != nil {
		return fmt.Errorf("leave %s alone: %w", dir, err)
	}
	return nil
}
