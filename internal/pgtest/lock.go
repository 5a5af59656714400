package pgtest

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"

	"github.com/pgreconciler/reconciler/internal/devdb"
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
		if devdb.IsAt(file, filepath.Join(dir, usersLock)) {
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
	if err := devdb.Flock(file, how); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

func isBusy(err error) bool { return errors.Is(err, syscall.EWOULDBLOCK) }
