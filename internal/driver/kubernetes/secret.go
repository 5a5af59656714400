package kubernetes

import (
	"encoding/base64"
	"errors"
	"maps"
	"slices"
	"strings"
)

// Fields of a Secret with values. The cluster moves stringData to data when it stores the object.
const (
	fieldData       = "data"
	fieldStringData = "stringData"
)

// storeSecret gives the manifest of a Secret the form in which the cluster stores it: the values of stringData move to data, where they win
// over values of the same name. A manager that applies stringData owns no field of data: the cluster would keep the keys that a row drops,
// and would not show an edit as drift. The error names fields, and no value.
func storeSecret(manifest map[string]any) error {
	data, wrong := valuesOf(manifest, fieldData, func(text string) bool {
		_, err := base64.StdEncoding.DecodeString(text)
		return err == nil
	})
	texts, more := valuesOf(manifest, fieldStringData, func(string) bool { return true })
	if wrong = append(wrong, more...); len(wrong) > 0 {
		return errors.New(strings.Join(wrong, "; "))
	}
	delete(manifest, fieldStringData)
	if len(texts) == 0 {
		return nil
	}
	if data == nil {
		data = map[string]any{}
	}
	for name, text := range texts {
		data[name] = base64.StdEncoding.EncodeToString([]byte(text.(string))) //nolint:forcetypeassert // valuesOf has looked
	}
	manifest[fieldData] = data
	return nil
}

// valuesOf returns a map of texts, nil if the manifest has none, and what is wrong with it.
func valuesOf(manifest map[string]any, field string, valid func(text string) bool) (values map[string]any, wrong []string) {
	if manifest[field] == nil {
		return nil, nil
	}
	values, ok := manifest[field].(map[string]any)
	if !ok {
		return nil, []string{field + " must map names to texts"}
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		switch text, ok := values[name].(string); {
		case !ok:
			wrong = append(wrong, field+"."+name+" must be text")
		case !valid(text):
			wrong = append(wrong, field+"."+name+" must be base64 (stringData takes plain text)")
		}
	}
	return values, wrong
}
