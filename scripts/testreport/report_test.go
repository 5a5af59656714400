package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// line is an event of `go test -json`, from words: action, package, test, output.
func line(words ...string) string {
	words = append(words, "", "", "")
	return `{"Action":"` + words[0] + `","Package":"example.com/` + words[1] + `","Test":"` + words[2] + `","Output":"` + words[3] + `\n"}` + "\n"
}

// failure is a run of a package in which a test fails, and prints.
func failure(test, output string) string {
	return line("start", "p") + line("run", "p", test) + line("output", "p", test, output) + line("fail", "p", test) + line("fail", "p")
}

func success(test string) string {
	return line("start", "p") + line("run", "p", test) + line("pass", "p", test) + line("pass", "p")
}

func TestRunIsJudged(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		events   string
		flaky    string
		problems []string
	}{
		"Green":         {events: success("TestA")},
		"Flaky":         {events: failure("TestA", "too late") + success("TestA"), flaky: "p.TestA"},
		"FailedTwice":   {events: failure("TestA", "too late") + failure("TestA", "too late"), problems: []string{"p.TestA failed"}},
		"FailedSubtest": {events: line("start", "p") + line("run", "p", "TestA") + line("run", "p", "TestA/b") + line("fail", "p", "TestA/b") + line("fail", "p", "TestA") + line("fail", "p") + success("TestA"), flaky: "p.TestA"},
		"Violation": {
			events: failure("TestA", "VIOLATION: lost") + success("TestA"), flaky: "p.TestA",
			problems: []string{"p.TestA reports a violation, which is never retried"},
		},
		"ViolationOfASubtest": {
			events: line("start", "p") + line("run", "p", "TestA") + line("run", "p", "TestA/b") + line("output", "p", "TestA/b", "VIOLATION: stale") +
				line("fail", "p", "TestA/b") + line("fail", "p", "TestA") + line("fail", "p") + success("TestA"),
			flaky: "p.TestA", problems: []string{"p.TestA reports a violation, which is never retried"},
		},
		"ViolationThatIsExpected": {events: line("start", "p") + line("run", "p", "TestA") + line("output", "p", "TestA", "VIOLATION") + line("pass", "p", "TestA") + line("pass", "p")},
		"DataRace":                {events: failure("TestA", "WARNING: DATA RACE") + success("TestA"), flaky: "p.TestA", problems: []string{"p.TestA has a data race"}},
		// gotestsum runs such a package again without any test, and it passes.
		"PackageWithoutAFailedTest": {
			events:   line("start", "p") + line("run", "p", "TestA") + line("pass", "p", "TestA") + line("output", "p", "", "leaked") + line("fail", "p") + line("start", "p") + line("pass", "p"),
			problems: []string{"package example.com/p failed without a failed test:\nleaked\n"},
		},
		// The second package's failed test does not hide it.
		"PackageBesideAFailedTest": {
			events:   failure("TestA", "x") + line("start", "p") + line("run", "p", "TestA") + line("pass", "p", "TestA") + line("fail", "p"),
			flaky:    "p.TestA",
			problems: []string{"package example.com/p failed without a failed test:\n"},
		},
		"Panic":   {events: line("start", "p") + line("run", "p", "TestA") + line("run", "p", "TestB") + line("fail", "p", "TestB") + line("fail", "p"), problems: []string{"p.TestA did not end", "p.TestB failed"}},
		"Skipped": {events: success("TestB") + line("start", "p") + line("run", "p", "TestA") + line("skip", "p", "TestA") + line("pass", "p"), problems: []string{"p.TestA was skipped: a test that needs something missing fails"}},
		"Nothing": {problems: []string{"no test ran"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, err := read(strings.NewReader(tc.events))
			require.NoError(t, err)
			var flaky []string
			for _, one := range r.flaky() {
				flaky = append(flaky, one.id.String())
			}
			require.Equal(t, tc.flaky, strings.Join(flaky, " "))
			require.ElementsMatch(t, tc.problems, r.problems())
		})
	}
}

func TestFlakyTestsAreListedAndTheirFirstOutputIsKept(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	events := filepath.Join(dir, "events.json")
	require.NoError(t, os.WriteFile(events, []byte(failure("TestA", "too late")+success("TestA")), 0o600))
	var stdout, stderr bytes.Buffer
	require.Zero(t, run([]string{"-events", events, "-flaky", filepath.Join(dir, "flaky")}, &stdout, &stderr), stderr.String())
	require.Contains(t, stdout.String(), "--- FLAKY p.TestA\ntoo late\n")
	kept, err := os.ReadFile(filepath.Join(dir, "flaky", "p.TestA.log"))
	require.NoError(t, err)
	require.Equal(t, "too late\n", string(kept))
	require.Equal(t, 3, run([]string{"-events", events, "-flaky", dir, "-status", "3"}, &stdout, &stderr))
}

// The gate tests one minor version of each major one, and a log that does not name it hides what was tested.
func TestF188_ReportNamesTheServersThatTestsUsed(t *testing.T) {
	t.Parallel()
	old, newer := pgtest.TestedOn+"15.18 (Debian 15.18-0+deb12u1)", pgtest.TestedOn+"15.20"
	r, err := read(strings.NewReader(line("output", "p", "", newer) + line("output", "q", "", old) + line("output", "r", "", newer)))
	require.NoError(t, err)
	var printed bytes.Buffer
	r.print(&printed)
	require.Contains(t, printed.String(), "\nTESTED ON PostgreSQL 15.18 (Debian 15.18-0+deb12u1)\nTESTED ON PostgreSQL 15.20\nFLAKY none\n")
}

func TestExcerptBeginsAtTheReason(t *testing.T) {
	t.Parallel()
	logs := strings.Repeat("log\n", 100)
	require.Equal(t, "[...]\n\tError Trace: a_test.go:1\n\tError: too late\n"+strings.Repeat("log\n", excerptLines-2), excerpt(logs+"\tError Trace: a_test.go:1\n\tError: too late\n"+logs))
	require.Equal(t, "[...]\n"+strings.Repeat("log\n", excerptLines-2)+"a_test.go:1: wrong\n", excerpt(logs+"a_test.go:1: wrong\n"))
	require.Equal(t, "panic: short\n", excerpt("panic: short\n"))
}
