package config

import (
	"fmt"
	"strconv"
)

// kind is the type of a node, whatever format it was written in.
type kind int

const (
	kindNull kind = iota
	kindString
	kindInt
	kindFloat
	kindBool
	kindList
	kindMap
	kindText // from a variable or a flag: text that stands for any scalar
)

// String returns the kind as named in error texts.
func (k kind) String() string {
	return [...]string{"nothing", "a string", "a number", "a number", "a boolean", "a list", "a mapping", "text"}[k]
}

// position is a place in a file, in lines and characters from 1; zero when unknown.
type position struct{ line, col int }

// node is one value of a config file, with its place.
type node struct {
	kind   kind
	pos    position
	value  any    // of a scalar: string, int64, float64 or bool; nil for null
	text   string // of a scalar, as text
	items  []*node
	fields []field
	size   int // nodes in this tree, counted as often as aliases repeat them
}

// field is one entry of a mapping.
type field struct {
	key   string
	pos   position
	value *node
}

// place is where problems with the field's value are reported: an empty value has no place of its own.
func (f field) place() position {
	if f.value.kind == kindNull {
		return f.pos
	}
	return f.value.pos
}

func textNode(text string) *node { return &node{kind: kindText, value: text, text: text, size: 1} }

func stringNode(pos position, s string) *node {
	return &node{kind: kindString, pos: pos, value: s, text: s, size: 1}
}

func boolNode(pos position, b bool) *node {
	return &node{kind: kindBool, pos: pos, value: b, text: strconv.FormatBool(b), size: 1}
}

func intNode(pos position, i int64) *node {
	return &node{kind: kindInt, pos: pos, value: i, text: strconv.FormatInt(i, 10), size: 1}
}

func floatNode(pos position, f float64) *node {
	return &node{kind: kindFloat, pos: pos, value: f, text: strconv.FormatFloat(f, 'g', -1, 64), size: 1}
}

func nullNode(pos position) *node { return &node{kind: kindNull, pos: pos, size: 1} }

func listNode(pos position, items []*node) *node {
	n := &node{kind: kindList, pos: pos, items: items, size: 1}
	for _, item := range items {
		n.size += item.size
	}
	return n
}

func mapNode(pos position, fields []field) *node {
	n := &node{kind: kindMap, pos: pos, fields: fields, size: 1}
	for _, f := range fields {
		n.size += f.value.size
	}
	return n
}

// plain returns the tree as Go values: nil, string, bool, int64, float64, []any, map[string]any.
func (n *node) plain() any {
	switch n.kind {
	case kindList:
		list := make([]any, len(n.items))
		for i, item := range n.items {
			list[i] = item.plain()
		}
		return list
	case kindMap:
		m := make(map[string]any, len(n.fields))
		for _, f := range n.fields {
			m[f.key] = f.value.plain()
		}
		return m
	default:
		return n.value
	}
}

// syntaxError is a file that cannot be read as YAML or JSON. Its text never quotes the file: it may hold secrets.
type syntaxError struct {
	pos  position
	text string
}

func (e *syntaxError) Error() string { return e.text }

func syntaxErrorf(pos position, format string, args ...any) *syntaxError {
	return &syntaxError{pos: pos, text: fmt.Sprintf(format, args...)}
}

const (
	maxDepth = 64
	// An alias repeats a tree by one word: without a limit, ten lines would stand for a billion nodes.
	maxNodes = 100_000
)

// check refuses trees that are too deep or, aliases counted, too large.
func check(n *node, depth int) error {
	if depth > maxDepth {
		return syntaxErrorf(n.pos, "nested more than %d levels deep", maxDepth)
	}
	if n.size > maxNodes {
		return syntaxErrorf(n.pos, "more than %d values, aliases counted", maxNodes)
	}
	return nil
}
