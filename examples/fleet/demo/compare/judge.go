package compare

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Difference is one object that a target does not have as the rows want it.
type Difference struct {
	Target  string
	Path    string // below the target's directory, such as topology/101.json
	Problem string
}

func (d Difference) String() string { return d.Target + "/" + d.Path + ": " + d.Problem }

// Found is what a directory holds.
type Found struct {
	// Files counts all but the leftovers.
	Files int
	// Leftovers are the temporary files of a process that was killed. The file driver removes them in the first sync
	// after they are a minute old.
	Leftovers   int
	Differences []Difference
}

// Directory compares every file below dir with what the target is to have. The error says that dir could not be read.
func (w Wanted) Directory(target, dir string) (Found, error) {
	var found Found
	missing := maps.Clone(w[target])
	differs := func(path, problem string) {
		found.Differences = append(found.Differences, Difference{target, path, problem})
	}
	err := filepath.WalkDir(dir, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			return nil
		}
		if leftover(entry) {
			found.Leftovers++
			return nil
		}
		if file == filepath.Join(dir, ".reconciler-owner") { // whose directory it is
			return nil
		}
		found.Files++
		path, err := filepath.Rel(dir, file)
		if err != nil {
			return err
		}
		path = filepath.ToSlash(path)
		delete(missing, path)
		problem, err := w.judgeFile(target, path, file, entry)
		if problem != "" {
			differs(path, problem)
		}
		return err
	})
	if err != nil {
		return found, fmt.Errorf("read the files of %s: %w", target, err)
	}
	for _, path := range slices.Sorted(maps.Keys(missing)) {
		differs(path, "it is missing")
	}
	return found, nil
}

func (w Wanted) judgeFile(target, path, file string, entry fs.DirEntry) (string, error) {
	if !entry.Type().IsRegular() {
		return fmt.Sprintf("it is no file, but %s", entry.Type()), nil
	}
	content, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return "it vanished while it was read", nil
	}
	if err != nil {
		return "", err
	}
	return w.judge(target, path, content), nil
}

// Objects is Directory for a target whose objects are in memory, by path.
func (w Wanted) Objects(target string, objects map[string][]byte) []Difference {
	var differences []Difference
	for _, path := range slices.Sorted(maps.Keys(objects)) {
		if problem := w.judge(target, path, objects[path]); problem != "" {
			differences = append(differences, Difference{target, path, problem})
		}
	}
	for _, path := range slices.Sorted(maps.Keys(w[target])) {
		if _, ok := objects[path]; !ok {
			differences = append(differences, Difference{target, path, "it is missing"})
		}
	}
	return differences
}

// judge says what is wrong with an object that a target has; "" for nothing.
func (w Wanted) judge(target, path string, content []byte) string {
	want, ok := w[target][path]
	if !ok {
		return "no running row wants it"
	}
	have, err := decode(content)
	if err != nil {
		return fmt.Sprintf("it is no JSON: %v", err)
	}
	return differ("", want, have)
}

func leftover(entry fs.DirEntry) bool {
	return entry.Type().IsRegular() && strings.HasPrefix(entry.Name(), ".reconciler-") && strings.HasSuffix(entry.Name(), ".tmp")
}
