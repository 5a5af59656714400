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

	"github.com/pgreconciler/reconciler/internal/pgserver"
)

const stopTimeout = 20 * time.Second

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
	// Durable leaves fsync, and what goes with it, as PostgreSQL has them by default: for measurements. Without it
	// the server is fast, and lost with the machine.
	Durable bool
}

// Server is a running PostgreSQL. Its directory is free for the caller's files.
type Server struct {
	Dir     string
	Port    int
	Version string // such as "15.4 (/usr/lib/postgresql/15/bin)"

	password string
	users    *os.File // this process's share of the directory
	server   *pgserver.Server
	ended    <-chan struct{}
}

// Start removes what killed runs left, and starts a server. The error names what was tried and what would help.
func Start(ctx context.Context, opts Options) (*Server, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, pgserver.StartTimeout, fmt.Errorf("PostgreSQL did not start within %s", pgserver.StartTimeout))
	defer cancel()
	base := opts.Base
	if base == "" {
		base = filepath.Join(os.TempDir(), "reconciler-dev-"+strconv.Itoa(os.Geteuid()))
	}
	dir := filepath.Join(base, pgserver.Unique("run-"))
	users, err := pgserver.Join(dir)
	if err != nil {
		return nil, fmt.Errorf("make a directory for the throwaway PostgreSQL: %w", err)
	}
	pgserver.Sweep(ctx, base, dir)
	s := &Server{Dir: dir, password: rand.Text(), users: users, server: &pgserver.Server{Dir: dir}}
	if err := s.start(ctx, opts); err != nil {
		return nil, errors.Join(err, ctx.Err(), s.Stop(ctx)) // The error of a program that was interrupted does not mention it.
	}
	return s, nil
}

func (s *Server) start(ctx context.Context, opts Options) error {
	if err := s.choose(ctx, opts.Image); err != nil {
		return err
	}
	err := s.run(ctx, opts.Durable)
	if err == nil {
		err = s.server.AwaitReady(ctx, s.URL(pgserver.Superuser))
	}
	if err != nil {
		return fmt.Errorf("start PostgreSQL %s: %w", s.Version, err)
	}
	s.server.Keep = opts.Keep
	return errors.Join(s.server.Save(), s.writePassfile())
}

// run makes and starts the server.
func (s *Server) run(ctx context.Context, durable bool) (err error) {
	if s.Port, err = pgserver.FreePort(ctx); err != nil {
		return err
	}
	s.server.Port = s.Port
	// Saved first: another process can end what was begun, whatever happens to this one.
	if err := s.server.Save(); err != nil {
		return err
	}
	if c := s.server.Container; c != nil {
		err := c.Run(ctx, "reconciler.dev=true", s.Port, s.password, settings(durable)...)
		if err == nil {
			s.ended = watch(c)
		}
		return err
	}
	local := s.server.Local
	if err := local.Initdb(ctx, s.password, "--locale=C"); err != nil {
		return err
	}
	if err := local.Configure(s.Port); err != nil {
		return err
	}
	s.ended, err = spawn(local, settings(durable))
	return err
}

// settings are the same for every engine. What is thrown away need not survive a crash.
func settings(durable bool) []string {
	always := []string{"max_connections=100", "timezone=UTC", "log_timezone=UTC"}
	if durable {
		return always
	}
	return append(always, "fsync=off", "full_page_writes=off", "synchronous_commit=off")
}

// URL returns the superuser's URL of a database, with its password.
func (s *Server) URL(database string) string {
	return s.server.URL(url.UserPassword(pgserver.Superuser, s.password), database)
}

// CreateDatabase makes a database.
func (s *Server) CreateDatabase(ctx context.Context, name string) error {
	return pgserver.Exec(ctx, s.URL(pgserver.Superuser), "CREATE DATABASE "+pgx.Identifier{name}.Sanitize())
}

// Psql returns the command that opens a database. The password is in a file that only this user can read: every user can
// read arguments.
func (s *Server) Psql(database string) string {
	return fmt.Sprintf("PGPASSFILE=%s psql -h 127.0.0.1 -p %d -U %s %s", s.passfile(), s.Port, pgserver.Superuser, database)
}

func (s *Server) passfile() string { return filepath.Join(s.Dir, "pgpass") }

func (s *Server) writePassfile() error {
	line := fmt.Sprintf("127.0.0.1:%d:*:%s:%s\n", s.Port, pgserver.Superuser, s.password)
	if err := os.WriteFile(s.passfile(), []byte(line), 0o600); err != nil {
		return fmt.Errorf("write the password file: %w", err)
	}
	return nil
}

// Ended is closed when the server has ended by itself.
func (s *Server) Ended() <-chan struct{} { return s.ended }

// Restart returns the command that starts a kept server again.
func (s *Server) Restart() string {
	if c := s.server.Container; c != nil {
		return "docker start " + c.Name
	}
	command := fmt.Sprintf("%s -D %s", filepath.Join(s.server.Local.Bin, "postgres"), s.server.Local.Data)
	if os.Geteuid() == 0 {
		return "su postgres -c '" + command + "'"
	}
	return command
}

// Stop ends the server and, unless it is kept, removes its directory. It takes its time whatever ctx says, but not forever.
func (s *Server) Stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), stopTimeout, fmt.Errorf("the throwaway PostgreSQL did not stop within %s", stopTimeout))
	defer cancel()
	if s.server.Local != nil { // which may not have come as far as to write its number
		if err := s.server.Local.Destroy(ctx); err != nil {
			return fmt.Errorf("stop the throwaway PostgreSQL in %s: %w", s.Dir, err)
		}
	}
	return errors.Join(pgserver.Remove(ctx, s.users, s.Dir), s.users.Close())
}
