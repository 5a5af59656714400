package pgtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	startTimeout = 2 * time.Minute // a first start on a busy machine, initdb included
	stopTimeout  = 30 * time.Second

	// What a failed test shows of the server's log: the last lines, and the first of each long statement.
	logLines       = 60
	statementLines = 8
)

// stopMode is how pg_ctl calls it.
type stopMode string

const (
	fast      stopMode = "fast"
	immediate stopMode = "immediate" // as after a crash: the next start recovers
)

// engine is where a server runs: a container, or a process of this machine.
type engine interface {
	// create makes a server that start can start; it listens on port of 127.0.0.1.
	create(ctx context.Context, version, port int) error
	// follow makes a standby of the server on port primary, likewise.
	follow(ctx context.Context, primary, port int) error
	start(ctx context.Context) error
	stop(ctx context.Context, mode stopMode) error
	// alive returns an error if the started server has ended.
	alive(ctx context.Context) error
	// destroy ends the server in whatever state it is. What is already gone is not an error.
	destroy(ctx context.Context) error
	readLog(ctx context.Context) (string, error)
	// script runs a shell script in the data directory of the stopped server.
	script(ctx context.Context, text string) error
}

// instance is one server. Its exported fields are written to a file in its directory, so that other
// processes can use it and the reaper can end it.
type instance struct {
	Dir     string `json:"dir"`
	Port    int    `json:"port"`
	Version int    `json:"version"` // major version
	// Its end has been asked for. The engine may still be at it after who asked has given up: a server that answers can
	// vanish at any moment then.
	Ending bool `json:"ending,omitempty"`

	Local     *local     `json:"local,omitempty"`
	Container *container `json:"container,omitempty"`

	templates sync.Map // names of those that are there
	shared    bool     // other tests use it too
}

func (i *instance) engine() engine {
	if i.Container != nil {
		return i.Container
	}
	return i.Local
}

// settings are the same for every engine. Durability is off; everything that changes behaviour is as in production.
func settings() []string {
	return []string{
		"fsync=off",
		"full_page_writes=off",
		"max_connections=1000",
		"max_prepared_transactions=100",
		"wal_level=logical",
		"shared_buffers=256MB",
		"max_wal_size=4GB",
		"checkpoint_timeout=1h",
		"timezone=UTC",
		"log_timezone=UTC",
		"log_line_prefix=%m [%p] %d ",
		"log_checkpoints=off",
		"jit=off", // compiles for longer than the statements of the tests run
	}
}

const stateFile = "server.json"

func (i *instance) save() error {
	text, err := json.Marshal(i)
	if err != nil {
		return err
	}
	// Renamed into place: a reader sees all of it or nothing.
	draft := filepath.Join(i.Dir, stateFile+".draft")
	if err := os.WriteFile(draft, text, 0o600); err != nil {
		return err
	}
	return os.Rename(draft, filepath.Join(i.Dir, stateFile))
}

// load returns nil if no server was ever begun in dir.
func load(dir string) (*instance, error) {
	text, err := os.ReadFile(filepath.Join(dir, stateFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	i := new(instance)
	if err := json.Unmarshal(text, i); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, stateFile), err)
	}
	if i.Local == nil && i.Container == nil {
		return nil, fmt.Errorf("%s names no server", filepath.Join(dir, stateFile))
	}
	return i, nil
}

// log returns the end of the server's log, or why there is none.
func (i *instance) log(t testing.TB) string {
	t.Helper()
	ctx, cancel := cleanupContext(t)
	defer cancel()
	return i.lastLines(ctx, func(string) bool { return true })
}

// logOf returns the end of what the server logged about one database.
func (i *instance) logOf(ctx context.Context, database string) string {
	mentions := false
	return i.lastLines(ctx, func(line string) bool {
		if !strings.HasPrefix(line, "\t") { // Continuation lines belong to the line before.
			mentions = strings.Contains(line, "] "+database+" ")
		}
		return mentions
	})
}

func (i *instance) lastLines(ctx context.Context, keep func(string) bool) string {
	text, err := i.engine().readLog(ctx)
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
