package pgserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

const (
	// UsersLock is the file in a server's directory that each process that uses the server locks, shared.
	UsersLock = "users.lock"

	removeTimeout = time.Minute
	// A directory without a lock file is one that is being made or removed; after this, by a process that died over it.
	strayAge = 10 * time.Minute
	// joinTriesMax bounds how often other processes may remove a directory while this one joins it.
	joinTriesMax = 1000
)

// Join makes a server's directory if needed and takes this process's share of it. Closing the file, or dying, ends the share.
func Join(dir string) (*os.File, error) {
	base := filepath.Dir(dir)
	for tries := 1; ; tries++ {
		users, err := join(base, dir)
		if err != nil && tries < joinTriesMax && (errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrExist)) {
			continue // Removed between two calls.
		}
		// The directory may have been removed while the lock was waited for, and base before.
		if err != nil || IsAt(users, filepath.Join(dir, UsersLock)) && checkBase(base) == nil {
			return users, err
		}
		_ = users.Close() // It was only locked.
	}
}

func join(base, dir string) (*os.File, error) {
	// The server may run as another user, who must get through to its data.
	if err := os.MkdirAll(base, 0o711); err != nil { //nolint:gosec // see above
		return nil, err
	}
	if err := checkBase(base); err != nil {
		return nil, err
	}
	if err := os.Mkdir(dir, 0o711); err != nil && !errors.Is(err, os.ErrExist) { //nolint:gosec // see above
		return nil, err
	}
	return OpenLock(dir, UsersLock, syscall.LOCK_SH)
}

// checkBase checks the base directory. Its name can be guessed, so another user may have made it first.
func checkBase(base string) error {
	info, err := os.Lstat(base)
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || !ok || int(stat.Uid) != os.Geteuid() || info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s is not a directory that only this user can write to: remove it, or set TMPDIR", base)
	}
	return nil
}

// OpenLock opens and locks a file of a server's directory, and waits unless how has LOCK_NB.
func OpenLock(dir, name string, how int) (*os.File, error) {
	file, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := Flock(file, how); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// Flock locks an open file, or unlocks it, and tries again when a signal interrupts it.
func Flock(file *os.File, how int) error {
	for {
		err := syscall.Flock(int(file.Fd()), how)
		if err == nil {
			return nil
		}
		if !errors.Is(err, syscall.EINTR) {
			return fmt.Errorf("lock %s: %w", file.Name(), err)
		}
	}
}

// IsBusy reports whether another process holds the lock that LOCK_NB did not wait for.
func IsBusy(err error) bool { return errors.Is(err, syscall.EWOULDBLOCK) }

// IsAt reports whether an open file is still the one with this path.
func IsAt(file *os.File, path string) bool {
	opened, openedErr := file.Stat()
	there, thereErr := os.Stat(path)
	return openedErr == nil && thereErr == nil && os.SameFile(opened, there)
}

// Remove ends what runs in dir and removes it, unless the server is kept, and removes the base directory with the last one
// in it. The caller holds the lock on users, and no other process uses the server.
func Remove(ctx context.Context, users *os.File, dir string) error {
	lock := filepath.Join(dir, UsersLock)
	if !IsAt(users, lock) {
		return nil // Another process was faster, and dir may be a newer server's.
	}
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	s, err := Load(dir)
	if err != nil {
		return err
	}
	if s != nil && s.Keep {
		if err := s.Engine().Stop(ctx, Immediate); err != nil {
			return fmt.Errorf("stop the server in %s: %w", dir, err)
		}
		return os.Remove(lock) // Sweeps leave it alone now: you may start the server again.
	}
	if s != nil {
		s.Ending = true
		if err := s.Save(); err != nil {
			return err
		}
		if err := s.Engine().Destroy(ctx); err != nil {
			return fmt.Errorf("end the server in %s: %w", dir, err)
		}
	}
	removed := Unique(dir + ".removed_")
	if err := retire(dir, removed); err != nil {
		return err
	}
	err = os.RemoveAll(removed)
	_ = os.Remove(filepath.Dir(dir)) // It may hold others.
	return err
}

// retire takes the directory of a server that has ended out of the way before it is removed: in one that is being emptied the
// next process would find a lock to take, and lose what it makes. What stays of it if we die over that, the next sweep
// removes; it must name no server then, for there may be another one at the same place.
func retire(dir, removed string) error {
	if err := os.Remove(filepath.Join(dir, stateFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.Rename(dir, removed)
}

// Sweep removes every directory in base, except one, whose users have all died. Its failures are left to the next sweep.
func Sweep(ctx context.Context, base, except string) {
	entries, err := os.ReadDir(base)
	if err != nil {
		return
	}
	for _, entry := range entries {
		if dir := filepath.Join(base, entry.Name()); dir != except && ctx.Err() == nil {
			sweepOne(ctx, dir, entry)
		}
	}
}

func sweepOne(ctx context.Context, dir string, entry os.DirEntry) {
	users, err := os.OpenFile(filepath.Join(dir, UsersLock), os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		_, err := os.Stat(filepath.Join(dir, stateFile))
		kept := !errors.Is(err, os.ErrNotExist)
		if info, err := entry.Info(); err == nil && !kept && time.Since(info.ModTime()) > strayAge {
			_ = os.RemoveAll(dir)
		}
		return
	}
	if err != nil {
		return
	}
	defer users.Close()
	if Flock(users, syscall.LOCK_EX|syscall.LOCK_NB) == nil {
		_ = Remove(context.WithoutCancel(ctx), users, dir)
	}
}
