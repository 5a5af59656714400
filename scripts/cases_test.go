package scripts_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// cases are the numbers of the situations that such systems break in: 56 to 63 are about applies, which do not exist
// yet, and 70 about pages that show data.
func cases() map[int]bool {
	all := map[int]bool{}
	for n := 1; n <= 74; n++ {
		all[n] = n < 56 || n > 63 && n != 70
	}
	return all
}

var (
	caseComment = regexp.MustCompile(`//.*`)
	caseNumber  = regexp.MustCompile(`\bC([1-9][0-9]?)\b`)
)

// Every case is named by a test of the gate: in a comment, as `// C12`. A test of the long tier is not enough.
func TestEveryCaseIsNamedByATest(t *testing.T) {
	t.Parallel()
	named := map[int][]string{}
	for path, text := range tests(t) {
		if strings.HasPrefix(text, "//go:build long") {
			continue
		}
		for _, comment := range caseComment.FindAllString(text, -1) {
			for _, found := range caseNumber.FindAllStringSubmatch(comment, -1) {
				n, err := strconv.Atoi(found[1])
				require.NoError(t, err)
				named[n] = append(named[n], path)
			}
		}
	}
	for n, wanted := range cases() {
		if wanted {
			require.NotEmpty(t, named[n], "no test names C%d", n)
		}
		delete(named, n)
	}
	require.Empty(t, named, "no such case")
}

// tests returns every test file of the repository by its path.
func tests(t *testing.T) map[string]string {
	t.Helper()
	return sources(t, func(path string) bool {
		return strings.HasSuffix(path, "_test.go") && path != filepath.Join("scripts", "cases_test.go")
	})
}

// sources returns the Go files and SQL files of the repository that are wanted.
func sources(t *testing.T, wanted func(path string) bool) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path, "../")
		switch {
		case entry.IsDir() && strings.HasPrefix(entry.Name(), ".") && path != "..", entry.IsDir() && name == "bin":
			return filepath.SkipDir
		case entry.IsDir() || !strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, ".sql") || !wanted(name):
			return nil
		}
		text, err := os.ReadFile(path)
		files[name] = string(text)
		return err
	})
	require.NoError(t, err)
	require.NotEmpty(t, files)
	return files
}
