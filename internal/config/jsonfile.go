package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"unicode/utf8"
)

// parseJSON reads a JSON document. It has a reader of its own beside YAML's, because JSON is only nearly YAML:
// indentation by tabs and some escapes differ.
func parseJSON(content []byte) (*node, error) {
	var valid json.RawMessage
	if err := json.Unmarshal(content, &valid); err != nil {
		return nil, jsonSyntaxError(content, err)
	}
	r := &jsonReader{content: content, dec: json.NewDecoder(bytes.NewReader(content))}
	r.dec.UseNumber()
	return r.read(1)
}

// jsonSyntaxError finds the place of a syntax error.
func jsonSyntaxError(content []byte, err error) error {
	var syntax *json.SyntaxError
	if !errors.As(err, &syntax) {
		return syntaxErrorf(position{}, "not valid JSON")
	}
	// The offset is one past the character that is wrong.
	pos := (&jsonReader{content: content}).position(max(int(syntax.Offset)-1, 0))
	if syntax.Offset >= int64(len(content)) {
		return syntaxErrorf(pos, "not valid JSON: it ends too early, or has a character that does not belong here")
	}
	return syntaxErrorf(pos, "not valid JSON: a character does not belong here")
}

type jsonReader struct {
	content []byte
	dec     *json.Decoder
}

// position turns an offset into line and column.
func (r *jsonReader) position(offset int) position {
	before := r.content[:offset]
	line := bytes.Count(before, []byte("\n")) + 1
	start := bytes.LastIndexByte(before, '\n') + 1
	return position{line: line, col: utf8.RuneCount(before[start:]) + 1}
}

// next returns the next token and where it starts. The content is known to be valid.
func (r *jsonReader) next() (json.Token, position, error) {
	offset := int(r.dec.InputOffset())
	for offset < len(r.content) && strings.IndexByte(" \t\r\n,:", r.content[offset]) >= 0 {
		offset++
	}
	tok, err := r.dec.Token()
	return tok, r.position(offset), err
}

func (r *jsonReader) read(depth int) (*node, error) {
	tok, pos, err := r.next()
	if err != nil {
		return nil, syntaxErrorf(pos, "not valid JSON")
	}
	switch tok := tok.(type) {
	case json.Delim:
		return r.readContainer(tok, pos, depth)
	case string:
		return stringNode(pos, tok), nil
	case bool:
		return boolNode(pos, tok), nil
	case json.Number:
		return jsonNumber(pos, tok)
	default:
		return nullNode(pos), nil
	}
}

func (r *jsonReader) readContainer(open json.Delim, pos position, depth int) (*node, error) {
	if depth > maxDepth {
		return nil, syntaxErrorf(pos, "nested more than %d levels deep", maxDepth)
	}
	var items []*node
	var fields []field
	for r.dec.More() {
		var f field
		if open == '{' {
			key, keyPos, err := r.next()
			if err != nil {
				return nil, syntaxErrorf(keyPos, "not valid JSON")
			}
			f.key, _ = key.(string)
			f.pos = keyPos
		}
		value, err := r.read(depth + 1)
		if err != nil {
			return nil, err
		}
		f.value = value
		items, fields = append(items, value), append(fields, f)
	}
	if _, end, err := r.next(); err != nil {
		return nil, syntaxErrorf(end, "not valid JSON")
	}
	n := listNode(pos, items)
	if open == '{' {
		n = mapNode(pos, fields)
	}
	return n, check(n, depth)
}

func jsonNumber(pos position, number json.Number) (*node, error) {
	if i, err := number.Int64(); err == nil {
		return intNode(pos, i), nil
	}
	f, err := strconv.ParseFloat(number.String(), 64)
	if err != nil {
		return nil, syntaxErrorf(pos, "a number is too large")
	}
	return floatNode(pos, f), nil
}
