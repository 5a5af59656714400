// Command journal is a target for the driver exec: it keeps an object's spec in DIR/objects/<resource>/<key>.json, and
// appends a line to DIR/journal when a call begins, and one when it ends.
//
//	journal DIR [DELAY]
//
// DELAY, such as 20ms, is the longest that a call takes. While there is a file DIR/gate, calls wait for its end.
// A call that finds another one at work on the same object says so in the journal.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// entry is a line of the journal.
type entry struct {
	Event    string    `json:"event"` // begin, end or overlap
	Action   string    `json:"action"`
	Object   string    `json:"object"`
	Hash     string    `json:"hash,omitempty"`
	Version  int64     `json:"version,omitempty"` // from the spec
	Revision int64     `json:"revision"`
	Term     int64     `json:"term"`
	Process  int       `json:"process"`
	At       time.Time `json:"at"`
}

type message struct {
	Action   string          `json:"action"`
	Resource string          `json:"resource"`
	Key      string          `json:"key"`
	Revision int64           `json:"revision"`
	Term     int64           `json:"term"`
	Hash     string          `json:"hash"`
	Spec     json.RawMessage `json:"spec"`
}

func main() {
	if err := run(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(dir string, args []string) error {
	var m message
	if err := json.NewDecoder(os.Stdin).Decode(&m); err != nil {
		return err
	}
	var spec struct {
		Version int64 `json:"version"`
	}
	if m.Spec != nil {
		if err := json.Unmarshal(m.Spec, &spec); err != nil {
			return err
		}
	}
	e := entry{
		Action: m.Action, Object: m.Resource + "/" + m.Key, Hash: m.Hash, Version: spec.Version,
		Revision: m.Revision, Term: m.Term, Process: os.Getpid(),
	}
	alone, err := lock(filepath.Join(dir, "locks", m.Resource+"-"+m.Key))
	if err != nil {
		return err
	}
	if !alone {
		if err := e.append(dir, "overlap"); err != nil {
			return err
		}
	}
	if err := e.append(dir, "begin"); err != nil {
		return err
	}
	if err := delay(dir, args); err != nil {
		return err
	}
	if err := store(dir, m); err != nil {
		return err
	}
	return e.append(dir, "end")
}

// append adds a line in one write, which other processes' writes do not cut.
func (e entry) append(dir, event string) error {
	e.Event, e.At = event, time.Now()
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, "journal"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Close())
}

// lock says whether this is the only process at work on an object. The kernel frees the lock when the process ends.
func lock(path string) (bool, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return false, err
	}
	fd, err := syscall.Open(path, syscall.O_RDWR|syscall.O_CREAT|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return false, err
	}
	err = syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}

func delay(dir string, args []string) error {
	if len(args) > 0 {
		longest, err := time.ParseDuration(args[0])
		if err != nil {
			return err
		}
		<-time.After(rand.N(longest))
	}
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for {
		if _, err := os.Stat(filepath.Join(dir, "gate")); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		<-ticker.C
	}
}

func store(dir string, m message) error {
	path := filepath.Join(dir, "objects", m.Resource, m.Key+".json")
	if m.Action == "delete" {
		if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	// What is half written when the program is killed is no object.
	temp := filepath.Join(dir, "halves", strconv.Itoa(os.Getpid()))
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.MkdirAll(filepath.Dir(temp), 0o700)); err != nil {
		return err
	}
	if err := os.WriteFile(temp, append(m.Spec, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(temp, path)
}
