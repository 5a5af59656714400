package file

import (
	"crypto/rand"
	"encoding/json"
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

// owner is what the file says. All of it counts: a dump that is loaded into another database or server has the same ID, and the one
// that it was made of may still be at work. To move a target to another database, remove the file.
type owner struct {
	Target   string `json:"target"`
	Database string `json:"database"`
	System   string `json:"system"`
	ID       string `json:"id"`
}

// foreignError says that a directory is another target's.
type foreignError struct {
	dir  string
	file string // what says so
	text string // whose it is
}

func (e *foreignError) Error() string {
	return fmt.Sprintf("the directory %s %s, as %s says: give each target a directory of its own, or remove that file to hand the directory over", e.dir, e.text, e.file)
}

// claim is whose directory it is to be, and what is known of its file.
type claim struct {
	target string

	mu      sync.Mutex  // guards what follows
	home    *owner      // nil: nobody owns the target here, and nothing is verified
	checked fs.FileInfo // of the file when it was found to be ours
}

func (c *claim) begin(home driver.Home) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.home, c.checked = &owner{Target: c.target, Database: home.Database, System: home.System, ID: home.ID}, nil
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
	said, err := readOwner(func(name string, flag int) (*os.File, error) { return root.OpenFile(name, flag, 0) }, ownerName)
	if err != nil {
		return false, &foreignError{dir: d.path, file: filepath.Join(d.path, ownerName), text: "may be another target's: " + reason(err).Error()}
	}
	if said != *c.home {
		return false, &foreignError{dir: d.path, file: filepath.Join(d.path, ownerName), text: belongsTo(said)}
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
		said, err := readOwner(func(name string, flag int) (*os.File, error) { return os.OpenFile(name, flag, 0) }, file)
		if err == nil && said != *d.claim.home {
			return &foreignError{dir: d.path, file: file, text: "lies in one that " + belongsTo(said)}
		}
	}
	return nil
}

func belongsTo(o owner) string {
	return fmt.Sprintf("belongs to target %s of database %s (%s)", driver.Snippet([]byte(o.Target), 100), driver.Snippet([]byte(o.Database), 100), driver.Snippet([]byte(o.ID), 40))
}

func readOwner(open func(name string, flag int) (*os.File, error), name string) (said owner, err error) {
	f, err := open(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK)
	if err != nil {
		return owner{}, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, ownerBytesMax))
	if err == nil {
		err = json.Unmarshal(text, &said)
	}
	return said, err
}

// leaveMark writes the file, whole or not at all.
func (d *directory) leaveMark(root *os.Root) error {
	d.claim.mu.Lock()
	text, err := json.Marshal(d.claim.home)
	d.claim.mu.Unlock()
	if err != nil {
		return err
	}
	temp := tempPrefix + rand.Text() + tempSuffix
	f, err := root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = root.Remove(temp) }()
	_, err = f.Write(append(text, '\n'))
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
