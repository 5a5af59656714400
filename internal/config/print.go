package config

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/redact"
)

// Format is a form of Print.
type Format string

// The forms of Print.
const (
	FormatTable Format = "table" // key, value and origin in columns
	FormatJSON  Format = "json"  // {"file": ..., "values": [{"key": ..., "value": ..., "origin": ...}]}
)

// Value is one effective value of the config, without secrets.
type Value struct {
	Key    string `json:"key"`    // field path, such as "targets[0].timeout"
	Value  string `json:"value"`  // as one would write it in the file; lists and mappings as JSON
	Origin string `json:"origin"` // such as "default" or "reconciler.yaml:3:7"
}

// Print writes the effective config with the origin of each value. Secrets are replaced by REDACTED.
func (c *Config) Print(w io.Writer, format Format) error {
	switch format {
	case FormatJSON:
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		enc.SetEscapeHTML(false)
		return enc.Encode(struct {
			File   string  `json:"file"`
			Values []Value `json:"values"`
		}{c.File, c.Values()})
	case FormatTable:
		return c.printTable(w)
	default:
		return fmt.Errorf("print the configuration as %q: the formats are %s and %s", format, FormatTable, FormatJSON)
	}
}

func (c *Config) printTable(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(tw, "KEY\tVALUE\tORIGIN") // errors stay with the writer until Flush
	for _, v := range c.Values() {
		_, _ = fmt.Fprintf(tw, "%s\t%s\t%s\n", printable(v.Key), printable(v.Value), printable(v.Origin))
	}
	return tw.Flush()
}

// printable quotes what would upset a terminal or the columns.
func printable(s string) string {
	for _, r := range s {
		if !unicode.IsPrint(r) {
			return strconv.Quote(s)
		}
	}
	return s
}

// Values returns every effective value, without secrets, in the order of the documentation.
func (c *Config) Values() []Value {
	var values []Value
	add := func(path, value string) {
		values = append(values, Value{Key: path, Value: value, Origin: c.origins[path].String()})
	}
	for _, k := range globals(c.agent) {
		add(k.path, k.get(c))
	}
	for i := range c.Streams.Tokens {
		for _, k := range tokenKnobs() {
			add(tokenPath(i, k.path), k.get(&c.Streams.Tokens[i]))
		}
	}
	for i := range c.Targets {
		t := &c.Targets[i]
		for _, k := range targets(c.agent) {
			add(targetPath(i, k.path), k.get(t))
			if k.path != "driver" {
				continue
			}
			for _, name := range slices.Sorted(maps.Keys(t.Options)) {
				path := targetPath(i, "options."+name)
				add(path, c.shownOption(path, name, t.Options))
			}
		}
	}
	return values
}

func (c *Config) shownOption(path, name string, options driver.Options) string {
	// Whoever puts an option into the environment may do so because it is a secret.
	if c.origins[path].Source == SourceEnv {
		return redact.Redacted
	}
	switch value := redactOption(name, options[name]).(type) {
	case string:
		return value
	default:
		encoded, err := json.Marshal(value)
		if err != nil {
			return redact.Redacted
		}
		return strings.TrimSpace(string(encoded))
	}
}
