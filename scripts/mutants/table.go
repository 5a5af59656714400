package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
)

const (
	resultsFile = "scripts/mutants/results.json"
	docsFile    = "docs/testing.md"
	tableBegins = "<!-- mutants: `make test/mutants MUTANTS_FLAGS=-write` writes this table -->\n"
	tableEnds   = "<!-- mutants end -->\n"
)

// record keeps the result of a mutant, beside those of others, and writes the table anew.
func record(root, name string, r Result) error {
	results, err := readResults(root)
	if err != nil {
		return err
	}
	if old := results[name]; r.WorldsTried == 0 {
		r.WorldsTried, r.WorldsSeed, r.WorldsSeconds = old.WorldsTried, old.WorldsSeed, old.WorldsSeconds
	}
	results[name] = r
	known := map[string]bool{}
	for _, m := range All() {
		known[m.Name] = true
	}
	maps.DeleteFunc(results, func(name string, _ Result) bool { return !known[name] })
	text, err := json.MarshalIndent(results, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(root, resultsFile), append(text, '\n'), 0o600); err != nil {
		return err
	}
	path := filepath.Join(root, docsFile)
	docs, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	updated, err := insertTable(string(docs), results)
	if err != nil {
		return err
	}
	return os.WriteFile(path, []byte(updated), 0o600)
}

func readResults(root string) (map[string]Result, error) {
	results := map[string]Result{}
	text, err := os.ReadFile(filepath.Join(root, resultsFile))
	if os.IsNotExist(err) {
		return results, nil
	}
	if err != nil {
		return nil, err
	}
	return results, json.Unmarshal(text, &results)
}

// insertTable puts the table between its marks.
func insertTable(docs string, results map[string]Result) (string, error) {
	before, rest, begins := strings.Cut(docs, tableBegins)
	_, after, ends := strings.Cut(rest, tableEnds)
	if !begins || !ends {
		return "", fmt.Errorf("%s has no marks for the table of mutants", docsFile)
	}
	return before + tableBegins + "\n" + table(results) + "\n" + tableEnds + after, nil
}

func table(results map[string]Result) string {
	var b strings.Builder
	b.WriteString("| | mutant | taken out | caught by | seconds | worlds |\n|---|---|---|---|---|---|\n")
	for _, m := range All() {
		r, tried := results[m.Name]
		by, seconds := "not tried yet", ""
		if tried {
			by, seconds = "NOT CAUGHT", fmt.Sprintf("%.0f", r.Seconds)
		}
		if len(r.CaughtBy) > 0 {
			by = "`" + strings.Join(r.tests(), "`, `") + "`"
		}
		fmt.Fprintf(&b, "| %s | `%s` | %s | %s | %s | %s |\n", m.Invariant, m.Name, m.Removed, by, seconds, r.worlds())
	}
	return b.String()
}
