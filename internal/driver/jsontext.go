package driver

import (
	"encoding/json"
	"errors"
)

// StringSpec returns the spec that is this text: a JSON string, byte for byte as PostgreSQL writes a jsonb
// string (its escape_json): short escapes for backspace, form feed, newline, return and tab, \u00xx for other
// control characters, a backslash before '"' and '\', and everything else as it is. encoding/json would escape
// more, and the hash would not be the ledger's.
func StringSpec(text []byte) json.RawMessage {
	quoted := make([]byte, 0, len(text)+2)
	quoted = append(quoted, '"')
	quoted = AppendEscaped(quoted, text)
	return append(quoted, '"')
}

// AppendEscaped appends the inside of StringSpec(text), without the quotes, so that a long text can be
// hashed piece by piece.
func AppendEscaped(dst, text []byte) []byte {
	const lowerHex = "0123456789abcdef"
	for _, c := range text {
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\b':
			dst = append(dst, '\\', 'b')
		case '\f':
			dst = append(dst, '\\', 'f')
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			if c < ' ' {
				dst = append(dst, '\\', 'u', '0', '0', lowerHex[c>>4], lowerHex[c&15])
				continue
			}
			dst = append(dst, c)
		}
	}
	return dst
}

// SpecText returns the text of a spec that is a JSON string, and ok false for every other spec. A spec that
// cannot be read at all is an error; it never comes out of a jsonb column.
func SpecText(spec json.RawMessage) (text string, ok bool, err error) {
	if len(spec) == 0 {
		return "", false, errors.New("the spec is empty")
	}
	if spec[0] != '"' {
		return "", false, nil
	}
	if err := json.Unmarshal(spec, &text); err != nil {
		return "", false, errors.New("the spec begins as a JSON string but is not one")
	}
	return text, true, nil
}
