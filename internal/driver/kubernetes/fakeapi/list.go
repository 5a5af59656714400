package fakeapi

import (
	"net/url"
	"strconv"

	"github.com/google/uuid"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

// selector chooses objects by label and by name.
type selector struct {
	namespace string
	labels    labels.Selector
	fields    fields.Selector
}

func (r request) selector(query url.Values) (selector, error) {
	byLabel, err := labels.Parse(query.Get("labelSelector"))
	if err != nil {
		return selector{}, apierrors.NewBadRequest(err.Error())
	}
	byField, err := fields.ParseSelector(query.Get("fieldSelector"))
	if err != nil {
		return selector{}, apierrors.NewBadRequest(err.Error())
	}
	return selector{namespace: r.namespace, labels: byLabel, fields: byField}, nil
}

func (s selector) matches(object *unstructured.Unstructured) bool {
	return object != nil && (s.namespace == "" || s.namespace == object.GetNamespace()) &&
		s.labels.Matches(labels.Set(object.GetLabels())) &&
		s.fields.Matches(fields.Set{"metadata.name": object.GetName(), "metadata.namespace": object.GetNamespace()})
}

func (s *Server) list(req request, query url.Values) (any, error) {
	chosen, err := req.selector(query)
	if err != nil {
		return nil, err
	}
	limit, _ := strconv.Atoi(query.Get("limit"))
	s.mu.Lock()
	defer s.mu.Unlock()
	rest := page{version: s.version}
	if token := query.Get("continue"); token != "" {
		known := false
		if rest, known = s.pages[token]; !known {
			return nil, apierrors.NewResourceExpired("The provided continue parameter is too old to display a consistent list result. " +
				"You can start a new list without the continue parameter.")
		}
	} else {
		for _, object := range s.sortedLocked(req.kind.stored(), req.namespace) {
			if chosen.matches(object) {
				rest.objects = append(rest.objects, object)
			}
		}
	}
	meta, objects := map[string]any{"resourceVersion": strconv.FormatUint(rest.version, 10)}, rest.objects
	if limit > 0 && len(objects) > limit {
		token := uuid.NewString()
		s.pages[token] = page{version: rest.version, objects: objects[limit:]}
		meta["continue"] = token
		if chosen.labels.Empty() && chosen.fields.Empty() {
			meta["remainingItemCount"] = len(objects) - limit
		}
		objects = objects[:limit]
	}
	return req.showList(objects, meta), nil
}

// page is the rest of a list as it was when its first page was read.
type page struct {
	version uint64
	objects []*unstructured.Unstructured
}

func (r request) showList(objects []*unstructured.Unstructured, meta map[string]any) any {
	items := make([]any, len(objects))
	for i, object := range objects {
		items[i] = r.show(object)
	}
	list := map[string]any{"kind": r.kind.Kind + "List", "apiVersion": r.kind.GroupVersion().String(), "metadata": meta, "items": items}
	if r.metadataOnly {
		list["kind"], list["apiVersion"] = "PartialObjectMetadataList", metav1.SchemeGroupVersion.String()
	}
	return list
}

// Compact forgets everything but the present: watches from an older resourceVersion and continued lists get 410.
func (s *Server) Compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events, s.compacted = nil, s.version
	clear(s.pages)
}
