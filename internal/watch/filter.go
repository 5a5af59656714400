package watch

import (
	"crypto/sha256"
	"encoding/json"
	"slices"
	"strings"
	"unicode/utf8"
)

// filter is what a watcher asks for. The zero value is everything.
type filter struct {
	resources []string // sorted, each once; none: all
	prefix    string   // of keys; only with exactly one resource
}

// scope identifies a filter in a bookmark: a bookmark of one filter is none of another.
type scope [8]byte

func newFilter(resources []string, prefix string) filter {
	slices.Sort(resources)
	return filter{resources: slices.Compact(resources), prefix: prefix}
}

// name is a text that is equal for equal filters only.
func (f filter) name() string {
	text, _ := json.Marshal(append([]string{f.prefix}, f.resources...)) //nolint:errchkjson // of strings, which cannot fail
	return string(text)
}

func (f filter) scope() (s scope) {
	sum := sha256.Sum256([]byte(f.name()))
	copy(s[:], sum[:])
	return s
}

func (f filter) matches(resource, key string) bool {
	return (len(f.resources) == 0 || slices.Contains(f.resources, resource)) && strings.HasPrefix(key, f.prefix)
}

// place is where an object stands in the order of resources and keys, both in the order of their bytes.
type place struct{ resource, key string }

func (p place) before(q place) bool {
	return p.resource < q.resource || p.resource == q.resource && p.key < q.key
}

// after is the first place that is greater: texts of PostgreSQL hold no NUL.
func (p place) after() place { return place{p.resource, p.key + "\x01"} }

// span is the places from one up to another one.
type span struct{ from, to place }

// afterResources is greater than each place: names of resources begin with a letter or "_".
var afterResources = place{resource: "~"}

// spans are where the objects of the filter stand, in order.
func (f filter) spans() []span {
	if len(f.resources) == 0 {
		return []span{{to: afterResources}}
	}
	spans := make([]span, len(f.resources))
	for i, resource := range f.resources {
		spans[i] = span{from: place{resource, f.prefix}, to: place{resource: resource + "\x01"}}
		if end := afterPrefix(f.prefix); end != "" {
			spans[i].to = place{resource, end}
		}
	}
	return spans
}

// afterPrefix returns the least text that is greater than each one with the prefix, "" for none.
func afterPrefix(prefix string) string {
	for prefix != "" {
		last, size := utf8.DecodeLastRuneInString(prefix)
		prefix = prefix[:len(prefix)-size]
		switch {
		case last == 0xD7FF:
			return prefix + "\uE000" // between them are surrogates, which are no characters
		case last < utf8.MaxRune:
			return prefix + string(last+1)
		}
	}
	return ""
}
