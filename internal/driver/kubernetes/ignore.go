package kubernetes

import (
	"encoding/json"
	"errors"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// pointer is a JSON pointer (RFC 6901) to a field of a manifest. Elements of lists cannot be named: they have no fixed place.
type pointer []string

func parsePointer(text string) (pointer, error) {
	parts := strings.Split(strings.TrimPrefix(text, "/"), "/")
	for i, part := range parts {
		part = strings.NewReplacer("~1", "/", "~0", "~").Replace(part)
		if part == "" {
			return nil, errors.New("a JSON pointer names a field: /spec/replicas")
		}
		parts[i] = part
	}
	switch parts[0] {
	case "apiVersion", "kind", "status":
		return nil, errors.New("this field is not the manifest's to leave out")
	case "metadata":
		if len(parts) < 3 || parts[1] != "labels" && parts[1] != "annotations" {
			return nil, errors.New("of metadata only labels and annotations can be left to others")
		}
	}
	return parts, nil
}

// get returns the value of a field, and false if there is none.
func (p pointer) get(object map[string]any) (any, bool) {
	for _, name := range p[:len(p)-1] {
		next, ok := object[name].(map[string]any)
		if !ok {
			return nil, false
		}
		object = next
	}
	value, ok := object[p[len(p)-1]]
	return value, ok
}

// set gives a field a value, and makes the objects around it where there are none.
func (p pointer) set(object map[string]any, value any) {
	for _, name := range p[:len(p)-1] {
		next, ok := object[name].(map[string]any)
		if !ok {
			next = map[string]any{}
			object[name] = next
		}
		object = next
	}
	object[p[len(p)-1]] = value
}

// remove takes a field out.
func (p pointer) remove(object map[string]any) {
	for _, name := range p[:len(p)-1] {
		next, ok := object[name].(map[string]any)
		if !ok {
			return
		}
		object = next
	}
	delete(object, p[len(p)-1])
}

// ownedIn reports whether an entry of managedFields has the field, or a part of it.
func (p pointer) ownedIn(entry metav1.ManagedFieldsEntry) bool {
	if entry.FieldsV1 == nil {
		return false
	}
	var fields map[string]any
	if json.Unmarshal(entry.FieldsV1.GetRawBytes(), &fields) != nil {
		return false
	}
	for i, name := range p {
		next, ok := fields["f:"+name]
		if !ok {
			return false
		}
		if fields, ok = next.(map[string]any); !ok && i < len(p)-1 {
			return false
		}
	}
	return true
}

// handedOver reports whether the field is free to be left out: we do not own it, or somebody else does, too. A field that we own alone
// falls to its default when it is left out.
func (p pointer) handedOver(ours *metav1.ManagedFieldsEntry, all []metav1.ManagedFieldsEntry) bool {
	if ours == nil || !p.ownedIn(*ours) {
		return true
	}
	for _, entry := range all {
		same := entry.Manager == ours.Manager && entry.Operation == ours.Operation && entry.Subresource == ours.Subresource
		if !same && p.ownedIn(entry) {
			return true
		}
	}
	return false
}
