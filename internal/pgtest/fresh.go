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
)

// fresh is the data directory that servers of this machine's binaries are copied from. Like a server, it is shared by all test
// processes of this user and removed when the last one is gone.
var fresh freshData

type freshData struct {
	mu    sync.Mutex
	users *os.File // this process's share
	dir   string   // where users is
}

// data returns the directory, made if it is missing.
func (f *freshData) data(ctx context.Context, bin string, version int) (_ string, err error) {
	args := initdbArgs(version)
	sum := sha256.Sum256([]byte(strings.Join(append([]string{bin}, args...), "\n")))
	dir := filepath.Join(baseDir(), fmt.Sprintf("fresh%d-%x", version, sum[:4]))
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.dir != dir {
		f.release()
		if f.users, err = join(dir); err != nil {
			return "", err
		}
		f.dir = dir
	}
	making, err := openLock(dir, startLock, syscall.LOCK_EX)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, making.Close()) }()
	if err := ensureReaper(dir, lingerShared); err != nil {
		return "", err
	}
	done := filepath.Join(dir, "done")
	made := newLocal(dir, bin)
	if _, err := os.Stat(done); err == nil {
		return made.Data, nil
	}
	if err := os.RemoveAll(made.Data); err != nil { // whoever began it was killed
		return "", err
	}
	if err := made.makeData(); err != nil {
		return "", err
	}
	if err := made.run(ctx, "initdb", append(args, "-D", made.Data)...); err != nil {
		return "", err
	}
	if err := made.makeExit(ctx); err != nil {
		return "", err
	}
	return made.Data, os.WriteFile(done, nil, 0o600)
}

func (f *freshData) leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.release()
}

func (f *freshData) release() {
	if f.users != nil {
		_ = f.users.Close()
	}
	f.users, f.dir = nil, ""
}
