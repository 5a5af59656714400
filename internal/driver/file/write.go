package file

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"

	"github.com/pgreconciler/reconciler/internal/crash"
)

const (
	// A temporary file lies beside its final one, so that it gets the same group, labels and file system. Its name
	// begins with a dot, as no encoded name does, and does not end as an object's file does.
	tempPrefix = ".reconciler-"
	tempSuffix = ".tmp"

	// tempTriesMax bounds how often a directory is made again that a Delete of another key removed meanwhile.
	tempTriesMax = 100
)

// write makes the file hold the content.
func (d *directory) write(ctx context.Context, name string, content []byte) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	root, err := d.rootMade()
	if err != nil {
		return err
	}
	defer root.Close()
	if err := d.mark(root); err != nil {
		return err
	}
	if same, err := d.holds(root, name, content); err != nil || same {
		return err
	}
	temp, err := d.writeTemp(root, path.Dir(name), content)
	if err != nil {
		return err
	}
	crash.Point(crash.FileWritten)
	// The last moment to turn back: an owner that was deposed meanwhile must not replace the file.
	if ctx.Err() != nil {
		_ = root.Remove(temp) // if this fails too, List sweeps it
		return context.Cause(ctx)
	}
	d.reload.begin()
	err = root.Rename(temp, name)
	crash.Point(crash.FileRenamed)
	d.reload.end(err == nil)
	if err != nil {
		_ = root.Remove(temp)
		return err
	}
	return d.syncDir(root, path.Dir(name))
}

// holds says whether the file has the content already, and mends its mode. What is not a plain file, or cannot
// be read, is replaced.
func (d *directory) holds(root *os.Root, name string, content []byte) (bool, error) {
	info, err := root.Lstat(name)
	if err != nil || !info.Mode().IsRegular() || info.Size() != int64(len(content)) {
		return false, nil
	}
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return false, nil
	}
	defer f.Close()
	have, err := io.ReadAll(f)
	if err != nil || !bytes.Equal(have, content) {
		return false, nil
	}
	if info.Mode().Perm() != d.mode {
		if err := f.Chmod(d.mode); err != nil {
			return false, nil
		}
		if info, err := f.Stat(); err == nil && info.Mode().Perm() != d.mode {
			d.modeless.Store(true)
		}
	}
	// A call that wrote this and then failed to reach the disk, or was killed, is made good here.
	return true, errors.Join(d.syncFile(f), d.syncDir(root, path.Dir(name)))
}

// writeTemp writes the content to a new file in the directory, which it makes if needed.
func (d *directory) writeTemp(root *os.Root, dir string, content []byte) (string, error) {
	temp := path.Join(dir, tempPrefix+rand.Text()+tempSuffix)
	f, err := root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	for range tempTriesMax {
		if !errors.Is(err, fs.ErrNotExist) {
			break
		}
		if err := d.makeDirs(root, dir); err != nil {
			return "", err
		}
		f, err = root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	}
	if err != nil {
		return "", err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Chmod(d.mode) // in spite of the umask
	}
	if err == nil {
		err = d.syncFile(f)
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		_ = root.Remove(temp)
		return "", err
	}
	return temp, nil
}

// makeDirs makes the directory and what is missing above it.
func (d *directory) makeDirs(root *os.Root, dir string) error {
	for i := 0; i <= len(dir); i++ {
		if i < len(dir) && dir[i] != '/' {
			continue
		}
		err := root.Mkdir(dir[:i], dirMode(d.mode))
		switch {
		case errors.Is(err, fs.ErrExist):
		case errors.Is(err, fs.ErrNotExist):
			return nil // removed behind us: the caller tries again
		case err != nil:
			return err
		default:
			if err := d.syncDir(root, path.Dir(dir[:i])); err != nil {
				return err
			}
		}
	}
	return nil
}

// remove removes the file, if there is one.
func (d *directory) remove(ctx context.Context, name, resourceDir string) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	root, err := d.root()
	if d.missing(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close()
	if err := d.verify(root); err != nil {
		return err
	}
	info, err := root.Lstat(name)
	if err == nil && !info.IsDir() { // a directory of that name is not the object
		d.reload.begin()
		err = root.Remove(name)
		crash.Point(crash.FileRemoved)
		d.reload.end(err == nil)
	}
	if err != nil && !absent(err) {
		return err
	}
	if err := d.syncDir(root, path.Dir(name)); err != nil {
		return err
	}
	for dir := path.Dir(name); strings.HasPrefix(dir, resourceDir+"/"); dir = path.Dir(dir) {
		if root.Remove(dir) != nil { // not empty, or gone
			break
		}
	}
	return nil
}

func absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// dirMode is the mode of directories for files of this mode: who may read a file may reach it.
func dirMode(mode fs.FileMode) fs.FileMode { return mode | (mode&0o444)>>2 }
