package pgtest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pgreconciler/reconciler/internal/pgserver"
)

const (
	// busyTimeout is for how long a server that others use may be too busy to answer.
	busyTimeout = Patience

	// The lock files of a server's directory, besides pgserver.UsersLock.
	startLock  = "start.lock"  // exclusive while a process looks for the server and starts it
	reaperLock = "reaper.lock" // exclusive for as long as the directory has a reaper

	memoryDir = "/dev/shm"
)

// sharedServer is a server that all test processes of this user share, as far as this process has joined it.
type sharedServer struct {
	name string

	mu       sync.Mutex
	asked    bool
	users    *os.File // this process's share
	instance *instance
	err      error
}

var (
	quiet   = &sharedServer{name: "shared"}
	holding = &sharedServer{name: "holding"}
)

// join returns the server and starts it if no process has. A failure is kept, so that a machine without PostgreSQL fails at
// once for each test instead of trying again.
func (s *sharedServer) join(t testing.TB) *instance {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.asked {
		s.asked = true
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), busyTimeout+pgserver.StartTimeout)
		defer cancel()
		s.users, s.instance, s.err = obtain(ctx, sharedDir(s.name), lingerShared, startShared)
		if s.err == nil {
			s.instance.shared = true
		}
	}
	if s.err != nil {
		t.Fatalf("%v", s.err)
	}
	return s.instance
}

// printVersion prints the version of the server if this process has joined it.
func (s *sharedServer) printVersion() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.instance == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	version, err := s.instance.version(ctx)
	if err != nil {
		fmt.Fprintf(os.Stderr, "read the version of the test server: %v\n", err)
		return
	}
	fmt.Println(TestedOn + version)
}

// leave gives up the share. The reaper stops the server when no process has taken a share for a while.
func (s *sharedServer) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users != nil {
		_ = s.users.Close()
	}
	s.users, s.instance, s.err = nil, nil, errors.New("pgtest.Main has returned: the server is gone")
}

// leave gives up all shares of this process.
func leave() {
	quiet.leave()
	holding.leave()
	fresh.leave()
}

// obtain joins dir and returns the running server in it, which outlives its last user by linger.
func obtain(ctx context.Context, dir string, linger time.Duration, start starter) (*os.File, *instance, error) {
	users, err := pgserver.Join(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("share the test server: %w", err)
	}
	i, err := findOrStart(ctx, dir, linger, start)
	if err != nil {
		return nil, nil, errors.Join(err, users.Close())
	}
	return users, i, nil
}

// findOrStart is called with a share of dir, so no process removes it.
func findOrStart(ctx context.Context, dir string, linger time.Duration, start starter) (_ *instance, err error) {
	starting, err := pgserver.OpenLock(dir, startLock, syscall.LOCK_EX)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, starting.Close()) }()
	if err := ensureReaper(dir, linger); err != nil {
		return nil, err
	}
	server, err := pgserver.Load(dir)
	if err != nil {
		return nil, err
	}
	if i := (&instance{Server: server}); server != nil && !server.Ending {
		waiting, cancel := context.WithTimeout(ctx, busyTimeout)
		defer cancel()
		err := i.awaitReady(waiting)
		if err == nil {
			return i, nil
		}
		if i.Engine().Alive(ctx) == nil { // other processes use it
			return nil, fmt.Errorf("the test server in %s has not answered for %v; stop it if nothing uses it: %w", i.Dir, busyTimeout, err)
		}
	}
	if server != nil { // Crashed, or its process was killed while it started, or a reaper gave up.
		if err := server.Clear(ctx); err != nil {
			return nil, err
		}
	}
	pgserver.Sweep(ctx, baseDir(), dir)
	return start(ctx, dir)
}

// starter starts a server in a directory.
type starter func(ctx context.Context, dir string) (*instance, error)

// start starts a server by whatever means this machine has.
func start(ctx context.Context, dir string) (*instance, error) {
	source, err := chosen()
	if err != nil {
		return nil, err
	}
	return source.start(ctx, dir)
}

// startShared starts a server that is never stopped and started again.
func startShared(ctx context.Context, dir string) (*instance, error) {
	source, err := chosen()
	if err != nil {
		return nil, err
	}
	source.memory = wantMemory()
	return source.start(ctx, dir)
}

// wantMemory reports whether the data of servers shall be in memory where there is room, for servers make and remove files by
// the thousand, which is slow on ext4: it looks for an inode that was not freed in the last seconds. TMPDIR chooses another place.
func wantMemory() bool { return os.Getenv("TMPDIR") == "" && inMemory(memoryDir) }

// baseDir has the data of all servers of this user but containers.
func baseDir() string {
	dir := os.TempDir()
	if wantMemory() {
		dir = memoryDir
	}
	return filepath.Join(dir, fmt.Sprintf("reconciler-pgtest-%d", os.Geteuid()))
}

// sharedDir differs by everything that two processes must agree on to share a server.
func sharedDir(name string) string {
	sum := sha256.Sum256([]byte(strings.Join(settings(), "\n")))
	version, from := os.Getenv(envVersion), os.Getenv(envFrom)
	return filepath.Join(baseDir(), fmt.Sprintf("%s%s%s-%x", name, version, from, sum[:4]))
}
