package config

import (
	"os"
	"path/filepath"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// places are those of the targets so far that name one.
type places []place

type place struct {
	driver.Place

	driver, target string
	path           string // for a directory: without symbolic links, as far as it is there
}

// add reports a problem when a target has another one's place, or a directory inside of it, or around it.
func (ps *places) add(c *Config, p *problems, i int, drv driver.Driver) {
	named, ok := driver.PlaceOf(drv)
	if !ok {
		return
	}
	mine := place{Place: named, driver: c.Targets[i].Driver, target: c.Targets[i].Name}
	if mine.Dir {
		mine.path = resolve(mine.Name)
	}
	path := targetPath(i, "options."+mine.Option)
	for _, other := range *ps {
		if text, args := mine.overlaps(other); text != "" {
			p.add(c.nearestOrigin(path), path, text, args...)
			return
		}
	}
	*ps = append(*ps, mine)
}

// overlaps returns the problem with two places, "" for none.
func (mine place) overlaps(other place) (text string, args []any) {
	if !mine.Dir || !other.Dir {
		if mine.driver != other.driver || mine.Name != other.Name || mine.Detail != other.Detail {
			return "", nil
		}
		return "%s is the place of target %q too: a row that moves between them could be deleted where it arrives. %s", []any{mine.Name, other.target, mine.Apart}
	}
	inside, around := within(mine.path, other.path), within(other.path, mine.path)
	switch {
	case inside && around:
		return "%s is the directory of target %q too: they would delete each other's files; give each its own", []any{mine.path, other.target}
	case inside:
		return "%s lies in %s, the directory of target %q: give each its own, beside the other", []any{mine.path, other.path, other.target}
	case around:
		return "%s has %s in it, the directory of target %q: give each its own, beside the other", []any{mine.path, other.path, other.target}
	}
	return "", nil
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
