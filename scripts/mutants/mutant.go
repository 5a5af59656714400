package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Mutant is the product without one of its mechanisms.
type Mutant struct {
	Name    string
	Guards  string // I1 to I12, or a case
	Removed string // the mechanism that is taken out
	Edits   []Edit
	Package string // its tests must notice
	Run     string // those tests, as for go test -run
}

// Edit replaces a text of a file. The text must be there exactly once: otherwise the mechanism has changed.
type Edit struct {
	File, Old, New string
}

func (e Edit) apply(text string) (string, error) {
	if n := strings.Count(text, e.Old); n != 1 {
		return "", fmt.Errorf("%s has this text %d times, not once; adapt the mutant:\n%s", e.File, n, e.Old)
	}
	return strings.Replace(text, e.Old, e.New, 1), nil
}

// fit returns an error for each mutant whose text or test is no longer in the tree.
func fit(root string, mutants []Mutant) error {
	var drifted []error
	for _, m := range mutants {
		for _, e := range m.Edits {
			text, err := os.ReadFile(filepath.Join(root, e.File))
			if err == nil {
				_, err = e.apply(string(text))
			}
			if err != nil {
				drifted = append(drifted, fmt.Errorf("%s: %w", m.Name, err))
			}
		}
		if err := m.hasTest(root); err != nil {
			drifted = append(drifted, err)
		}
	}
	return errors.Join(drifted...)
}

var declared = regexp.MustCompile(`(?m)^func (Test\w+)\(`)

func (m Mutant) hasTest(root string) error {
	pattern := regexp.MustCompile(m.Run)
	files, err := filepath.Glob(filepath.Join(root, m.Package, "*_test.go"))
	if err != nil {
		return err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		for _, test := range declared.FindAllSubmatch(text, -1) {
			if pattern.Match(test[1]) {
				return nil
			}
		}
	}
	return fmt.Errorf("%s: no test of %s matches %s", m.Name, m.Package, m.Run)
}
