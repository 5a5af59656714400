package file

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/pgreconciler/reconciler/internal/driver"
)

const (
	// ownerName is a file beside the resources' directories that says whose directory it is: two targets with one directory
	// would take each other's files for orphans.
	ownerName     = ".reconciler-owner"
	ownerBytesMax = 4 << 10
)

// foreignError is a directory that is another target's.
type foreignError struct {
	dir  string
	file string // with the mark
	err  error  // of driver.Owner.Check
}

func (e *foreignError) Error() string {
	return fmt.Sprintf("the directory %s %s, as %s says: give each target a directory of its own, or stop the other owner and remove that "+
		"file to hand the directory over", e.dir, e.err, e.file)
}

// claim is whose directory it is to be, and what is known of its file.
type claim struct {
	target string

	mu      sync.Mutex    // guards what follows
	home    *driver.Owner // nil: nobody owns the target here, and nothing is verified
	checked fs.FileInfo   // of the file when it was found to be ours
}

func (c *claim) begin(home driver.Home) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.home, c.checked = &driver.Owner{Target: c.target, Home: home}, nil
}

// verify returns a *foreignError when the directory is another target's.
func (d *directory) verify(root *os.Root) error {
	_, err := d.look(root)
	return err
}

// mark is verify, and makes the file if there is none.
func (d *directory) mark(root *os.Root) error {
	for {
		found, err := d.look(root)
		if found || err != nil {
			return err
		}
		if err := d.leaveMark(root); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
}

// look reports whether the directory has a file that says that it is this target's, or nobody asks.
func (d *directory) look(root *os.Root) (found bool, err error) {
	c := &d.claim
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.home == nil {
		return true, nil
	}
	info, err := root.Lstat(ownerName)
	if errors.Is(err, fs.ErrNotExist) {
		c.checked = nil
		return false, d.above()
	}
	if err != nil {
		return false, err
	}
	if c.checked != nil && os.SameFile(info, c.checked) && info.ModTime().Equal(c.checked.ModTime()) && info.Size() == c.checked.Size() {
		return true, nil
	}
	mark, err := readOwner(func(name string, flag int) (*os.File, error) { return root.OpenFile(name, flag, 0) }, ownerName)
	if err != nil {
		err = fmt.Errorf("may be another target's: %w", reason(err))
	} else {
		err = c.home.Check(mark)
	}
	if err != nil {
		return false, &foreignError{d.path, filepath.Join(d.path, ownerName), err}
	}
	if err := d.above(); err != nil {
		return false, err
	}
	c.checked = info
	return true, nil
}

// above returns a *foreignError when the directory lies in another target's. The caller holds the claim's mutex.
func (d *directory) above() error {
	path, err := filepath.EvalSymlinks(d.path)
	if err != nil {
		return err
	}
	for parent := filepath.Dir(path); parent != path; path, parent = parent, filepath.Dir(parent) {
		file := filepath.Join(parent, ownerName)
		mark, err := readOwner(func(name string, flag int) (*os.File, error) { return os.OpenFile(name, flag, 0) }, file)
		if err != nil {
			continue // there is none
		}
		if err := d.claim.home.Check(mark); err != nil {
			return &foreignError{d.path, file, fmt.Errorf("lies in one that %w", err)}
		}
	}
	return nil
}

func readOwner(open func(name string, flag int) (*os.File, error), name string) (mark []byte, err error) {
	f, err := open(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, ownerBytesMax))
}

// leaveMark writes the file, whole or not at all.
func (d *directory) leaveMark(root *os.Root) error {
	d.claim.mu.Lock()
	text := d.claim.home.Mark()
	d.claim.mu.Unlock()
	temp := tempPrefix + rand.Text() + tempSuffix
	f, err := root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = root.Remove(temp) }()
	_, err = f.WriteString(text + "\n")
	if err == nil {
		err = f.Chmod(0o644) // for people, who want to know
	}
	if err == nil {
		err = d.syncFile(f)
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	err = root.Link(temp, ownerName)
	if err != nil && !errors.Is(err, fs.ErrExist) { // a file system without hard links
		err = root.Rename(temp, ownerName)
	}
	return err
}
