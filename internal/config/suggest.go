package config

import (
	"fmt"
	"slices"
	"strings"
)

// suggest returns the candidate that a person most likely meant, or "" when none is close.
func suggest(word string, candidates []string) string {
	best, bestDistance := "", len(word)/4+2
	for _, c := range candidates {
		if d := editDistance(strings.ToLower(word), strings.ToLower(c)); d < bestDistance {
			best, bestDistance = c, d
		}
	}
	return best
}

// editDistance counts insertions, deletions, replacements and swaps of neighbours.
func editDistance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}

// longestSuggested bounds the work of suggest: nobody misspells a key of this length.
const longestSuggested = 100

// unknownText says that a word is not known, and which one is.
func unknownText(what, word string, known []string) string {
	if len(word) <= longestSuggested {
		if near := suggest(word, known); near != "" {
			return fmt.Sprintf("%s; did you mean %q?", what, near)
		}
	}
	sorted := slices.Sorted(slices.Values(known))
	return fmt.Sprintf("%s; known here: %s", what, strings.Join(sorted, ", "))
}
