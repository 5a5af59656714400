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

	"github.com/pgreconciler/reconciler/internal/pgserver"
)

// fresh is the data directory that servers of this machine's binaries are copied from. Like a server, it is shared by all test
// processes of this user and removed when the last one is gone.
var fresh freshData

type freshData struct {
	mu    sync.Mutex
	users *os.File // this process's share
}

// data returns the directory, made if it is missing. It is the same for all servers of a process.
func (f *freshData) data(ctx context.Context, bin string, version int) (_ string, err error) {
	args := collation(version)
	sum := sha256.Sum256([]byte(strings.Join(append([]string{bin}, args...), "\n")))
	dir := filepath.Join(baseDir(), fmt.Sprintf("fresh%d-%x", version, sum[:4]))
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.users == nil {
		if f.users, err = pgserver.Join(dir); err != nil {
			return "", err
		}
	}
	making, err := pgserver.OpenLock(dir, startLock, syscall.LOCK_EX)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, making.Close()) }()
	if err := ensureReaper(dir, lingerShared); err != nil {
		return "", err
	}
	done := filepath.Join(dir, "done")
	made := pgserver.NewLocal(dir, bin)
	if _, err := os.Stat(done); err == nil {
		return made.Data, nil
	}
	if err := os.RemoveAll(made.Data); err != nil { // the process that began it was killed
		return "", err
	}
	if err := made.Initdb(ctx, "", args...); err != nil {
		return "", err
	}
	if err := makeExit(ctx, made); err != nil {
		return "", err
	}
	return made.Data, os.WriteFile(done, nil, 0o600)
}

func (f *freshData) leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.users != nil {
		_ = f.users.Close()
	}
	f.users = nil
}
