package main

import (
	"fmt"
	"strings"
)

// Mutant is the product without one of its mechanisms.
type Mutant struct {
	Name      string
	Invariant string // I1 to I12, or a case
	Removed   string // what was taken out, for people
	Edits     []Edit
	Package   string // whose tests notice
	Run       string // which of them, as for go test -run
}

// Edit replaces a text of a file. The text must be there exactly once, or the mutant means something else by now.
type Edit struct {
	File, Old, New string
}

func (e Edit) apply(text string) (string, error) {
	if n := strings.Count(text, e.Old); n != 1 {
		return "", fmt.Errorf("%s has this text %d times, not once; look at what became of the mechanism, and mend the mutant:\n%s", e.File, n, e.Old)
	}
	return strings.Replace(text, e.Old, e.New, 1), nil
}

// top is the part of Run that names tests, without their subtests.
func (m Mutant) top() string { return top(m.Run) }
