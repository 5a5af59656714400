package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// testTimeout bounds the tests of one mutant. A mutant that makes them hang is caught too.
const testTimeout = "-timeout=4m"

// lab is a copy of the tree in which mutants are made.
type lab struct {
	dir string
}

// newLab copies the files that git tracks or would add.
func newLab(ctx context.Context, root string) (*lab, error) {
	list := exec.CommandContext(ctx, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	list.Dir = root
	names, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("list the files of the tree: %w", err)
	}
	dir, err := os.MkdirTemp("", "reconciler-mutants-")
	if err != nil {
		return nil, err
	}
	l := &lab{dir: dir}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names), "\x00"), "\x00") {
		if err := l.copy(root, name); err != nil && !errors.Is(err, os.ErrNotExist) {
			l.close()
			return nil, fmt.Errorf("copy the tree: %w", err)
		}
	}
	return l, nil
}

func (l *lab) close() { _ = os.RemoveAll(l.dir) }

func (l *lab) copy(root, name string) error {
	info, err := os.Stat(filepath.Join(root, name))
	if err != nil || info.IsDir() {
		return err
	}
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		return err
	}
	to := filepath.Join(l.dir, name)
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	return os.WriteFile(to, text, info.Mode())
}

// baseline checks that the tests pass without a mutant.
func (l *lab) baseline(ctx context.Context, mutants []Mutant) error {
	tests := map[string][]string{}
	for _, m := range mutants {
		tests[m.Package] = append(tests[m.Package], m.Run)
	}
	for _, pkg := range slices.Sorted(maps.Keys(tests)) {
		patterns := slices.Compact(slices.Sorted(slices.Values(tests[pkg])))
		if out, err := l.test(ctx, pkg, strings.Join(patterns, "|")); err != nil {
			return fmt.Errorf("tests of %s fail without a mutant: %w\n%s", pkg, err, out)
		}
	}
	return nil
}

// try makes a mutant, returns the tests that failed, and restores the tree.
func (l *lab) try(ctx context.Context, m Mutant) (caughtBy []string, err error) {
	for _, e := range m.Edits {
		path := filepath.Join(l.dir, e.File)
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		// Deferred calls run last first, which undoes several edits of one file in order.
		defer func() { _ = os.WriteFile(path, text, 0o600) }()
		mutated, err := e.apply(string(text))
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(path, []byte(mutated), 0o600); err != nil {
			return nil, err
		}
	}
	out, err := l.test(ctx, m.Package, m.Run)
	if strings.Contains(out, "[build failed]") {
		return nil, fmt.Errorf("does not compile:\n%s", out)
	}
	if err != nil {
		caughtBy = failures(out)
	}
	return caughtBy, ctx.Err()
}

func (l *lab) test(ctx context.Context, pkg, pattern string) (string, error) {
	return l.golang(ctx, "test", "-tags=pace", "-vet=off", "-count=1", "-parallel=4", testTimeout, "-run="+pattern, pkg)
}

// golang runs the command go in the copy.
func (l *lab) golang(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = l.dir
	out, err := cmd.CombinedOutput()
	return string(out), err
}

var failure = regexp.MustCompile(`(?m)^--- FAIL: (\S+)`)

// failures returns the names of the top-level tests that failed.
func failures(out string) []string {
	var names []string
	for _, m := range failure.FindAllStringSubmatch(out, -1) {
		names = append(names, m[1])
	}
	if len(names) == 0 {
		return []string{"the end of the test process"} // a panic, or the timeout
	}
	slices.Sort(names)
	return slices.Compact(names)
}
