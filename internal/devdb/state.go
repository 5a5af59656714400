package devdb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

const (
	stateFile = "server.json"
	lockFile  = "lock"
	// lockTriesMax bounds how often the last of other runs may be quicker with removing than this one with locking.
	lockTriesMax = 1000
	// removeTries is how often the last run looks whether somebody who comes or goes as well is done.
	removeTries = 25
)

// state is what is written down about a server, so that a later run can end it.
type state struct {
	Keep      bool       `json:"keep,omitempty"`
	Local     *local     `json:"local,omitempty"`
	Container *container `json:"container,omitempty"`
}

func (s *state) engine() engine {
	if s.Container != nil {
		return s.Container
	}
	return s.Local
}

func (s *state) save(dir string) error {
	text, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("write down how to end the server: %w", err)
	}
	// Renamed into place: a reader sees all of it or nothing.
	draft := filepath.Join(dir, stateFile+".draft")
	if err := os.WriteFile(draft, text, 0o600); err != nil {
		return fmt.Errorf("write down how to end the server: %w", err)
	}
	if err := os.Rename(draft, filepath.Join(dir, stateFile)); err != nil {
		return fmt.Errorf("write down how to end the server: %w", err)
	}
	return nil
}

// loadState returns nil if no server was begun in dir.
func loadState(dir string) (*state, error) {
	text, err := os.ReadFile(filepath.Join(dir, stateFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	s := new(state)
	if err := json.Unmarshal(text, s); err != nil {
		return nil, fmt.Errorf("read %s: %w", filepath.Join(dir, stateFile), err)
	}
	if s.Local == nil && s.Container == nil {
		return nil, fmt.Errorf("%s names no server", filepath.Join(dir, stateFile))
	}
	return s, nil
}

// MakeBase makes the directory of all runs. Its name can be guessed, so another user may have made it first.
func MakeBase(dir string) error {
	// The server may run as another user, who must get through to its data.
	if err := os.MkdirAll(dir, 0o711); err != nil { //nolint:gosec // see above
		return fmt.Errorf("make a directory for the throwaway PostgreSQL: %w", err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("look at the directory for the throwaway PostgreSQL: %w", err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || !ok || int(stat.Uid) != os.Geteuid() || info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s is not a directory that only this user can write to: remove it, or set TMPDIR", dir)
	}
	return nil
}

// enter removes what killed runs left and makes the directory of this one. One process does so at a time: a directory
// that is not locked yet must not be taken for one whose process has died.
func enter(ctx context.Context, base string) (dir string, lock *os.File, err error) {
	alone, err := lockBase(base)
	if err != nil {
		return "", nil, err
	}
	defer alone.Close()
	sweep(ctx, base)
	return makeDir(base)
}

// lockBase makes the directory of all runs and locks it. It may have been removed, by the last run that left, while the
// lock was waited for.
func lockBase(base string) (*os.File, error) {
	for tries := 1; ; tries++ {
		err := MakeBase(base)
		var dir *os.File
		if err == nil {
			dir, err = os.Open(base)
		}
		if (errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrExist)) && tries < lockTriesMax {
			continue // removed in between
		}
		if err != nil {
			return nil, err
		}
		if err := Flock(dir, syscall.LOCK_EX); err != nil {
			return nil, errors.Join(err, dir.Close())
		}
		if IsAt(dir, base) {
			return dir, nil
		}
		_ = dir.Close() // it was only looked at
	}
}

// IsAt reports whether an open directory is still the one with this path.
func IsAt(dir *os.File, path string) bool {
	opened, openedErr := dir.Stat()
	there, thereErr := os.Stat(path)
	return openedErr == nil && thereErr == nil && os.SameFile(opened, there)
}

// removeBase removes the directory of all runs if nobody is in it, or takes long to enter.
func removeBase(base string) {
	dir, err := os.Open(base)
	if err != nil {
		return
	}
	defer dir.Close()
	for range removeTries {
		if Flock(dir, syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			if IsAt(dir, base) { // and not another one, which is not locked
				_ = os.Remove(base) // it may hold other runs
			}
			return
		}
		<-time.After(endPause)
	}
}

// Flock locks an open file, or unlocks it, and tries again when a signal interrupts it.
func Flock(file *os.File, how int) error {
	for {
		err := syscall.Flock(int(file.Fd()), how)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("lock %s: %w", file.Name(), err)
		}
		return nil
	}
}

// makeDir makes the directory of one run, locked for as long as this process lives.
func makeDir(base string) (dir string, lock *os.File, err error) {
	if dir, err = os.MkdirTemp(base, "run-"); err != nil {
		return "", nil, fmt.Errorf("make a directory for the throwaway PostgreSQL: %w", err)
	}
	lock, err = os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	if err == nil {
		err = os.Chmod(dir, 0o711) //nolint:gosec // the server's user must get through
	}
	if err != nil {
		return "", nil, errors.Join(fmt.Errorf("make a directory for the throwaway PostgreSQL: %w", err), os.RemoveAll(dir))
	}
	return dir, lock, nil
}

// sweep ends and removes what killed runs left. It is a courtesy: what it cannot do is left to the next run.
func sweep(ctx context.Context, base string) {
	entries, err := os.ReadDir(base)
	if err != nil {
		return
	}
	for _, entry := range entries {
		if ctx.Err() == nil {
			sweepOne(ctx, filepath.Join(base, entry.Name()))
		}
	}
}

func sweepOne(ctx context.Context, dir string) {
	// Without the file it is a directory that is being made this moment, or that lost it: then it is no harm.
	lock, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR, 0)
	if err != nil {
		return
	}
	defer lock.Close()
	if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		return // its process lives
	}
	st, err := loadState(dir)
	if err != nil {
		return
	}
	_ = end(ctx, dir, st, st != nil && st.Keep)
}

// detach gives a command a process group of its own, so that Ctrl-C in the terminal reaches only us.
func detach(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }
