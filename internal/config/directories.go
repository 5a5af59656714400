package config

import (
	"os"
	"path/filepath"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// directories are those of the targets so far that want one for themselves.
type directories []directory

type directory struct {
	target string
	path   string // without symbolic links, as far as it is there
}

// add says so when a target's directory is another one's, or lies in it, or the other way round: each would take the other's files for
// orphans.
func (d *directories) add(c *Config, p *problems, i int, drv driver.Driver) {
	exclusive, ok := drv.(driver.Exclusive)
	if !ok {
		return
	}
	mine := directory{target: c.Targets[i].Name, path: resolve(exclusive.Directory())}
	path := targetPath(i, "options.dir")
	for _, other := range *d {
		switch {
		case within(mine.path, other.path) && within(other.path, mine.path):
			p.add(c.nearestOrigin(path), path, "%s is the directory of target %q too: they would delete each other's files; give each its own", mine.path, other.target)
		case within(mine.path, other.path):
			p.add(c.nearestOrigin(path), path, "%s lies in %s, the directory of target %q: give each its own, beside the other", mine.path, other.path, other.target)
		case within(other.path, mine.path):
			p.add(c.nearestOrigin(path), path, "%s has %s in it, the directory of target %q: give each its own, beside the other", mine.path, other.path, other.target)
		default:
			continue
		}
		return
	}
	*d = append(*d, mine)
}

// resolve follows symbolic links. What is not there yet keeps its name.
func resolve(path string) string {
	if resolved, err := filepath.EvalSymlinks(path); err == nil {
		return resolved
	}
	if parent := filepath.Dir(path); parent != path {
		return filepath.Join(resolve(parent), filepath.Base(path))
	}
	return path
}

// within reports whether path is dir or lies in it: by name, or because it is the same directory by another name (a mount).
func within(path, dir string) bool {
	info, err := os.Stat(dir)
	for {
		if path == dir {
			return true
		}
		if at, atErr := os.Stat(path); err == nil && atErr == nil && os.SameFile(at, info) {
			return true
		}
		parent := filepath.Dir(path)
		if parent == path {
			return false
		}
		path = parent
	}
}
