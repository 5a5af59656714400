package options

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// Reader hands out options one by one and collects what is wrong with them. Every method names an option of
// its group, returns the default (or the zero value) where the option is absent, null or wrong, and never fails.
type Reader struct {
	path     string
	values   map[string]any
	known    map[string]struct{}
	groups   []*Reader
	problems *driver.Problems // shared by all groups, so that problems keep the order of reading
}

// New returns a Reader for a target's options.
func New(opts driver.Options) *Reader {
	return &Reader{path: "options", values: opts, known: map[string]struct{}{}, problems: &driver.Problems{}}
}

// Err returns everything that is wrong as driver.Problems, or nil. Call it after the last option is read:
// what was not asked for is unknown.
func (r *Reader) Err() error {
	r.refuseUnknown()
	if len(*r.problems) == 0 {
		return nil
	}
	return *r.problems
}

func (r *Reader) refuseUnknown() {
	for _, name := range slices.Sorted(maps.Keys(r.values)) {
		if _, ok := r.known[name]; !ok {
			known := strings.Join(slices.Sorted(maps.Keys(r.known)), ", ")
			r.Problemf(name, "unknown option; known here: %s", known)
		}
	}
	for _, group := range r.groups {
		group.refuseUnknown()
	}
}

// Problemf adds a problem with the option.
func (r *Reader) Problemf(name, format string, args ...any) {
	*r.problems = append(*r.problems, driver.Problem{Path: r.path + "." + name, Text: fmt.Sprintf(format, args...)})
}

// Has says whether the option is given, right or wrong.
func (r *Reader) Has(name string) bool {
	_, ok := r.take(name)
	return ok
}

// String reads a string; an empty one is a problem.
func (r *Reader) String(name, fallback string) string {
	value, ok := r.take(name)
	if !ok {
		return fallback
	}
	text, ok := value.(string)
	switch {
	case !ok:
		r.mustBe(name, "a string", value)
		return fallback
	case text == "":
		r.Problemf(name, "must not be empty")
		return fallback
	default:
		return text
	}
}

// Required reads a string that must be there.
func (r *Reader) Required(name string) string {
	if !r.Has(name) {
		r.Problemf(name, "is required")
		return ""
	}
	return r.String(name, "")
}

// Bool reads true or false.
func (r *Reader) Bool(name string, fallback bool) bool {
	value, ok := r.take(name)
	if !ok {
		return fallback
	}
	truth, ok := value.(bool)
	if !ok {
		r.mustBe(name, "true or false", value)
		return fallback
	}
	return truth
}

// Int reads a whole number between low and high, both included.
func (r *Reader) Int(name string, fallback, low, high int) int {
	value, ok := r.take(name)
	if !ok {
		return fallback
	}
	number, ok := wholeNumber(value)
	switch {
	case !ok:
		r.mustBe(name, "a whole number", value)
		return fallback
	case number < float64(low) || number > float64(high):
		r.Problemf(name, "must be between %d and %d", low, high)
		return fallback
	default:
		return int(number)
	}
}

// Fraction reads a number from 0 to 1.
func (r *Reader) Fraction(name string, fallback float64) float64 {
	value, ok := r.take(name)
	if !ok {
		return fallback
	}
	fraction, ok := number(value)
	switch {
	case !ok:
		r.mustBe(name, "a number from 0 to 1", value)
		return fallback
	case !(fraction >= 0 && fraction <= 1): // NaN too
		r.Problemf(name, "must be between 0 and 1")
		return fallback
	default:
		return fraction
	}
}

// Duration reads a string such as "250ms", "10s" or "5m" between low and high, both included.
func (r *Reader) Duration(name string, fallback, low, high time.Duration) time.Duration {
	value, ok := r.take(name)
	if !ok {
		return fallback
	}
	text, isText := value.(string)
	d, err := time.ParseDuration(text)
	switch {
	case !isText || err != nil:
		r.mustBe(name, `a duration with its unit, such as "250ms", "10s" or "5m"`, value)
		return fallback
	case d < low || d > high:
		r.Problemf(name, "must be between %s and %s", briefly(low), briefly(high))
		return fallback
	default:
		return d
	}
}

// Strings reads a list of strings; empty ones are kept.
func (r *Reader) Strings(name string) []string {
	value, ok := r.take(name)
	if !ok {
		return nil
	}
	items, ok := value.([]any)
	if !ok {
		r.mustBe(name, "a list of strings", value)
		return nil
	}
	texts := make([]string, len(items))
	for i, item := range items {
		if texts[i], ok = item.(string); !ok {
			r.mustBe(fmt.Sprintf("%s[%d]", name, i), "a string", item)
		}
	}
	return texts
}

// StringMap reads a mapping of names to strings.
func (r *Reader) StringMap(name string) map[string]string {
	value, ok := r.take(name)
	if !ok {
		return nil
	}
	items, ok := value.(map[string]any)
	if !ok {
		r.mustBe(name, "a mapping of names to strings", value)
		return nil
	}
	texts := make(map[string]string, len(items))
	for _, key := range slices.Sorted(maps.Keys(items)) {
		text, ok := items[key].(string)
		if !ok {
			r.mustBe(name+"."+key, "a string", items[key])
			continue
		}
		texts[key] = text
	}
	return texts
}

// Group reads a mapping with options of its own; ok is false where it is absent or no mapping.
func (r *Reader) Group(name string) (group *Reader, ok bool) {
	value, ok := r.take(name)
	if !ok {
		return nil, false
	}
	values, ok := value.(map[string]any)
	if !ok {
		r.mustBe(name, "a mapping", value)
		return nil, false
	}
	group = &Reader{path: r.path + "." + name, values: values, known: map[string]struct{}{}, problems: r.problems}
	r.groups = append(r.groups, group)
	return group, true
}

// take notes that the option is known, and returns its value; null in the file is as good as absent.
func (r *Reader) take(name string) (any, bool) {
	r.known[name] = struct{}{}
	value := r.values[name]
	return value, value != nil
}

func (r *Reader) mustBe(name, what string, value any) {
	r.Problemf(name, "must be %s, not %s", what, describe(value))
}

// describe names the type and not the value: it may be a secret in the wrong place.
func describe(value any) string {
	switch value.(type) {
	case nil:
		return "nothing"
	case string:
		return "this string"
	case bool:
		return "true or false"
	case []any:
		return "a list"
	case map[string]any:
		return "a mapping"
	}
	if n, ok := number(value); ok && n != math.Trunc(n) {
		return "a fraction"
	} else if ok {
		return "a number"
	}
	return fmt.Sprintf("a %T", value)
}

func wholeNumber(value any) (float64, bool) {
	n, ok := number(value)
	return n, ok && n == math.Trunc(n)
}

// number takes every type that a YAML or JSON decoder makes of a number.
func number(value any) (float64, bool) {
	switch n := value.(type) {
	case int:
		return float64(n), true
	case int64:
		return float64(n), true
	case uint64:
		return float64(n), true
	case float64:
		return n, true
	default:
		return 0, false
	}
}

// briefly writes 5m0s as 5m.
func briefly(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
