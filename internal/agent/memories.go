package agent

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"go.etcd.io/bbolt"

	"github.com/pgreconciler/reconciler/client"
	"github.com/pgreconciler/reconciler/internal/driver"
)

const (
	// memoriesLock is how long the file of another process is waited for, which the lock on the target's store rules out.
	memoriesLock = 2 * time.Second
	// memoriesGather is how long a write waits for those of other calls, to go with them.
	memoriesGather = time.Millisecond
)

var bucketMemories = []byte("memories") // by resource, a zero byte, and key

// memories stores the memory of each object of a target, in a file beside the store of the stream's objects: package client is public
// and independent of drivers, and only targets whose drivers keep a memory need the file.
type memories struct {
	path string

	mu sync.Mutex // guards db
	db *bbolt.DB  // nil: there is no file, and nothing is remembered
}

// openMemories opens the file, if there is one.
func openMemories(path string) (*memories, error) {
	m := &memories{path: path}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	_, err := m.file()
	return m, err
}

// file opens or creates the file.
func (m *memories) file() (*bbolt.DB, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.db != nil {
		return m.db, nil
	}
	db, err := bbolt.Open(m.path, 0o600, &bbolt.Options{Timeout: memoriesLock})
	if err != nil {
		return nil, fmt.Errorf("memory %s: %w", m.path, err)
	}
	db.MaxBatchDelay = memoriesGather
	m.db = db
	return db, nil
}

func (m *memories) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.db != nil {
		_ = m.db.Close()
		m.db = nil
	}
}

func memoryKey(at client.Ref) []byte { return []byte(at.Resource + "\x00" + at.Key) }

// of returns what is remembered of an object; nil for nothing.
func (m *memories) of(at client.Ref) (memory []byte, err error) {
	m.mu.Lock()
	db := m.db
	m.mu.Unlock()
	if db == nil {
		return nil, nil
	}
	err = db.View(func(tx *bbolt.Tx) error {
		if bucket := tx.Bucket(bucketMemories); bucket != nil {
			memory = bytes.Clone(bucket.Get(memoryKey(at)))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("memory %s: %w", m.path, err)
	}
	return memory, nil
}

// settle writes down what is to be remembered from now on. It returns the outcome, which counts only then: if the file cannot be
// written, the call is a failed attempt.
func (m *memories) settle(at client.Ref, before []byte, out driver.Outcome, wanted bool) driver.Outcome {
	gone := !wanted && out.Verdict == driver.VerdictDone
	if gone && before == nil || !gone && (out.Memory == nil || before != nil && bytes.Equal(before, out.Memory)) {
		return out
	}
	db, err := m.file()
	if err != nil {
		return driver.Backoff(err)
	}
	err = db.Batch(func(tx *bbolt.Tx) error {
		bucket, err := tx.CreateBucketIfNotExists(bucketMemories)
		if err != nil {
			return err
		}
		if gone {
			return bucket.Delete(memoryKey(at))
		}
		return bucket.Put(memoryKey(at), out.Memory)
	})
	if err != nil {
		return driver.Backoff(fmt.Errorf("memory %s: %w", m.path, err))
	}
	return out
}
