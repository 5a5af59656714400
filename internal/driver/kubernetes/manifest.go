package kubernetes

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// member is one manifest of a spec.
type member struct {
	at   place
	gvk  schema.GroupVersionKind
	body *unstructured.Unstructured
}

// place names an object of a cluster.
type place struct {
	schema.GroupKind

	Namespace string // "" for an object of the cluster
	Name      string
}

// String returns the place as errors name it: Deployment.apps web in shop.
func (p place) String() string {
	if p.Namespace == "" {
		return fmt.Sprintf("%s %s", p.GroupKind, p.Name)
	}
	return fmt.Sprintf("%s %s in %s", p.GroupKind, p.Name, p.Namespace)
}

func (p place) compare(q place) int {
	return slices.Compare([]string{p.Group, p.Kind, p.Namespace, p.Name}, []string{q.Group, q.Kind, q.Namespace, q.Name})
}

// serverSet are fields of metadata that only the server sets.
var serverSet = []string{"creationTimestamp", "deletionTimestamp", "generation", "managedFields", "resourceVersion", "selfLink", "uid"}

// parse returns the manifests of a spec, in the order in which they are applied: namespaces, definitions of kinds, and the rest as it
// stands. All problems of a spec are one error.
func parse(spec []byte) ([]member, error) {
	texts, err := split(spec)
	if err != nil {
		return nil, err
	}
	var members []member
	var problems []error
	for i, text := range texts {
		m, err := parseOne(text)
		if err != nil && len(texts) > 1 {
			err = fmt.Errorf("manifest %d: %w", i+1, err)
		}
		if err != nil {
			problems = append(problems, err)
			continue
		}
		members = append(members, m)
	}
	if err := errors.Join(problems...); err != nil {
		return nil, errors.New(strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	if len(members) == 0 {
		return nil, errors.New("the spec names no manifest: to have the objects of the row deleted, delete the row")
	}
	slices.SortStableFunc(members, func(a, b member) int { return rank(a.gvk.GroupKind()) - rank(b.gvk.GroupKind()) })
	return members, nil
}

// split returns the texts of manifests: of a list, of a manifest of kind List, or the only one.
func split(spec []byte) ([]json.RawMessage, error) {
	spec = bytes.TrimSpace(spec)
	if len(spec) == 0 {
		return nil, errors.New("the spec is empty")
	}
	switch spec[0] {
	case '[':
		var texts []json.RawMessage
		if err := json.Unmarshal(spec, &texts); err != nil {
			return nil, fmt.Errorf("the spec is not JSON: %w", err)
		}
		return texts, nil
	case '{':
		var list struct {
			APIVersion string            `json:"apiVersion"`
			Kind       string            `json:"kind"`
			Items      []json.RawMessage `json:"items"`
		}
		if err := json.Unmarshal(spec, &list); err == nil && list.APIVersion == "v1" && list.Kind == "List" {
			return list.Items, nil
		}
		return []json.RawMessage{spec}, nil
	}
	return nil, errors.New("the spec is neither a manifest nor a list of manifests")
}

func parseOne(text []byte) (member, error) {
	body := &unstructured.Unstructured{}
	if err := utiljson.Unmarshal(text, &body.Object); err != nil || body.Object == nil {
		return member{}, errors.New("it is no JSON object")
	}
	version, kind := field(body, "apiVersion"), field(body, "kind")
	gv, err := schema.ParseGroupVersion(version)
	if version == "" || kind == "" || err != nil || gv.Version == "" {
		return member{}, errors.New(`it needs "apiVersion" and "kind"`)
	}
	m := member{gvk: gv.WithKind(kind), body: body}
	metadata, ok := body.Object["metadata"].(map[string]any)
	name, _ := metadata["name"].(string)
	if !ok || name == "" {
		return member{}, fmt.Errorf(`the %s needs "metadata" with a "name"`, kind)
	}
	if strings.ContainsAny(name, "/%") || name == "." || name == ".." || strings.ContainsFunc(name, unprintable) {
		return member{}, fmt.Errorf("%q cannot be the name of a %s", name, kind)
	}
	namespace, ok := metadata["namespace"].(string)
	if _, given := metadata["namespace"]; given && !ok || namespace != "" && !namespaceName.MatchString(namespace) {
		return member{}, fmt.Errorf("%s %s: its namespace is not the name of one", kind, name)
	}
	for _, texts := range []string{"labels", "annotations"} {
		if _, _, err := unstructured.NestedStringMap(body.Object, "metadata", texts); err != nil {
			return member{}, fmt.Errorf("%s %s: metadata.%s must map names to texts", kind, name, texts)
		}
	}
	if err := refuseMarks(body); err != nil {
		return member{}, fmt.Errorf("%s %s: %w", kind, name, err)
	}
	for _, one := range serverSet {
		delete(metadata, one)
	}
	delete(body.Object, "status")
	if m.gvk.GroupKind() == secretKind {
		if err := storeSecret(body.Object); err != nil {
			return member{}, fmt.Errorf("%s %s: %w", kind, name, err)
		}
	}
	m.at = place{GroupKind: m.gvk.GroupKind(), Namespace: namespace, Name: name}
	return m, nil
}

func unprintable(r rune) bool { return r <= ' ' || r >= 0x7f }

func field(body *unstructured.Unstructured, name string) string {
	text, _ := body.Object[name].(string)
	return text
}

// The order of kinds: what others need comes first.
const (
	rankNamespace = iota
	rankDefinition
	rankRest
)

func rank(gk schema.GroupKind) int {
	switch gk {
	case schema.GroupKind{Kind: "Namespace"}:
		return rankNamespace
	case schema.GroupKind{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}:
		return rankDefinition
	}
	return rankRest
}
