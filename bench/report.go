package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
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

// surroundings say where figures come from.
type surroundings struct {
	At         time.Time `json:"at"`
	Commit     string    `json:"commit"`
	PostgreSQL string    `json:"postgresql"`
	Go         string    `json:"go"`
	CPUs       int       `json:"cpus"`
	CPU        string    `json:"cpu"`
	Rounds     int       `json:"rounds"`
	Scale      float64   `json:"scale"`
}

func cpuModel() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

const resultsHead = `# Results

Written by ` + "`make bench`" + `; raw figures are in [results.json](results.json).

%s, %d processors (%s), PostgreSQL %s with fsync on, %s, commit %s, scale %s. The product, the writers and the server share
the machine. Every comparison is made in the same run, in interleaved rounds; given is the median of %d rounds (with minimum
and maximum). Absolute figures belong to this machine and this hour; ratios travel.

| bench | what | measured | against | ratio | goal | met |
|---|---|---|---|---|---|---|
`

// write keeps the figures as results.json and RESULTS.md.
func write(dir string, where surroundings, figures []Figure) error {
	raw, err := json.MarshalIndent(struct {
		surroundings
		Figures []Figure `json:"figures"`
	}{where, figures}, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "results.json"), append(raw, '\n'), 0o600); err != nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, resultsHead, where.At.Format(time.DateOnly), where.CPUs, where.CPU, where.PostgreSQL, where.Go, where.Commit, measure.Short(where.Scale), where.Rounds)
	for _, f := range figures {
		b.WriteString(f.line() + "\n")
	}
	return os.WriteFile(filepath.Join(dir, "RESULTS.md"), []byte(b.String()), 0o600)
}
