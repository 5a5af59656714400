package scripts_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A test that is renamed does not drop out of those that run on every version of PostgreSQL.
func TestEachAlternativeOfVersionTestsMatchesATest(t *testing.T) {
	t.Parallel()
	makefile, err := os.ReadFile("../Makefile")
	require.NoError(t, err)
	list := regexp.MustCompile(`(?m)^VERSION_TESTS := (.*)$`).FindSubmatch(makefile)
	require.NotNil(t, list)
	var names []string
	for _, dir := range []string{"outbox", "leader", "apply", "e2e"} {
		files, err := filepath.Glob("../internal/" + dir + "/*_test.go")
		require.NoError(t, err)
		for _, file := range files {
			source, err := os.ReadFile(file)
			require.NoError(t, err)
			for _, match := range regexp.MustCompile(`(?m)^func (Test\w+)\(t `).FindAllSubmatch(source, -1) {
				names = append(names, string(match[1]))
			}
		}
	}
	for alternative := range strings.SplitSeq(string(list[1]), "|") {
		require.Regexp(t, alternative, strings.Join(names, "\n"))
	}
}
