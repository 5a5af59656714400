package config

import (
	"fmt"
	"math"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// codec turns a node into a value of one type, and back into text.
type codec[V any] struct {
	typ    string // for the documentation
	bounds string // for the documentation; "" when the type says it all
	parse  func(*node) (V, error)
	format func(V) string
}

// off is the word that switches an address or an interval off.
const off = "off"

// FormatDuration drops what time.Duration.String adds: "10m", not "10m0s".
func FormatDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

var bareNumber = regexp.MustCompile(`^[0-9]+(\.[0-9]+)?$`)

func parseDuration(n *node) (time.Duration, error) {
	switch n.kind {
	case kindInt, kindFloat, kindString, kindText:
	default:
		return 0, fmt.Errorf(`must be a duration such as "30s", not %s`, n.kind)
	}
	d, err := time.ParseDuration(n.text)
	if err == nil && (n.kind == kindString || n.kind == kindText) && !bareNumber.MatchString(n.text) {
		return d, nil
	}
	if bareNumber.MatchString(n.text) {
		return 0, fmt.Errorf(`needs a unit: write "%[1]ss", "%[1]sm" or "%[1]sh" instead of %[1]s`, n.text)
	}
	return 0, fmt.Errorf(`must be a duration, a number with a unit (ms, s, m, h) such as "30s" or "1h30m", not %s`, quoted(n))
}

// quoted is a scalar as an error text shows it.
func quoted(n *node) string {
	if n.kind == kindString || n.kind == kindText {
		return strconv.Quote(n.text)
	}
	return n.text
}

func durationIn(lo, hi time.Duration) codec[time.Duration] {
	bounds := fmt.Sprintf("%s to %s", FormatDuration(lo), FormatDuration(hi))
	return codec[time.Duration]{
		typ: "duration", bounds: bounds, format: FormatDuration,
		parse: func(n *node) (time.Duration, error) {
			d, err := parseDuration(n)
			if err != nil {
				return 0, err
			}
			if d < lo || d > hi {
				return 0, fmt.Errorf("must be from %s, not %s", bounds, FormatDuration(d))
			}
			return d, nil
		},
	}
}

// durationOrOff is durationIn with 0 for "off".
func durationOrOff(lo, hi time.Duration) codec[time.Duration] {
	inner := durationIn(lo, hi)
	return codec[time.Duration]{
		typ: "duration or `off`", bounds: inner.bounds,
		format: func(d time.Duration) string {
			if d == 0 {
				return off
			}
			return FormatDuration(d)
		},
		parse: func(n *node) (time.Duration, error) {
			if n.text == off {
				return 0, nil
			}
			d, err := inner.parse(n)
			if err != nil {
				return 0, fmt.Errorf(`%w; or "off"`, err)
			}
			return d, nil
		},
	}
}

func intIn[V int | int64](lo, hi V) codec[V] {
	return codec[V]{
		typ: "whole number", bounds: fmt.Sprintf("%d to %d", lo, hi),
		format: func(v V) string { return strconv.FormatInt(int64(v), 10) },
		parse: func(n *node) (V, error) {
			i, err := strconv.ParseInt(n.text, 10, 64)
			if err != nil || (n.kind != kindInt && n.kind != kindText) {
				return 0, fmt.Errorf("must be a whole number, not %s", wrongScalar(n))
			}
			if i < int64(lo) || i > int64(hi) {
				return 0, fmt.Errorf("must be from %d to %d, not %d", lo, hi, i)
			}
			return V(i), nil
		},
	}
}

// wrongScalar names a node of the wrong type so that a person sees the quotes that should not be there.
func wrongScalar(n *node) string {
	switch n.kind {
	case kindString:
		return "the string " + strconv.Quote(n.text)
	case kindInt, kindFloat, kindBool:
		return n.text
	case kindText:
		return strconv.Quote(n.text)
	default:
		return n.kind.String()
	}
}

func floatIn(lo, hi float64) codec[float64] {
	format := func(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }
	bounds := fmt.Sprintf("%s to %s", format(lo), format(hi))
	return codec[float64]{
		typ: "number", bounds: bounds, format: format,
		parse: func(n *node) (float64, error) {
			f, err := strconv.ParseFloat(n.text, 64)
			if err != nil || math.IsNaN(f) || math.IsInf(f, 0) ||
				(n.kind != kindInt && n.kind != kindFloat && n.kind != kindText) {
				return 0, fmt.Errorf("must be a number, not %s", wrongScalar(n))
			}
			if f < lo || f > hi {
				return 0, fmt.Errorf("must be from %s, not %s", bounds, n.text)
			}
			return f, nil
		},
	}
}

var byteUnits = []struct {
	name  string
	bytes int64
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}}

