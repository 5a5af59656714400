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
	"strconv"
	"strings"
	"time"
)

// testTimeout bounds the tests of one mutant; one that hangs is caught too.
const testTimeout = 4 * time.Minute

// Result is what came of a mutant.
type Result struct {
	CaughtBy []string `json:"caught_by"` // tests that failed
	Seconds  float64  `json:"seconds"`   // until they had, without the time to compile
	// What the tester of worlds made of it, where it was tried.
	WorldsTried   int     `json:"worlds_tried,omitempty"`
	WorldsSeed    int     `json:"worlds_seed,omitempty"` // of the world that failed; 0: none did
	WorldsSeconds float64 `json:"worlds_seconds,omitempty"`
}

// tests names what caught the mutant: a test as a whole when more than two of its subtests failed.
func (r Result) tests() []string {
	subtests := map[string]int{}
	for _, name := range r.CaughtBy {
		subtests[top(name)]++
	}
	var names []string
	for _, name := range r.CaughtBy {
		if subtests[top(name)] > 2 {
			name = top(name)
		}
		names = append(names, name)
	}
	return slices.Compact(names)
}

// top is a test's name without that of the subtest.
func top(name string) string {
	test, _, _ := strings.Cut(name, "/")
	return test
}

func (r Result) worlds() string {
	switch {
	case r.WorldsTried == 0:
		return ""
	case r.WorldsSeed == 0:
		return fmt.Sprintf("not in %d", r.WorldsTried)
	default:
		return fmt.Sprintf("seed %d, %.0f s", r.WorldsSeed, r.WorldsSeconds)
	}
}

// lab is a copy of the tree that mutants are made in.
type lab struct {
	dir string
}

// newLab copies what git knows or would add.
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

// copy copies one file.
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

// baseline sees that the tests pass that are to fail.
func (l *lab) baseline(ctx context.Context, mutants []Mutant) error {
	tests := map[string][]string{}
	for _, m := range mutants {
		tests[m.Package] = append(tests[m.Package], m.top())
	}
	for _, pkg := range slices.Sorted(maps.Keys(tests)) {
		patterns := slices.Compact(slices.Sorted(slices.Values(tests[pkg])))
		out, err := l.test(ctx, pkg, strings.Join(patterns, "|"))
		if err != nil {
			return fmt.Errorf("tests of %s fail without any mutant: %w\n%s", pkg, err, out)
		}
	}
	return nil
}

// try makes a mutant, runs its tests, and mends the tree again.
func (l *lab) try(ctx context.Context, m Mutant, worlds int) (Result, error) {
	for _, e := range m.Edits {
		path := filepath.Join(l.dir, e.File)
		text, err := os.ReadFile(path)
		if err != nil {
			return Result{}, err
		}
		// The last edit of a file is undone first. Not copied anew: people work in the tree meanwhile.
		defer func() { _ = os.WriteFile(path, text, 0o600) }()
		mutated, err := e.apply(string(text))
		if err != nil {
			return Result{}, err
		}
		if err := os.WriteFile(path, []byte(mutated), 0o600); err != nil {
			return Result{}, err
		}
	}
	if m.Package == faultTests { // they build the command: a mutant that does not compile is not caught
		if out, err := l.golang(ctx, "build", "./internal/..."); err != nil {
			return Result{}, fmt.Errorf("does not compile: %w\n%s", err, out)
		}
	}
	binary := filepath.Join(l.dir, "mutant.test")
	if out, err := l.golang(ctx, "test", "-c", "-vet=off", "-o", binary, m.Package); err != nil {
		return Result{}, fmt.Errorf("does not compile: %w\n%s", err, out)
	}
	var result Result
	began := time.Now()
	cmd := exec.CommandContext(ctx, binary, "-test.parallel=4", "-test.timeout="+testTimeout.String(), "-test.run="+m.Run)
	cmd.Dir = filepath.Join(l.dir, m.Package)
	out, err := cmd.CombinedOutput()
	result.Seconds = time.Since(began).Seconds()
	if err != nil {
		result.CaughtBy = failures(string(out))
	}
	if worlds > 0 {
		l.tryWorlds(ctx, &result, worlds)
	}
	return result, ctx.Err()
}

func (l *lab) test(ctx context.Context, pkg, pattern string) (string, error) {
	return l.golang(ctx, "test", "-vet=off", "-count=1", "-parallel=4", "-timeout="+testTimeout.String(), "-run="+pattern, pkg)
}

// golang runs the command go in the copy.
func (l *lab) golang(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = l.dir
	out, err := cmd.CombinedOutput()
	return string(out), err
}

var failure = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)

// failures names the tests that failed: subtests instead of the tests that they belong to.
func failures(out string) []string {
	var names []string
	for _, m := range failure.FindAllStringSubmatch(out, -1) {
		names = append(names, m[1])
	}
	slices.Sort(names)
	names = slices.Compact(names)
	leaves := slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		return slices.ContainsFunc(names, func(other string) bool { return strings.HasPrefix(other, name+"/") })
	})
	if len(leaves) == 0 {
		return []string{"the end of the test process"} // a panic, or the timeout
	}
	return leaves
}

var worldSeed = regexp.MustCompile(`(?m)--- FAIL: TestWorlds/\S*Seed(\d+)`)

// tryWorlds lives through random worlds until one fails.
func (l *lab) tryWorlds(ctx context.Context, result *Result, worlds int) {
	began := time.Now()
	result.WorldsTried = worlds
	out, err := l.golang(ctx, "test", "-vet=off", "-count=1", "-failfast", "-timeout=30m", "-run=^TestWorlds$", faultTests,
		"-faults.worlds="+strconv.Itoa(worlds), "-faults.lanes=2")
	result.WorldsSeconds = time.Since(began).Seconds()
	if m := worldSeed.FindStringSubmatch(out); err != nil && m != nil {
		result.WorldsSeed, _ = strconv.Atoi(m[1])
	}
}
