package pgtest

import (
	"crypto/rand"
	"strings"
)

// uniqueName returns prefix_ and twelve random letters and digits: a valid identifier that needs no quotes if prefix is one.
func uniqueName(prefix string) string {
	return prefix + "_" + strings.ToLower(rand.Text()[:12])
}
