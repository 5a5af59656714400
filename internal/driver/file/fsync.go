package file

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"syscall"
)

// syncFile puts the file's content on disk.
func (d *directory) syncFile(f *os.File) error {
	if !d.fsync {
		return nil
	}
	d.tell("file")
	return f.Sync()
}

// syncDir puts what happened to the names in a directory on disk. A directory that is gone needs no sync.
func (d *directory) syncDir(root *os.Root, dir string) error {
	if !d.fsync {
		return nil
	}
	return d.syncs.do(dir, func() error {
		f, err := root.OpenFile(dir, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0)
		if absent(err) {
			return nil
		}
		d.tell(dir)
		return syncAndClose(f, err)
	})
}

// syncParent puts the directory's own name on disk.
func (d *directory) syncParent() error {
	if !d.fsync {
		return nil
	}
	d.tell("..")
	return syncAndClose(os.OpenFile(filepath.Dir(d.path), os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0))
}

// tell tells a test what is synced: "file", "..", or a directory below the target's.
func (d *directory) tell(what string) {
	if d.synced != nil {
		d.synced(what)
	}
}

func syncAndClose(f *os.File, err error) error {
	if err != nil {
		return err
	}
	err = f.Sync()
	// Some file systems cannot sync a directory and say so; there is nothing else to do on them.
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOTSUP) {
		err = nil
	}
	return errors.Join(err, f.Close())
}

// dirSyncs lets concurrent calls share the syncs of a directory: a sync covers every rename before it, and
// costs the disk's latency for one as for a hundred. The zero value is ready.
type dirSyncs struct {
	mu   sync.Mutex
	dirs map[string]*dirSync // guarded by mu; only directories that are synced now
}

type dirSync struct {
	running *syncRound // begun: may have missed what comes now
	next    *syncRound // not begun: covers it
}

type syncRound struct {
	done chan struct{}
	err  error // set before done is closed
}

// do runs sync for the directory, or waits for a run that begins after do was called.
func (s *dirSyncs) do(dir string, sync func() error) error {
	s.mu.Lock()
	if s.dirs == nil {
		s.dirs = map[string]*dirSync{}
	}
	state := s.dirs[dir]
	if state == nil {
		state = &dirSync{}
		s.dirs[dir] = state
	}
	if round := state.next; round != nil {
		s.mu.Unlock()
		<-round.done
		return round.err
	}
	round := &syncRound{done: make(chan struct{})}
	state.next = round
	if before := state.running; before != nil {
		s.mu.Unlock()
		<-before.done
		s.mu.Lock()
	}
	state.next, state.running = nil, round
	s.mu.Unlock()

	round.err = sync()

	s.mu.Lock()
	if state.running = nil; state.next == nil {
		delete(s.dirs, dir)
	}
	s.mu.Unlock()
	close(round.done)
	return round.err
}
