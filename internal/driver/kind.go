package driver

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
)

// Options are a target's options as decoded from the config file: strings, bools, numbers, []any, map[string]any.
type Options map[string]any

// Env is what a driver may take from its surroundings.
type Env struct {
	// Getenv reads an environment variable, for options that name one (secret_env). Never nil.
	Getenv func(string) string
	// Logger takes what a driver does on its own, after its calls have returned; nil means slog.Default().
	Logger *slog.Logger
}

// Log returns the logger to use; never nil.
func (e Env) Log() *slog.Logger {
	if e.Logger != nil {
		return e.Logger
	}
	return slog.Default()
}

// Kind is one kind of driver, as named by `driver:` in the config.
type Kind struct {
	Name string
	// Open validates the options and returns the driver. It reports all problems at once as Problems,
	// and touches the target only as far as validation needs (a missing directory, an unreadable file).
	Open func(target string, opts Options, env Env) (Driver, error)
}

// Problem is one thing that is wrong with the options.
type Problem struct {
	Path string // below the target's entry, such as "options.dir"
	Text string // what is wrong and what would be right
}

// Problems is the error that Kind.Open returns: everything that is wrong, not the first thing.
type Problems []Problem

func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i, one := range p {
		lines[i] = fmt.Sprintf("%s: %s", one.Path, one.Text)
	}
	return strings.Join(lines, "\n")
}

// Registry finds a kind by name.
type Registry []Kind

// Lookup returns the kind with this name.
func (r Registry) Lookup(name string) (Kind, bool) {
	i := slices.IndexFunc(r, func(k Kind) bool { return k.Name == name })
	if i < 0 {
		return Kind{}, false
	}
	return r[i], true
}

// Names returns the names of all kinds, sorted.
func (r Registry) Names() []string {
	names := make([]string, len(r))
	for i, k := range r {
		names[i] = k.Name
	}
	slices.Sort(names)
	return names
}
