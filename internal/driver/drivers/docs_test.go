package drivers_test

import (
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/drivers"
)

// sectionOf returns what docs/drivers.md says about a driver.
func sectionOf(t *testing.T, kind string) string {
	t.Helper()
	docs, err := os.ReadFile("../../../docs/drivers.md")
	require.NoError(t, err)
	_, rest, ok := strings.Cut(string(docs), "\n## "+kind+"\n")
	require.True(t, ok, "docs/drivers.md has no section %s", kind)
	section, _, _ := strings.Cut(rest, "\n## ")
	return section
}

var knownHere = regexp.MustCompile(`^unknown option; known here: (.*)$`)

// known returns the options that a driver takes, by what it says about one that it does not take.
func known(t *testing.T, kind driver.Kind, opts driver.Options, path string) []string {
	t.Helper()
	_, err := kind.Open("test", opts, driver.Env{Getenv: func(string) string { return "" }})
	problems, ok := errors.AsType[driver.Problems](err)
	require.True(t, ok)
	for _, p := range problems {
		if match := knownHere.FindStringSubmatch(p.Text); match != nil && p.Path == path {
			return strings.Split(match[1], ", ")
		}
	}
	require.Fail(t, "no such problem", "%s in %v", path, problems)
	return nil
}

var optionRow = regexp.MustCompile("(?m)^\\| (`[a-z_.]+`(?:, `[a-z_.]+`)*) \\|")

func TestEveryOptionIsDocumentedAndNoOther(t *testing.T) {
	t.Parallel()

	for _, kind := range drivers.All() {
		want := known(t, kind, driver.Options{"x": 1}, "options.x")
		if kind.Name == "file" {
			for _, option := range known(t, kind, driver.Options{"reload": map[string]any{"x": 1}}, "options.reload.x") {
				want = append(want, "reload."+option)
			}
		}
		var have []string
		for _, row := range optionRow.FindAllStringSubmatch(sectionOf(t, kind.Name), -1) {
			for option := range strings.SplitSeq(row[1], ", ") {
				have = append(have, strings.Trim(option, "`"))
			}
		}
		require.ElementsMatch(t, want, have, "options of %s", kind.Name)
	}
}
