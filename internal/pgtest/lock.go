package pgtest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// The lock files of a server's directory.
const (
	usersLock  = "users.lock"  // shared by every process that uses the server
	startLock  = "start.lock"  // exclusive while a process looks for the server and starts it
	reaperLock = "reaper.lock" // exclusive for as long as the directory has a reaper
)

// join makes a server's directory if needed and takes this process's share of it. Closing the file, or dying, ends the share.
func join(dir string) (*os.File, error) {
	for {
		// The server may run as another user, who must get through to its data.
		if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // the server's user must get through
			return nil, err
		}
		file, err := openLock(dir, usersLock, syscall.LOCK_SH)
		if errors.Is(err, os.ErrNotExist) {
			continue // Removed between the two calls.
		}
		if err != nil {
			return nil, err
		}
		if isAt(file, filepath.Join(dir, usersLock)) {
			return file, nil
		}
		_ = file.Close() // The directory was reaped while we waited for the lock; make a new one.
	}
}

// openLock opens and locks a file of a server's directory, and waits unless how has LOCK_NB.
func openLock(dir, name string, how int) (*os.File, error) {
	file, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := flock(file, how); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

func flock(file *os.File, how int) error {
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

func isBusy(err error) bool { return errors.Is(err, syscall.EWOULDBLOCK) }

// isAt says whether an open file is still the one at path.
func isAt(file *os.File, path string) bool {
	open, err := file.Stat()
	if err != nil {
		return false
	}
	current, err := os.Stat(path)
	return err == nil && os.SameFile(open, current)
}
