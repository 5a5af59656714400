package kubernetes

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// lastApplied is where `kubectl apply` keeps the whole manifest.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// shownOfSecrets are the fields of a Secret that are no values.
var shownOfSecrets = []string{"apiVersion", "kind", "metadata", "type", "immutable"}

// hidden is a value of a Secret: it can be compared, and is not shown.
type hidden struct{ value any }

// MarshalJSON implements json.Marshaler.
func (hidden) MarshalJSON() ([]byte, error) { return []byte(`"(hidden)"`), nil }

// visible returns a copy of an object without what the server alone writes and without the hash of what was applied. The values of a
// Secret are hidden.
func visible(at place, object *unstructured.Unstructured) map[string]any {
	content := runtime.DeepCopyJSON(object.Object)
	delete(content, "status")
	metadata, _ := content["metadata"].(map[string]any)
	for _, name := range serverSet {
		delete(metadata, name)
	}
	annotations, _ := metadata["annotations"].(map[string]any)
	if delete(annotations, markApplied); len(annotations) == 0 {
		delete(metadata, "annotations")
	}
	if at.GroupKind != secretKind {
		return content
	}
	for name, values := range content {
		if !slices.Contains(shownOfSecrets, name) {
			content[name] = hide(values)
		}
	}
	if text, ok := annotations[lastApplied]; ok {
		annotations[lastApplied] = hidden{text}
	}
	return content
}

// hide hides the values of a map, or all of what is none.
func hide(values any) any {
	fields, ok := values.(map[string]any)
	if !ok {
		return hidden{values}
	}
	for name, value := range fields {
		fields[name] = hidden{value}
	}
	return fields
}

// summary returns what is to be shown of an object that is created or deleted: nil for none, and no marks.
func summary(at place, object *unstructured.Unstructured) any {
	if object == nil {
		return nil
	}
	content := visible(at, object)
	metadata, _ := content["metadata"].(map[string]any)
	for _, sort := range []string{"labels", "annotations"} {
		texts, _ := metadata[sort].(map[string]any)
		maps.DeleteFunc(texts, func(name string, _ any) bool {
			return strings.HasPrefix(name, markDomain) || name == labelPartOf || name == labelManagedBy
		})
		if len(texts) == 0 {
			delete(metadata, sort)
		}
	}
	return content
}

// compare calls differs for each field that two objects do not have alike; nil stands for a field that one of them does not have. It
// names fields as managedFields do: .spec.template.spec.containers[name="web"].image.
func compare(path string, from, to any, differs func(path string, from, to any)) {
	if reflect.DeepEqual(from, to) {
		return
	}
	if a, b, ok := both[map[string]any](from, to); ok {
		for _, name := range union(a, b) {
			compare(path+"."+name, a[name], b[name], differs)
		}
		return
	}
	if a, b, ok := both[[]any](from, to); ok {
		byName, other, ok := both[map[string]any](named(a), named(b))
		switch {
		case ok:
			found := false
			for _, name := range union(byName, other) {
				compare(fmt.Sprintf("%s[name=%q]", path, name), byName[name], other[name], func(path string, from, to any) {
					found = true
					differs(path, from, to)
				})
			}
			if found {
				return // otherwise the order differs
			}
		case len(a) == len(b):
			for i := range a {
				compare(fmt.Sprintf("%s[%d]", path, i), a[i], b[i], differs)
			}
			return
		}
	}
	differs(path, from, to)
}

func both[T any](from, to any) (a, b T, ok bool) {
	a, isA := from.(T)
	b, isB := to.(T)
	return a, b, isA && isB
}

func union(a, b map[string]any) []string {
	names := map[string]struct{}{}
	for name := range a {
		names[name] = struct{}{}
	}
	for name := range b {
		names[name] = struct{}{}
	}
	return slices.Sorted(maps.Keys(names))
}

// named returns the elements of a list by their names; nil if one of them has none, or the name of another.
func named(list []any) any {
	byName := make(map[string]any, len(list))
	for _, one := range list {
		fields, _ := one.(map[string]any)
		name, ok := fields["name"].(string)
		if _, twice := byName[name]; !ok || twice {
			return nil
		}
		byName[name] = one
	}
	return byName
}

// text returns a value as JSON, cut where it is too long.
func (c *cluster) text(value any) string {
	if value == nil {
		return ""
	}
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if encoder.Encode(value) != nil {
		return ""
	}
	text := c.scrubber.Text(strings.TrimSuffix(b.String(), "\n"))
	if len(text) > driver.ChangeBytesMost {
		text = strings.ToValidUTF8(text[:driver.ChangeBytesMost-len("...")], "") + "..."
	}
	return text
}
