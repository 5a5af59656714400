package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/pgreconciler/reconciler/internal/devdb"
)

const (
	reaperEnv   = "RECONCILER_PGTEST_REAP"   // directory that this process shall reap
	lingerEnv   = "RECONCILER_PGTEST_LINGER" // for how long after its last user, as a Go duration
	reapTimeout = time.Minute
	// Test binaries of one run follow each other with gaps, while the next one is linked.
	lingerShared = 5 * time.Second
	// A directory without a lock file is one that is being made or removed; after this, by a process that died over it.
	strayAge = 10 * time.Minute
)

// The reaper is the test binary itself: that way it needs nothing installed and shares the code that
// starts servers. It must not get as far as running tests, hence here.
//
//nolint:gochecknoinits // see above
func init() {
	if dir := os.Getenv(reaperEnv); dir != "" {
		linger, _ := time.ParseDuration(os.Getenv(lingerEnv)) // Ours; zero is harmless.
		os.Exit(reaperMain(dir, linger))
	}
}

// ensureReaper starts a reaper for dir unless there is one. The caller holds the start lock.
func ensureReaper(dir string, linger time.Duration) error {
	lock, err := openLock(dir, reaperLock, syscall.LOCK_EX|syscall.LOCK_NB)
	if isBusy(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := lock.Close(); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(context.Background(), self) // It outlives us.
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), reaperEnv+"="+dir, lingerEnv+"="+linger.String())
	// A session of its own: neither Ctrl-C nor `go test` ending its children reaches it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the reaper of the test server: %w", err)
	}
	return cmd.Process.Release()
}

// reaperMain waits until nobody uses the server of dir, ends it and removes the directory.
func reaperMain(dir string, linger time.Duration) int {
	lock, err := openLock(dir, reaperLock, syscall.LOCK_EX|syscall.LOCK_NB)
	if err != nil {
		return 0 // There is one already, or nothing to reap.
	}
	defer lock.Close()
	users, err := os.OpenFile(filepath.Join(dir, usersLock), os.O_RDWR, 0)
	if err != nil {
		return 0
	}
	defer users.Close() // Not before: a file that nobody mentions any more is closed with the next garbage, and the lock is gone.
	for {
		if err := devdb.Flock(users, syscall.LOCK_EX); err != nil {
			return 1
		}
		if unused, err := lingered(users, linger); err != nil {
			return 1
		} else if unused {
			break
		}
	}
	if err := reap(context.Background(), users, dir); err != nil {
		return 1 // The directory stays for the next sweep.
	}
	return 0
}

// lingered gives the lock up for a while and says whether it could be had again.
func lingered(users *os.File, linger time.Duration) (bool, error) {
	if err := devdb.Flock(users, syscall.LOCK_UN); err != nil {
		return false, err
	}
	<-time.After(linger)
	err := devdb.Flock(users, syscall.LOCK_EX|syscall.LOCK_NB)
	if isBusy(err) {
		return false, nil
	}
	return err == nil, err
}

// reap ends what runs in dir and removes it. The caller holds the exclusive lock on users.
func reap(ctx context.Context, users *os.File, dir string) error {
	if !devdb.IsAt(users, filepath.Join(dir, usersLock)) {
		return nil // A sweep was faster, and dir may be somebody else's by now.
	}
	ctx, cancel := context.WithTimeout(ctx, reapTimeout)
	defer cancel()
	i, err := load(dir)
	if err != nil {
		return err
	}
	if i != nil {
		i.Ending = true
		if err := i.save(); err != nil {
			return err
		}
		if err := i.engine().destroy(ctx); err != nil {
			return err
		}
	}
	removed := removedName(dir)
	if err := retire(dir, removed); err != nil {
		return err
	}
	return os.RemoveAll(removed)
}

func removedName(dir string) string { return dir + "." + uniqueName("removed") }

// retire takes the directory of a server that has ended out of the way before it is removed: in one that is being emptied the
// next process would find a lock to take, and lose what it makes. What stays of it if we die over that, the next sweep
// removes; it must name no server then, for there may be another one at the same place.
func retire(dir, removed string) error {
	if err := os.Remove(filepath.Join(dir, stateFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.Rename(dir, removed)
}

// sweep reaps every directory in base, except one, whose users and reaper have all died. It is a
// courtesy: what it cannot do now is left to the next sweep.
func sweep(ctx context.Context, base, except string) {
	entries, err := os.ReadDir(base)
	if err != nil {
		return
	}
	for _, entry := range entries {
		dir := filepath.Join(base, entry.Name())
		if dir == except || ctx.Err() != nil {
			continue
		}
		sweepOne(ctx, dir, entry)
	}
}

func sweepOne(ctx context.Context, dir string, entry os.DirEntry) {
	users, err := os.OpenFile(filepath.Join(dir, usersLock), os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		if info, err := entry.Info(); err == nil && time.Since(info.ModTime()) > strayAge {
			_ = os.RemoveAll(dir)
		}
		return
	}
	if err != nil {
		return
	}
	defer users.Close()
	if devdb.Flock(users, syscall.LOCK_EX|syscall.LOCK_NB) == nil {
		_ = reap(context.WithoutCancel(ctx), users, dir)
	}
}
