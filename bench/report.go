package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pgreconciler/reconciler/internal/measure"
)

// Figure is one line of the results: something measured, and what it is compared with in the same run.
type Figure struct {
	Bench   string    `json:"bench"`
	What    string    `json:"what"`
	Unit    string    `json:"unit"`
	Values  []float64 `json:"values"`            // one for each round
	Against string    `json:"against,omitempty"` // what it is compared with
	Limits  []float64 `json:"limits,omitempty"`  // the other's values, round by round
	Goal    string    `json:"goal,omitempty"`    // in words
	// Met says whether the goal is met: by the median of the ratios, or of the values where nothing is compared.
	Met *bool `json:"met,omitempty"`
}

// atLeast sets the goal that the ratio (the value, where nothing is compared) is no smaller.
func (f Figure) atLeast(goal float64, words string) Figure {
	return f.goal(words, func(v float64) bool { return v >= goal })
}

// atMost sets the goal that the ratio (the value, where nothing is compared) is no larger.
func (f Figure) atMost(goal float64, words string) Figure {
	return f.goal(words, func(v float64) bool { return v <= goal })
}

func (f Figure) goal(words string, met func(float64) bool) Figure {
	values := f.Values
	if len(f.Limits) > 0 {
		values = measure.Ratios(f.Values, f.Limits)
	}
	is := met(measure.SpreadOf(values).Median)
	f.Goal, f.Met = words, &is
	return f
}

func (f Figure) line() string {
	against, ratio := "", ""
	if len(f.Limits) > 0 {
		against = fmt.Sprintf("%s %s", f.Against, measure.SpreadOf(f.Limits))
		ratio = measure.SpreadOf(measure.Ratios(f.Values, f.Limits)).String()
	}
	met := ""
	if f.Met != nil {
		met = map[bool]string{true: "yes", false: "**no**"}[*f.Met]
	}
	return fmt.Sprintf("| %s | %s | %s %s | %s | %s | %s | %s |", f.Bench, f.What, measure.SpreadOf(f.Values), f.Unit, against, ratio, f.Goal, met)
}

// section is what one measurement gave, and where and when.
type section struct {
	Name       string    `json:"name"`
	At         time.Time `json:"at"`
	Commit     string    `json:"commit"`
	PostgreSQL string    `json:"postgresql"`
	Go         string    `json:"go"`
	CPUs       int       `json:"cpus"`
	CPU        string    `json:"cpu"`
	Rounds     int       `json:"rounds"`
	Scale      float64   `json:"scale"`
	Figures    []Figure  `json:"figures"`
}

const resultsHead = `# Results

Written by ` + "`make bench`" + `; raw figures are in [results.json](results.json). The product, the writers and the server share the
machine, and the server has fsync on. Every comparison is made in the same run, in interleaved rounds; given is the median (with
minimum and maximum). Absolute figures belong to one machine and one hour; ratios travel.
`

const (
	sectionHead = `
## %s

%s, %d processors (%s), PostgreSQL %s, %s, commit %s, %d rounds, scale %s.

| bench | what | measured | against | ratio | goal | met |
|---|---|---|---|---|---|---|
`
	// peersFile is what bench/peers writes; the results begin with it.
	peersFile = "peers/peers.md"
)

// keep puts a section into results.json in place of the one of the same name, and writes RESULTS.md from all of them.
func keep(dir string, fresh section) error {
	sections, err := kept(dir)
	if err != nil {
		return err
	}
	sections = slices.DeleteFunc(sections, func(s section) bool { return s.Name == fresh.Name })
	sections = append(sections, fresh)
	place := func(name string) int { return slices.IndexFunc(benches, func(b bench) bool { return b.name == name }) }
	slices.SortFunc(sections, func(a, b section) int { return place(a.Name) - place(b.Name) })
	raw, err := json.MarshalIndent(sections, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "results.json"), append(raw, '\n'), 0o600); err != nil {
		return err
	}
	return render(dir)
}

// kept reads results.json; there may be none yet.
func kept(dir string) (sections []section, err error) {
	raw, err := os.ReadFile(filepath.Join(dir, "results.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(raw, &sections); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, "results.json"), err)
	}
	return sections, nil
}

// render writes RESULTS.md from results.json, and from what bench/peers has written.
func render(dir string) error {
	sections, err := kept(dir)
	if err != nil {
		return err
	}
	var b strings.Builder
	b.WriteString(resultsHead)
	peers, err := os.ReadFile(filepath.Join(dir, peersFile))
	if err == nil {
		_, text, _ := strings.Cut(string(peers), "\n")
		b.WriteString("\n## Against others\n" + strings.ReplaceAll(text, "(README.md)", "(peers/README.md)"))
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, s := range sections {
		fmt.Fprintf(&b, sectionHead, s.Name, s.At.Format(time.DateOnly), s.CPUs, s.CPU, s.PostgreSQL, s.Go, s.Commit, s.Rounds, measure.Short(s.Scale))
		for _, f := range s.Figures {
			b.WriteString(f.line() + "\n")
		}
	}
	return os.WriteFile(filepath.Join(dir, "RESULTS.md"), []byte(b.String()), 0o600)
}
