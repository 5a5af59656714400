package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

const (
	// violation is what an oracle prints: one of its failures is a finding, however rarely it happens.
	violation = "VIOLATION"
	dataRace  = "WARNING: DATA RACE"

	slowest      = 10
	excerptLines = 40 // of a flaky test's output are printed; the file has all
)

// event is a line of `go test -json`.
type event struct {
	Action  string  `json:"Action"`
	Package string  `json:"Package"`
	Test    string  `json:"Test"`
	Output  string  `json:"Output"`
	Elapsed float64 `json:"Elapsed"` // seconds
}

// testID names a test; test is empty for what a package prints or does outside of its tests.
type testID struct{ pkg, test string }

func (id testID) String() string {
	name := id.pkg[strings.LastIndex(id.pkg, "/")+1:]
	if id.test == "" {
		return name
	}
	return name + "." + id.test
}

// root is the top-level test that a test belongs to: reruns run it whole.
func (id testID) root() testID {
	id.test, _, _ = strings.Cut(id.test, "/")
	return id
}

// result is what happened to a test in all of its runs.
type result struct {
	id           testID
	last         string  // action that ended its last run; "run": it did not end
	failed       bool    // at least once
	seconds      float64 // of its longest run
	output       strings.Builder
	firstFailure string // what it and its subtests printed when it failed first
}

// report is what the events of all runs tell.
type report struct {
	tests    map[testID]*result // tests, subtests and, with an empty name, packages
	found    []string           // problems of single runs
	failures map[string]int     // tests that failed in the current run of a package
	servers  map[string]bool    // versions of PostgreSQL that tests used
}

func read(from io.Reader) (*report, error) {
	r := &report{tests: map[testID]*result{}, failures: map[string]int{}, servers: map[string]bool{}}
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, fmt.Errorf("read event %q: %w", lines.Text(), err)
		}
		r.add(e)
	}
	return r, lines.Err()
}

func (r *report) add(e event) {
	if e.Package == "" {
		return // output of the build
	}
	id := testID{e.Package, e.Test}
	t := r.tests[id]
	if t == nil {
		t = &result{id: id}
		r.tests[id] = t
	}
	switch e.Action {
	case "start":
		r.failures[e.Package] = 0
		t.output.Reset()
	case "run":
		t.last = e.Action
		t.output.Reset()
	case "output":
		r.write(t, e.Output)
	case "pass", "skip", "fail":
		r.end(t, e)
	}
}

// write keeps what a test prints, for itself and the test that it is a part of.
func (r *report) write(t *result, text string) {
	t.output.WriteString(text)
	if root := t.id.root(); root != t.id {
		r.tests[root].output.WriteString(text)
	}
	if version, found := strings.CutPrefix(text, pgtest.TestedOn); found {
		r.servers[strings.TrimSpace(version)] = true
	}
	if strings.Contains(text, dataRace) {
		r.found = append(r.found, fmt.Sprintf("%s has a data race", t.id))
	}
}

func (r *report) end(t *result, e event) {
	t.last = e.Action
	t.seconds = max(t.seconds, e.Elapsed)
	if e.Action == "skip" && e.Test != "" {
		r.found = append(r.found, fmt.Sprintf("%s was skipped: a test that needs something missing fails", t.id))
	}
	if e.Action != "fail" {
		return
	}
	output := t.output.String()
	if !t.failed {
		t.failed, t.firstFailure = true, output
	}
	switch {
	case e.Test == "" && r.failures[e.Package] == 0:
		r.found = append(r.found, fmt.Sprintf("package %s failed without a failed test:\n%s", e.Package, excerpt(output)))
	case e.Test != "":
		r.failures[e.Package]++
		if strings.Contains(output, violation) && t.id == t.id.root() {
			r.found = append(r.found, fmt.Sprintf("%s reports a violation, which is never retried", t.id))
		}
	}
}

// sorted returns the top-level tests for which keep returns true, by name.
func (r *report) sorted(keep func(*result) bool) []*result {
	tests := slices.DeleteFunc(slices.Collect(maps.Values(r.tests)), func(t *result) bool {
		return t.id.test == "" || t.id != t.id.root() || !keep(t)
	})
	slices.SortFunc(tests, func(a, b *result) int { return cmp.Compare(a.id.String(), b.id.String()) })
	return tests
}

// flaky returns the tests that failed and passed when they ran again.
func (r *report) flaky() []*result {
	return r.sorted(func(t *result) bool { return t.failed && t.last == "pass" })
}

// problems returns why the run fails, a line or more each.
func (r *report) problems() []string {
	problems := slices.Clone(r.found)
	for _, t := range r.sorted(func(t *result) bool { return t.last == "fail" || t.last == "run" }) {
		if t.last == "run" {
			problems = append(problems, fmt.Sprintf("%s did not end", t.id))
			continue
		}
		problems = append(problems, fmt.Sprintf("%s failed", t.id))
	}
	if len(r.sorted(func(*result) bool { return true })) == 0 {
		problems = append(problems, "no test ran")
	}
	return problems
}

// print writes the slowest tests and packages, the servers, what was flaky, and what fails the run.
func (r *report) print(to io.Writer) {
	tests := r.sorted(func(*result) bool { return true })
	packages := slices.DeleteFunc(slices.Collect(maps.Values(r.tests)), func(t *result) bool { return t.id.test != "" })
	_, _ = fmt.Fprintf(to, "\nSLOWEST TESTS %s\nSLOWEST PACKAGES %s\n", slow(tests), slow(packages))
	for _, version := range slices.Sorted(maps.Keys(r.servers)) {
		_, _ = fmt.Fprintln(to, "TESTED ON PostgreSQL", version)
	}
	if flaky := r.flaky(); len(flaky) > 0 {
		_, _ = fmt.Fprintln(to, "\nFLAKY: failed, and passed when run again alone. Fix or delete a test that is here twice.")
		for _, t := range flaky {
			_, _ = fmt.Fprintf(to, "\n--- FLAKY %s\n%s", t.id, excerpt(t.firstFailure))
		}
	} else {
		_, _ = fmt.Fprintln(to, "FLAKY none")
	}
	for _, problem := range r.problems() {
		_, _ = fmt.Fprintln(to, "PROBLEM", problem)
	}
}

func slow(results []*result) string {
	slices.SortStableFunc(results, func(a, b *result) int { return cmp.Compare(b.seconds, a.seconds) })
	var text strings.Builder
	for _, t := range results[:min(slowest, len(results))] {
		_, _ = fmt.Fprintf(&text, " %s %.0fs", t.id, t.seconds)
	}
	return strings.TrimSpace(text.String())
}

// reasons begin what a test prints of its failure. The logs of servers come after it.
var reasons = []string{"Error Trace:", "panic:", dataRace, violation}

// excerpt returns the first lines from the reason of a failure on, or else the last lines of the output.
func excerpt(output string) string {
	lines := strings.SplitAfter(output, "\n")
	first := slices.IndexFunc(lines, func(line string) bool {
		return slices.ContainsFunc(reasons, func(reason string) bool { return strings.Contains(line, reason) })
	})
	if first < 0 {
		first = max(0, len(lines)-excerptLines)
	}
	text := strings.Join(lines[first:min(len(lines), first+excerptLines)], "")
	if first > 0 {
		text = "[...]\n" + text
	}
	return text
}
