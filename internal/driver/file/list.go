package file

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"iter"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/pgreconciler/reconciler/internal/driver"
)

const (
	// listPageNames is how many names of a directory are in memory at once.
	listPageNames = 512
	// tempStaleAfter is when a temporary file is taken for the leftover of a killed process. Removing one that is
	// still being written does no harm: that call fails and is tried again.
	tempStaleAfter = time.Minute
)

// foreign is the hash of what cannot be the content of any spec: it differs from every ledger's.
var foreign = driver.HashSpec(nil)

// List yields the objects of the resources in the order of the file system. Files with names that no key
// encodes to are not the driver's, and left alone.
func (d *directory) List(ctx context.Context, resources []string) iter.Seq2[driver.Listed, error] {
	return driver.EachResource(resources, func(resource string) iter.Seq2[driver.Listed, error] { return d.list(ctx, resource) })
}

func (d *directory) list(ctx context.Context, resource string) iter.Seq2[driver.Listed, error] {
	return func(yield func(driver.Listed, error) bool) {
		w := walk{ctx: ctx, d: d, resource: resource, yield: yield}
		err := w.start()
		if err != nil && !errors.Is(err, errStop) {
			yield(driver.Listed{}, fmt.Errorf("list the files of %q in %s: %w", resource, d.path, reason(err)))
		}
	}
}

// errStop ends a walk whose consumer has seen enough.
var errStop = errors.New("stop")

type walk struct {
	ctx      context.Context //nolint:containedctx // lives no longer than the call
	d        *directory
	resource string
	yield    func(driver.Listed, error) bool
}

func (w walk) start() error {
	root, err := w.d.root()
	if w.d.missing(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close()
	if err := w.d.verify(root); err != nil {
		return err
	}
	return w.enter(root, driver.EncodeKey(w.resource), "")
}

// enter walks the directory called name below parent; prefix is the part of the keys' encoding that it stands for.
func (w walk) enter(parent *os.Root, name, prefix string) error {
	info, err := parent.Stat(name)
	if err == nil && !info.IsDir() {
		return nil // not even opened: a named pipe would wait
	}
	var dir *os.Root
	if err == nil {
		dir, err = parent.OpenRoot(name)
	}
	if absent(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Open(".")
	if err != nil {
		return err
	}
	defer names.Close()
	for {
		entries, err := names.ReadDir(listPageNames)
		for _, entry := range entries {
			if err := w.entry(dir, entry, prefix); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (w walk) entry(dir *os.Root, entry fs.DirEntry, prefix string) error {
	if w.ctx.Err() != nil {
		return context.Cause(w.ctx)
	}
	name := entry.Name()
	switch {
	case entry.IsDir():
		if !strings.HasSuffix(name, "%") {
			return nil
		}
		return w.enter(dir, name, prefix+name+"/")
	case strings.HasPrefix(name, tempPrefix) && strings.HasSuffix(name, tempSuffix):
		sweep(dir, name)
		return nil
	}
	encoded, ok := strings.CutSuffix(name, extension)
	if !ok {
		return nil
	}
	key, err := driver.DecodeKey(prefix + encoded)
	if err != nil {
		return nil
	}
	hashes, err := w.hashes(dir, entry)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // removed since its name was read
	}
	if err != nil {
		return err
	}
	if !w.yield(driver.Listed{Resource: w.resource, Key: key, Hashes: hashes}, nil) {
		return errStop
	}
	return nil
}

// hashes returns what a file's content may stand for. Not to be read means "cannot tell"; anything but a plain file with the mode of
// the target differs from every spec, so that a sync mends, replaces or removes it.
func (w walk) hashes(dir *os.Root, entry fs.DirEntry) ([]driver.Hash, error) {
	if !entry.Type().IsRegular() {
		return []driver.Hash{foreign}, nil
	}
	f, err := dir.OpenFile(entry.Name(), os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrPermission) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Mode().Perm() != w.d.mode && !w.d.modeless.Load() {
		return []driver.Hash{foreign}, nil
	}
	return contentHashes(f)
}

// contentHashes returns the hash of the JSON spec that has this content, if there is one, and of the string
// spec: every content is the text of some string. It reads piece by piece, however large the file is.
func contentHashes(r io.Reader) ([]driver.Hash, error) {
	asJSON, asText := sha256.New(), sha256.New()
	asText.Write([]byte{'"'})
	var escaped []byte
	var first, last byte // the last byte waits for the next piece: a JSON spec is the content without it
	size := 0
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Read(buf)
		if piece := buf[:n]; n > 0 {
			if size == 0 {
				first = piece[0]
			} else {
				asJSON.Write([]byte{last})
			}
			asJSON.Write(piece[:len(piece)-1])
			last = piece[len(piece)-1]
			size += n
			escaped = driver.AppendEscaped(escaped[:0], piece)
			asText.Write(escaped)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	asText.Write([]byte{'"'})
	hashes := []driver.Hash{sum(asText)}
	// A JSON spec is never a string (that would be written as its text) and always ends with a newline.
	if size > 1 && last == '\n' && first != '"' {
		hashes = append(hashes, sum(asJSON))
	}
	return hashes, nil
}

func sum(h hash.Hash) driver.Hash { return driver.Hash(h.Sum(nil)[:len(driver.Hash{})]) }

func sweep(dir *os.Root, name string) {
	info, err := dir.Lstat(name)
	if err == nil && info.Mode().IsRegular() && time.Since(info.ModTime()) > tempStaleAfter {
		_ = dir.Remove(name) // the next List tries again
	}
}
