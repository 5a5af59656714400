package scripts_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const failuresPage = "../docs/failures.md"

var (
	rowOfATable   = regexp.MustCompile(`(?m)^\|(.*)\|$`)
	nameOfATest   = regexp.MustCompile("`(Test[A-Za-z0-9_]+)(?:/([A-Za-z0-9]+))?`")
	nameOfAMetric = regexp.MustCompile("`reconciler_([a-z_]+)`")
	nameOfAnyTime = regexp.MustCompile("`([a-z]+)\\.([A-Za-z]+)`")
	// Several may follow one another: log `a`, `b` and `c`.
	namesAfter = func(word string) *regexp.Regexp {
		return regexp.MustCompile("\\b" + word + " ((?:(?:, | and | or )?`[a-z_]+`)+)")
	}
	anyName = regexp.MustCompile("`([a-z_]+)`")
)

// names returns what stands in backticks after a word of the page.
func names(page, word string) (all []string) {
	for _, list := range namesAfter(word).FindAllStringSubmatch(page, -1) {
		for _, name := range anyName.FindAllStringSubmatch(list[1], -1) {
			all = append(all, name[1])
		}
	}
	return all
}

func joined(files map[string]string) string {
	var text strings.Builder
	for _, one := range files {
		text.WriteString(one)
	}
	return text.String()
}

// What the failure guide names is there: tests, messages of the log, series, checks, states and constants.
func TestFailureGuideNamesWhatThereIs(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile(failuresPage)
	require.NoError(t, err)
	page := string(content)
	proofs := joined(tests(t))
	code := joined(sources(t, func(path string) bool { return strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") }))

	rows := 0
	for _, row := range rowOfATable.FindAllStringSubmatch(page, -1) {
		cells := strings.Split(row[1], " | ")
		if strings.HasPrefix(row[1], "---") || cells[0] == " fault" {
			continue
		}
		rows++
		require.Len(t, cells, 5, row[0])
		require.Regexp(t, nameOfATest, cells[4], "no test proves it: %s", row[0])
	}
	require.Greater(t, rows, 40)
	for _, name := range nameOfATest.FindAllStringSubmatch(page, -1) {
		holds(t, proofs, "\nfunc "+name[1]+"(t *testing.T) {", "there is no test %s", name[1])
		holds(t, proofs, `"`+name[2], "%s has no case %s", name[1], name[2])
	}
	messages := names(page, "log")
	require.Greater(t, len(messages), 20)
	for _, name := range messages {
		require.True(t, strings.Contains(code, `("`+name+`", "`) || strings.Contains(code, `("`+name+`")`), "nothing logs %s", name)
	}
	metrics := read(t, "../internal/metrics/metrics.go")
	for _, name := range nameOfAMetric.FindAllStringSubmatch(page, -1) {
		holds(t, metrics, `"`+name[1]+`"`, "there is no series %s", name[0])
	}
	migrations := joined(sources(t, func(path string) bool { return strings.HasPrefix(path, filepath.Join("db", "migrations")) }))
	for _, name := range names(page, "doctor") {
		holds(t, migrations, "SELECT '"+name+"', ", "doctor has no check %s", name)
	}
	views := read(t, "../db/migrations/00006_views.sql")
	for _, name := range names(page, "status") {
		holds(t, views, "THEN '"+name+"'", "status has no state %s", name)
	}
	for _, name := range nameOfAnyTime.FindAllStringSubmatch(page, -1) {
		if name[1] == "reconciler" || name[1] == "retention" {
			continue // a view, a key of the config
		}
		constants := joined(sources(t, func(path string) bool {
			return strings.HasPrefix(path, "internal/") && filepath.Base(filepath.Dir(path)) == name[1] && !strings.HasSuffix(path, "_test.go")
		}))
		require.True(t, regexp.MustCompile(`(?m)^\s+`+name[2]+` += `).MatchString(constants), "there is no constant %s", name[0])
	}
}

// The page is found by those who need it.
func TestFailureGuideIsLinked(t *testing.T) {
	t.Parallel()
	for path, link := range map[string]string{"../README.md": "(docs/failures.md)", "../docs/guarantees.md": "(failures.md)"} {
		holds(t, read(t, path), link, "%s has no link %s", path, link)
	}
}

// holds is require.Contains without the text, which is all that there is.
func holds(t *testing.T, text, piece, otherwise string, args ...any) {
	t.Helper()
	if !strings.Contains(text, piece) {
		require.FailNow(t, "it is not there", append([]any{otherwise}, args...)...)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(text)
}