// formatBytes writes a size with the largest unit that leaves a whole number.
func formatBytes(bytes int64) string {
	for _, u := range byteUnits {
		if bytes >= u.bytes && bytes%u.bytes == 0 {
			return strconv.FormatInt(bytes/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(bytes, 10)
}

// sizeIn is a number of bytes with a unit.
func sizeIn(lo, hi int64) codec[int64] {
	bounds := fmt.Sprintf("%s to %s", formatBytes(lo), formatBytes(hi))
	return codec[int64]{
		typ: "size", bounds: bounds, format: formatBytes,
		parse: func(n *node) (int64, error) {
			for _, u := range byteUnits {
				number, ok := strings.CutSuffix(n.text, u.name)
				i, err := strconv.ParseInt(strings.TrimSpace(number), 10, 64)
				switch {
				case !ok || err != nil || n.kind != kindString && n.kind != kindText:
					continue
				case i < 0 || i > math.MaxInt64/u.bytes || i*u.bytes < lo || i*u.bytes > hi:
					return 0, fmt.Errorf("must be from %s, not %s", bounds, n.text)
				}
				return i * u.bytes, nil
			}
			return 0, fmt.Errorf(`must be a size, a whole number with a unit (KiB, MiB, GiB) such as "256MiB", not %s`, wrongScalar(n))
		},
	}
}

// optional makes nil stand for "nobody gave it".
func optional[V any](inner codec[V], unset string) codec[*V] {
	return codec[*V]{
		typ: inner.typ, bounds: inner.bounds,
		format: func(v *V) string {
			if v == nil {
				return unset
			}
			return inner.format(*v)
		},
		parse: func(n *node) (*V, error) {
			v, err := inner.parse(n)
			if err != nil {
				return nil, err
			}
			return &v, nil
		},
	}
}

func oneOf[V ~string](values ...V) codec[V] {
	words := make([]string, len(values))
	for i, v := range values {
		words[i] = string(v)
	}
	return codec[V]{
		typ: "`" + strings.Join(words, "`, `") + "`",
		format: func(v V) string {
			return string(v)
		},
		parse: func(n *node) (V, error) {
			text := n.kind == kindString || n.kind == kindText
			if text && slices.Contains(values, V(n.text)) {
				return V(n.text), nil
			}
			wrong := wrongScalar(n)
			if text {
				wrong = quoted(n)
			}
			return "", fmt.Errorf("must be one of %s, not %s", strings.Join(words, ", "), wrong)
		},
	}
}

// word is a string that a check accepts.
func word(typ, bounds string, check func(string) error) codec[string] {
	return codec[string]{
		typ: typ, bounds: bounds,
		format: func(s string) string { return s },
		parse: func(n *node) (string, error) {
			if err := wantString(n); err != nil {
				return "", err
			}
			return n.text, check(n.text)
		},
	}
}

// wantString refuses what is not a string, without quoting it: the string may be a secret.
func wantString(n *node) error {
	switch n.kind {
	case kindString, kindText:
		return nil
	case kindInt, kindFloat, kindBool:
		return fmt.Errorf("must be a string, not %s; put it in quotes", n.kind)
	default:
		return fmt.Errorf("must be a string, not %s", n.kind)
	}
}

var validName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$`)

func checkName(s string) error {
	if !validName.MatchString(s) || strings.Contains(s, "..") {
		return fmt.Errorf(`%q is not a valid name: use 1 to 63 letters, digits, ".", "_" and "-", `+
			`beginning with a letter or digit, without ".."`, s)
	}
	return nil
}

var validHostNames = regexp.MustCompile(`^[A-Za-z0-9._-]+( *, *[A-Za-z0-9._-]+)*$`)

// checkHostNames wants names of hosts with commas between.
func checkHostNames(s string) error {
	if s != "" && !validHostNames.MatchString(s) {
		return fmt.Errorf(`must be names of hosts with commas between, such as "status.example.org, reconciler.example.org", not %q`, s)
	}
	return nil
}

// address is host:port, or "" for "off".
func address() codec[string] {
	return codec[string]{
		typ: "host:port or `off`",
		format: func(s string) string {
			if s == "" {
				return off
			}
			return s
		},
		parse: func(n *node) (string, error) {
			if err := wantString(n); err != nil {
				return "", err
			}
			if n.text == off {
				return "", nil
			}
			_, port, err := net.SplitHostPort(n.text)
			if number, portErr := strconv.ParseUint(port, 10, 16); err != nil || portErr != nil || number > math.MaxUint16 {
				return "", fmt.Errorf(`must be "off" or host:port such as %q, not %q`, listenDefault, n.text)
			}
			return n.text, nil
		},
	}
}
