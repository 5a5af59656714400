package cli

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/pgreconciler/reconciler/internal/config"
)

// Problems collects what is wrong with the arguments of one call, so that a person hears of all of it at once. Its
// flags never refuse a value; they note the problem, and Err reports them all before anything starts.
type Problems struct{ texts []string }

// Add notes a problem, with the flag or argument it is about.
func (p *Problems) Add(format string, args ...any) {
	p.texts = append(p.texts, fmt.Sprintf(format, args...))
}

// Err returns nil, or a failure with every problem, those of the configuration (an error of package config, or nil)
// included. hint is given when only arguments are wrong.
func (p *Problems) Err(configuration error, hint string) error {
	bad, isConfig := errors.AsType[*config.Error](configuration)
	switch {
	case len(p.texts) == 0:
		return configuration
	case configuration == nil:
		return Usage(list(p.texts), hint)
	case !isConfig:
		return errors.Join(Usage(list(p.texts), ""), configuration)
	}
	all := slices.Clone(p.texts)
	for _, one := range bad.Problems {
		all = append(all, one.String())
	}
	return Usage(list(all), "")
}

// flagValue is a flag that is parsed by a function.
type flagValue[T any] struct {
	flag     string
	dst      *T
	typ      string
	parse    func(string) (T, error)
	format   func(T) string
	problems *Problems
}

func (v *flagValue[T]) String() string {
	if v.dst == nil { // pflag asks a zero value for its default
		return ""
	}
	return v.format(*v.dst)
}

func (v *flagValue[T]) Type() string { return v.typ }

func (v *flagValue[T]) Set(s string) error {
	parsed, err := v.parse(s)
	if err != nil {
		v.problems.Add("--%s: %v", v.flag, err)
		return nil
	}
	*v.dst = parsed
	return nil
}

// Duration adds a flag for a duration from 0 on.
func (p *Problems) Duration(flags *pflag.FlagSet, dst *time.Duration, name string, def time.Duration, usage string) {
	*dst = def
	flags.Var(&flagValue[time.Duration]{
		flag: name, dst: dst, typ: "duration", problems: p, format: config.FormatDuration, parse: parseDuration,
	}, name, usage)
}

func parseDuration(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	switch {
	case err != nil && isNumber(s):
		return 0, fmt.Errorf("needs a unit: write %ss, %sm or %sh instead of %s", s, s, s, s)
	case err != nil:
		return 0, fmt.Errorf("%q is no duration: write a number with a unit, such as 500ms, 30s or 1h30m", s)
	case d < 0:
		return 0, fmt.Errorf("must not be negative, but is %s", s)
	}
	return d, nil
}

func isNumber(s string) bool {
	_, err := strconv.ParseFloat(s, 64)
	return err == nil
}

// Int adds a flag for a whole number within bounds.
func (p *Problems) Int(flags *pflag.FlagSet, dst *int, name string, def, lowest, highest int, usage string) {
	*dst = def
	flags.Var(&flagValue[int]{
		flag: name, dst: dst, typ: "number", problems: p, format: strconv.Itoa,
		parse: func(s string) (int, error) {
			n, err := strconv.Atoi(s)
			if err != nil || n < lowest || n > highest {
				return 0, fmt.Errorf("must be a whole number from %d to %d, not %q", lowest, highest, s)
			}
			return n, nil
		},
	}, name, usage)
}

// Choice adds a flag for one of several words; the first is the default. shorthand may be "".
func (p *Problems) Choice(flags *pflag.FlagSet, dst *string, name, shorthand string, words []string, usage string) {
	*dst = words[0]
	flags.VarP(&flagValue[string]{
		flag: name, dst: dst, typ: strings.Join(words, "|"), problems: p, format: func(s string) string { return s },
		parse: func(s string) (string, error) {
			if !slices.Contains(words, s) {
				return "", fmt.Errorf("must be %s, not %q", strings.Join(words, " or "), s)
			}
			return s, nil
		},
	}, name, shorthand, usage)
}
