package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// watchPause is the pause between two looks at a file: what a measured latency is too long by, at most.
const watchPause = 200 * time.Microsecond

// place is a target of driver file, seen from outside.
type place struct{ name, dir string }

// files counts the objects that it has.
func (p place) files() (int, error) {
	n := 0
	for _, resource := range []string{"topology", "network_policy"} {
		names, err := readNames(filepath.Join(p.dir, resource))
		if err != nil {
			return 0, err
		}
		for _, name := range names {
			if strings.HasSuffix(name, ".json") {
				n++
			}
		}
	}
	return n, nil
}

func readNames(dir string) ([]string, error) {
	f, err := os.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}

// topology is the file of a topology. Numbers are their own encoding.
func (p place) topology(id int64) string {
	return filepath.Join(p.dir, "topology", strconv.FormatInt(id, 10)+".json")
}

// awaitFiles waits until it has exactly so many files.
func (p place) awaitFiles(ctx context.Context, n int) (time.Duration, error) {
	return until(ctx, fmt.Sprintf("%s files in %s", count(n), p.name), 5*time.Millisecond, func() (bool, string, error) {
		have, err := p.files()
		return have == n, "there are " + count(have), err
	})
}

// watched is a file that is to get a new content.
type watched struct {
	path   string
	field  string // of the JSON object
	value  any    // as encoding/json decodes it
	before []byte
}

// watch remembers what a file has now.
func watch(path, field string, value any) (watched, error) {
	before, err := os.ReadFile(path)
	if err != nil {
		return watched{}, fmt.Errorf("%s is not there before the change: %w", path, err)
	}
	return watched{path, field, value, before}, nil
}

// arrived reports whether the file has the new content.
func (w watched) arrived() (bool, error) {
	content, err := os.ReadFile(w.path)
	if err != nil {
		return false, err
	}
	if bytes.Equal(content, w.before) {
		return false, nil
	}
	var fields map[string]any
	if err := json.Unmarshal(content, &fields); err != nil {
		return false, fmt.Errorf("%s was seen half written: %w", w.path, err)
	}
	return fields[w.field] == w.value, nil
}

// await looks at the files until all have their new contents.
func await(ctx context.Context, files []watched) (time.Duration, error) {
	left := files
	return until(ctx, "a file to follow its row", watchPause, func() (bool, string, error) {
		for len(left) > 0 {
			arrived, err := left[0].arrived()
			if err != nil || !arrived {
				return false, left[0].path, err
			}
			left = left[1:]
		}
		return true, "", nil
	})
}
