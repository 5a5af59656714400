package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/pgreconciler/reconciler/internal/driver"
)

const (
	extension = ".json"
	// pathBytesMax is PATH_MAX without its NUL. Longer paths could be made step by step, but nobody could open
	// them by name.
	pathBytesMax = 4095
)

// directory is one target. It holds no descriptor between calls: a directory that was removed, or replaced by
// another one or by a mount, is found again by its path.
type directory struct {
	path   string // absolute
	create bool   // make the directory itself if only it is missing
	fsync  bool
	mode   fs.FileMode
	syncs  dirSyncs
	synced func(what string) // for tests: told of every sync; nil otherwise
	reload *reloader         // nil without a command
	claim  claim
	// modeless is set when the file system has no modes, or others than were set: then they are not compared.
	modeless atomic.Bool
}

// Start is told on whose behalf calls come from now on. It makes up for what another process left undone.
func (d *directory) Start(_ context.Context, home driver.Home) {
	d.claim.begin(home)
	root, err := d.root()
	if err != nil {
		return // the first call says so
	}
	defer root.Close()
	if d.mark(root) == nil {
		d.reload.start()
	}
}

// Place returns the directory: two targets would take each other's files for orphans.
func (d *directory) Place() driver.Place { return driver.Place{Option: "dir", Name: d.path, Dir: true} }

// Apply writes the object's file, unless it holds the same already.
func (d *directory) Apply(ctx context.Context, obj driver.Object) driver.Outcome {
	content, err := render(obj.Spec)
	if err != nil {
		return driver.Terminal(err)
	}
	name, err := d.place(obj.Ref)
	if err != nil {
		return driver.Terminal(err)
	}
	return d.outcome(ctx, "write", name, d.write(ctx, name, content))
}

// Delete removes the object's file, and directories that only existed for the length of its name.
func (d *directory) Delete(ctx context.Context, ref driver.Ref) driver.Outcome {
	name, err := d.place(ref)
	if err != nil {
		return driver.Done() // Apply refuses such a name, so there is nothing
	}
	return d.outcome(ctx, "remove", name, d.remove(ctx, name, driver.EncodeKey(ref.Resource)))
}

// Check says whether files can be written.
func (d *directory) Check(context.Context) error {
	where := d.path
	info, err := os.Stat(where)
	if d.create && errors.Is(err, fs.ErrNotExist) {
		where = filepath.Dir(where)
		info, err = os.Stat(where)
	}
	switch {
	case err != nil:
		return fmt.Errorf("the directory %s cannot be used: %w", where, reason(err))
	case !info.IsDir():
		return fmt.Errorf("%s is not a directory", where)
	}
	// Rights, or a read-only mount. Room is not asked for: deletes need none.
	if err := unix.Faccessat(unix.AT_FDCWD, where, unix.R_OK|unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
		return fmt.Errorf("the directory %s cannot be written to: %w", where, err)
	}
	root, err := d.root()
	if err != nil {
		return nil // it is yet to be made
	}
	defer root.Close()
	return d.verify(root)
}

// Trouble returns why the reload command fails at present.
func (d *directory) Trouble() error { return d.reload.failure() }

// Close waits for a reload that is still owed.
func (d *directory) Close(ctx context.Context) error { return d.reload.close(ctx) }

// render returns the file's content for a spec.
func render(spec []byte) ([]byte, error) {
	text, ok, err := driver.SpecText(spec)
	if err != nil {
		return nil, err
	}
	if ok {
		return []byte(text), nil
	}
	return append(append(make([]byte, 0, len(spec)+1), spec...), '\n'), nil
}

// place returns the path of the object's file below the directory.
func (d *directory) place(ref driver.Ref) (string, error) {
	name := path.Join(driver.EncodeKey(ref.Resource), driver.EncodeKey(ref.Key)) + extension
	if bytes := len(d.path) + len("/") + len(name); bytes > pathBytesMax {
		return "", fmt.Errorf("the path of its file would have %d bytes, and %d is the limit: "+
			"the key needs %d of them once encoded", bytes, pathBytesMax, len(driver.EncodeKey(ref.Key)))
	}
	return name, nil
}

// root opens the directory, through which no symbolic link and no name leads out. With the slash nothing but a directory is
// opened: to open a named pipe would wait for whoever writes to it.
func (d *directory) root() (*os.Root, error) { return os.OpenRoot(d.path + "/") }

// rootMade is root, with the directory made if it is missing and may be.
func (d *directory) rootMade() (*os.Root, error) {
	root, err := d.root()
	if !d.create || !errors.Is(err, fs.ErrNotExist) {
		return root, err
	}
	if err := os.Mkdir(d.path, dirMode(d.mode)); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	if err := d.syncParent(); err != nil {
		return nil, err
	}
	return d.root()
}

// missing says that the directory is not there but would be made: a target without any object.
func (d *directory) missing(err error) bool {
	return d.create && errors.Is(err, fs.ErrNotExist) && isDir(filepath.Dir(d.path))
}

// outcome classifies what came of a call. What concerns the directory as a whole opens the target's circuit. A full disk
// or quota does not: a smaller object may still fit, and deletes, which an open circuit would hold back, make room.
func (d *directory) outcome(ctx context.Context, verb, name string, err error) driver.Outcome {
	if err == nil {
		return driver.Done()
	}
	const shownBytesMax = 400
	said := fmt.Errorf("%s %s: %w", verb, driver.Snippet([]byte(filepath.Join(d.path, name)), shownBytesMax), reason(err))
	if ctx.Err() != nil {
		return driver.Backoff(said)
	}
	if _, foreign := errors.AsType[*foreignError](err); foreign {
		return driver.Unreachable(err)
	}
	for _, whole := range []error{syscall.EROFS, syscall.EIO, syscall.ESTALE, syscall.ENOTCONN, syscall.ENODEV} {
		if errors.Is(err, whole) {
			return driver.Unreachable(said)
		}
	}
	if err := d.Check(ctx); err != nil {
		return driver.Unreachable(err)
	}
	if errors.Is(err, syscall.ENAMETOOLONG) {
		return driver.Terminal(said)
	}
	return driver.Backoff(said)
}

// reason strips the name that os puts before an error: it is a temporary file's as often as not.
func reason(err error) error {
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
		return pathErr.Err
	}
	if linkErr, ok := errors.AsType[*os.LinkError](err); ok {
		return linkErr.Err
	}
	return err
}
