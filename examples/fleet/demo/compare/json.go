package compare

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// decode reads exactly one JSON value. Numbers keep their digits.
func decode(content []byte) (any, error) {
	decoder := json.NewDecoder(bytes.NewReader(content))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, errors.New("it is empty")
		}
		return nil, err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the JSON value")
	}
	return value, nil
}

// differ says where two decoded values first differ; "" if nowhere.
func differ(place string, want, have any) string {
	switch want := want.(type) {
	case Object:
		return differ(place, map[string]any(want), have)
	case map[string]any:
		if have, ok := have.(map[string]any); ok {
			return differFields(place, want, have)
		}
	case []any:
		if have, ok := have.([]any); ok && len(have) == len(want) {
			for i := range want {
				if said := differ(fmt.Sprintf("%s[%d]", place, i), want[i], have[i]); said != "" {
					return said
				}
			}
			return ""
		}
	default:
		if want == have { // nil, bool, string or json.Number; of two types they are never equal
			return ""
		}
	}
	return fmt.Sprintf("%s is %s, and the row says %s", name(place), text(have), text(want))
}

func differFields(place string, want, have map[string]any) string {
	for _, field := range slices.Sorted(maps.Keys(want)) {
		value, ok := have[field]
		if !ok {
			return fmt.Sprintf("%s is missing", name(place+"."+field))
		}
		if said := differ(place+"."+field, want[field], value); said != "" {
			return said
		}
	}
	for _, field := range slices.Sorted(maps.Keys(have)) {
		if _, ok := want[field]; !ok {
			return fmt.Sprintf("%s is there, and no column asks for it", name(place+"."+field))
		}
	}
	return ""
}

func name(place string) string {
	if place == "" {
		return "it"
	}
	return strings.TrimPrefix(place, ".")
}

// text is a value for a message, in JSON.
func text(value any) string {
	encoded, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprint(value)
	}
	const shown = 120
	if len(encoded) > shown {
		return string(encoded[:shown]) + "..."
	}
	return string(encoded)
}
