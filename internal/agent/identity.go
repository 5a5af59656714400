package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/pgreconciler/reconciler/internal/driver"
)

const identityFile = "agent.json"

// identity is what the state directory keeps of the agent as a whole.
type identity struct {
	path   string
	killed bool // the process before has not ended in good order: its last calls may be under way

	mu sync.Mutex // guards what follows
	// Term is the fencing term of this run, which is greater than that of each run before: the time of day in microseconds, as the
	// daemon's is when a target begins anew, or one more than the last one if the clock has gone back. Receivers that keep terms
	// refuse lower ones.
	Term int64 `json:"term"`
	// Home is the installation whose stream the agent followed first; nil: none yet. Drivers mark with it what is theirs. It outlives
	// --adopt, and an agent whose state is lost finds its own mark again.
	Home *driver.Home `json:"home,omitempty"`
	// Running is true from the start to the end of a process in good order.
	Running bool `json:"running,omitempty"`
}

// openIdentity reads the file, and begins the next term.
func openIdentity(dir string, now time.Time) (*identity, error) {
	id := &identity{path: filepath.Join(dir, identityFile)}
	text, err := os.ReadFile(id.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err == nil {
		if err := json.Unmarshal(text, id); err != nil {
			return nil, fmt.Errorf("%s cannot be read: %w: remove it, and it is made anew", id.path, err)
		}
	}
	id.killed, id.Running = id.Running, true
	id.Term = max(id.Term+1, now.UnixMicro())
	return id, id.write()
}

// home returns Home, which is this installation if there was none before.
func (id *identity) home(installation string) (driver.Home, error) {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.Home != nil {
		return *id.Home, nil
	}
	home := driver.ParseHome(installation)
	home.Agent = true
	id.Home = &home
	return home, id.write()
}

// end notes that no call is under way any more.
func (id *identity) end() error {
	id.mu.Lock()
	defer id.mu.Unlock()
	id.Running = false
	return id.write()
}

// write replaces the file, whole or not at all.
func (id *identity) write() error {
	text, err := json.Marshal(id)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(id.path), "."+identityFile+"-*") // mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(append(text, '\n'))
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(f.Name(), id.path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
