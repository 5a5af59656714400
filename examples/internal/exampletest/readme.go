package exampletest

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var sqlBlock = regexp.MustCompile("(?s)```sql\n(.*?)```")

// Readme returns the SQL that README.md in the current directory shows: one list of statements for each block.
// A statement ends with a semicolon at the end of a line.
func Readme(t testing.TB) [][]string {
	t.Helper()
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	var blocks [][]string
	for _, found := range sqlBlock.FindAllSubmatch(text, -1) {
		statements := strings.Split(strings.TrimSpace(string(found[1])), ";\n")
		blocks = append(blocks, statements)
	}
	return blocks
}
