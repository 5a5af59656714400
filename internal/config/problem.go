package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Source is the kind of place that a value came from, in the order of precedence.
type Source int

// The sources of values. A later one wins.
const (
	SourceDefault Source = iota
	SourceFile
	SourceEnv
	SourceFlag
)

// Origin is the place that a value came from. The zero value means: nobody gave it, it is a default.
type Origin struct {
	Source Source
	Name   string // path of the file, name of the variable, or flag with its dashes
	Line   int    // from 1; 0 when unknown
	Col    int    // in characters, from 1
}

// String returns "default", "reconciler.yaml:3:7", "env RECONCILER_LISTEN" or "flag --listen".
func (o Origin) String() string {
	name := o.Name
	switch o.Source {
	case SourceDefault:
		return "default"
	case SourceEnv:
		name = "env " + o.Name
	case SourceFlag:
		name = "flag " + o.Name
	case SourceFile:
	}
	if o.Line == 0 {
		return name
	}
	return fmt.Sprintf("%s:%d:%d", name, o.Line, o.Col)
}

func (o Origin) at(p position) Origin {
	o.Line, o.Col = p.line, p.col
	return o
}

// Problem is one thing that is wrong with the configuration.
type Problem struct {
	Origin Origin // where the faulty value is; zero when it is missing
	Path   string // field path such as "targets[1].options.dir"; "" when it concerns a whole source
	Text   string // what is wrong and what would be right
}

// String returns "reconciler.yaml:3:7: log.level: must be ...", without the parts that are not known.
func (p Problem) String() string {
	var parts []string
	if p.Origin.Source != SourceDefault {
		parts = append(parts, p.Origin.String())
	}
	if p.Path != "" {
		parts = append(parts, p.Path)
	}
	return strings.Join(append(parts, p.Text), ": ")
}

// Error is everything that is wrong with the configuration, in the order of sources and lines.
type Error struct {
	Problems []Problem // never empty
}

// Error returns one line for each problem.
func (e *Error) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.String()
	}
	if len(lines) == 1 {
		return "invalid configuration: " + lines[0]
	}
	return fmt.Sprintf("invalid configuration, %d problems:\n  %s", len(lines), strings.Join(lines, "\n  "))
}

// problems collects what is wrong.
type problems []Problem

func (p *problems) add(o Origin, path, format string, args ...any) {
	*p = append(*p, Problem{Origin: o, Path: path, Text: fmt.Sprintf(format, args...)})
}

// err returns nil, or an *Error in the order in which a person would walk through the sources.
func (p problems) err() error {
	if len(p) == 0 {
		return nil
	}
	sorted := slices.Clone(p)
	slices.SortStableFunc(sorted, func(a, b Problem) int {
		return cmp.Or(
			cmp.Compare(a.Origin.Source.reportRank(), b.Origin.Source.reportRank()),
			cmp.Compare(a.Origin.Name, b.Origin.Name),
			cmp.Compare(a.Origin.Line, b.Origin.Line),
			cmp.Compare(a.Origin.Col, b.Origin.Col),
		)
	})
	return &Error{Problems: sorted}
}

// reportRank puts what is missing after what is there and wrong.
func (s Source) reportRank() int {
	if s == SourceDefault {
		return int(SourceFlag) + 1
	}
	return int(s)
}
