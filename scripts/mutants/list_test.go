package main

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const root = "../.."

// What a mutant takes out is still there, once, and a test is still there that should notice.
func TestMutantsFitTheTree(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for _, m := range All() {
		require.Regexp(t, `^[a-z0-9]+(-[a-z0-9]+)*$`, m.Name)
		require.False(t, names[m.Name], "two mutants are called %s", m.Name)
		names[m.Name] = true
		for _, e := range m.Edits {
			text, err := os.ReadFile(filepath.Join(root, e.File))
			require.NoError(t, err)
			mutated, err := e.apply(string(text))
			if assert.NoError(t, err, m.Name) {
				require.NotEqual(t, string(text), mutated, m.Name)
			}
		}
		require.NotEmpty(t, matching(t, m), "%s: no test of %s is called %s", m.Name, m.Package, m.Run)
	}
}

var declared = regexp.MustCompile(`(?m)^func (Test\w+)\(`)

// matching returns the tests that a mutant names.
func matching(t *testing.T, m Mutant) []string {
	t.Helper()
	pattern := regexp.MustCompile(m.top())
	files, err := filepath.Glob(filepath.Join(root, m.Package, "*_test.go"))
	require.NoError(t, err)
	var found []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, f := range declared.FindAllStringSubmatch(string(text), -1) {
			if pattern.MatchString(f[1]) {
				found = append(found, f[1])
			}
		}
	}
	return found
}

func TestTextThatIsNotThereOnceIsDrift(t *testing.T) {
	t.Parallel()
	e := Edit{"a.go", "b", "c"}
	mutated, err := e.apply("abd")
	require.NoError(t, err)
	require.Equal(t, "acd", mutated)
	for text, times := range map[string]string{"ad": "0", "abbd": "2"} {
		_, err := e.apply(text)
		require.EqualError(t, err, "a.go has this text "+times+" times, not once; look at what became of the mechanism, and mend the mutant:\nb")
	}
}

func TestFailuresAreTheInnermost(t *testing.T) {
	t.Parallel()
	out := "--- FAIL: TestA (0.1s)\n    --- FAIL: TestA/One (0.1s)\n    --- PASS: TestA/Two (0.1s)\n--- FAIL: TestAB (0.0s)\nFAIL\n"
	require.Equal(t, []string{"TestA/One", "TestAB"}, failures(out))
	require.Equal(t, []string{"the end of the test process"}, failures("panic: test timed out after 4m0s\n"))
}

func TestManySubtestsAreTheirTest(t *testing.T) {
	t.Parallel()
	require.Equal(t, []string{"TestA/One", "TestA/Two", "TestB", "TestC"},
		Result{CaughtBy: []string{"TestA/One", "TestA/Two", "TestB/One", "TestB/Three", "TestB/Two", "TestC"}}.tests())
}

// The table in docs/testing.md is the one of results.json.
func TestTableIsWritten(t *testing.T) {
	t.Parallel()
	results, err := readResults(root)
	require.NoError(t, err)
	docs, err := os.ReadFile(filepath.Join(root, docsFile))
	require.NoError(t, err)
	want, err := insertTable(string(docs), results)
	require.NoError(t, err)
	require.Equal(t, want, string(docs))
	for _, m := range All() {
		require.NotEmpty(t, results[m.Name].CaughtBy, "%s was not tried, or not caught", m.Name)
	}
}
