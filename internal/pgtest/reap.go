package pgtest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/pgreconciler/reconciler/internal/pgserver"
)

const (
	reaperEnv = "RECONCILER_PGTEST_REAP"   // directory that this process shall reap
	lingerEnv = "RECONCILER_PGTEST_LINGER" // for how long after its last user, as a Go duration
	// Test binaries of one run follow each other with gaps, while the next one is linked.
	lingerShared = 5 * time.Second
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
	lock, err := pgserver.OpenLock(dir, reaperLock, syscall.LOCK_EX|syscall.LOCK_NB)
	if pgserver.IsBusy(err) {
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

// reaperMain waits until no process uses the server of dir, ends it and removes the directory.
func reaperMain(dir string, linger time.Duration) int {
	lock, err := pgserver.OpenLock(dir, reaperLock, syscall.LOCK_EX|syscall.LOCK_NB)
	if err != nil {
		return 0 // There is one already, or nothing to reap.
	}
	defer lock.Close()
	users, err := os.OpenFile(filepath.Join(dir, pgserver.UsersLock), os.O_RDWR, 0)
	if err != nil {
		return 0
	}
	defer users.Close() // Not before: a file without references is closed with the next garbage, and the lock is gone.
	for {
		if err := pgserver.Flock(users, syscall.LOCK_EX); err != nil {
			return 1
		}
		if unused, err := lingered(users, linger); err != nil {
			return 1
		} else if unused {
			break
		}
	}
	if err := pgserver.Remove(context.Background(), users, dir); err != nil {
		return 1 // The directory stays for the next sweep.
	}
	return 0
}

// lingered gives the lock up for a while and reports whether it could be had again.
func lingered(users *os.File, linger time.Duration) (bool, error) {
	if err := pgserver.Flock(users, syscall.LOCK_UN); err != nil {
		return false, err
	}
	<-time.After(linger)
	err := pgserver.Flock(users, syscall.LOCK_EX|syscall.LOCK_NB)
	if pgserver.IsBusy(err) {
		return false, nil
	}
	return err == nil, err
}
