package fakeapi

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

var (
	namespaces = schema.GroupResource{Resource: "namespaces"}
	crds       = schema.GroupResource{Group: crdGroup, Resource: crdResource}
)

// event is a write. old is nil for the first of an object, object for the last: then old has the version of the delete.
type event struct {
	version     uint64
	resource    schema.GroupResource
	old, object *unstructured.Unstructured
}

func storeKey(namespace, name string) string { return namespace + "/" + name }

func (s *Server) findLocked(req request) *unstructured.Unstructured {
	return req.kind.version(s.stored[req.kind.stored()][storeKey(req.namespace, req.name)])
}

// version returns a stored object in the version of the kind.
func (k *kind) version(object *unstructured.Unstructured) *unstructured.Unstructured {
	if object == nil || object.GetAPIVersion() == k.GroupVersion().String() {
		return object
	}
	object = object.DeepCopy()
	object.SetGroupVersionKind(k.GroupVersionKind)
	return object
}

// putLocked stores object instead of old (nil: there is none) and gives it its new resourceVersion.
func (s *Server) putLocked(resource schema.GroupResource, old, object *unstructured.Unstructured) {
	s.version++
	object.SetResourceVersion(strconv.FormatUint(s.version, 10))
	if s.stored[resource] == nil {
		s.stored[resource] = map[string]*unstructured.Unstructured{}
	}
	s.stored[resource][storeKey(object.GetNamespace(), object.GetName())] = object
	s.events = append(s.events, event{version: s.version, resource: resource, old: old, object: object})
	if resource == crds {
		s.serveLocked(object)
	}
	s.wakeLocked()
}

func (s *Server) removeLocked(resource schema.GroupResource, old *unstructured.Unstructured) {
	s.version++
	delete(s.stored[resource], storeKey(old.GetNamespace(), old.GetName()))
	last := old.DeepCopy()
	last.SetResourceVersion(strconv.FormatUint(s.version, 10))
	s.events = append(s.events, event{version: s.version, resource: resource, old: last})
	if resource == crds {
		for _, k := range defined(old) {
			delete(s.served, k.versionResource())
			delete(s.stored, k.groupResource())
		}
	}
	s.wakeLocked()
}

// Snapshot returns a function that restores the server to what it has now, as a restore of etcd does: it ends all watches.
func (s *Server) Snapshot() (restore func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	version, stored := s.version, cloned(s.stored)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.version, s.stored = version, cloned(stored)
		s.events = slices.DeleteFunc(s.events, func(e event) bool { return e.version > version })
		s.cuts++
		s.wakeLocked()
	}
}

func cloned(stored map[schema.GroupResource]map[string]*unstructured.Unstructured) map[schema.GroupResource]map[string]*unstructured.Unstructured {
	all := maps.Clone(stored)
	for resource, objects := range all {
		all[resource] = maps.Clone(objects)
	}
	return all
}

func (s *Server) wakeLocked() {
	close(s.written)
	s.written = make(chan struct{})
}

// sortedLocked returns the objects of a resource in order of namespace and name, those of one namespace if it is not empty.
func (s *Server) sortedLocked(resource schema.GroupResource, namespace string) []*unstructured.Unstructured {
	var objects []*unstructured.Unstructured
	for _, key := range slices.Sorted(maps.Keys(s.stored[resource])) {
		if namespace == "" || strings.HasPrefix(key, namespace+"/") {
			objects = append(objects, s.stored[resource][key])
		}
	}
	return objects
}

// HoldCRDs has CustomResourceDefinitions wait for EstablishCRDs.
func (s *Server) HoldCRDs() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.crdsWait = true
}

// EstablishCRDs serves the kinds of all CustomResourceDefinitions, and from now on those of new ones at once.
func (s *Server) EstablishCRDs() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.crdsWait = false
	for _, crd := range s.sortedLocked(crds, "") {
		s.putLocked(crds, crd, establish(crd.DeepCopy()))
	}
}

func established(crd *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(crd.Object, "status", "conditions")
	return len(conditions) > 0
}

func establish(crd *unstructured.Unstructured) *unstructured.Unstructured {
	names, _, _ := unstructured.NestedMap(crd.Object, "spec", "names")
	conditions := []any{
		map[string]any{"type": "NamesAccepted", "status": "True", "reason": "NoConflicts", "message": "no conflicts found"},
		map[string]any{"type": "Established", "status": "True", "reason": "InitialNamesAccepted", "message": "the initial names have been accepted"},
	}
	crd.Object["status"] = map[string]any{"acceptedNames": names, "conditions": conditions}
	return crd
}

func (s *Server) serveLocked(crd *unstructured.Unstructured) {
	if !established(crd) {
		return
	}
	for _, k := range defined(crd) {
		s.served[k.versionResource()] = k
	}
}

// FinishNamespace ends a Terminating namespace with everything in it, as the namespace controller does.
func (s *Server) FinishNamespace(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for resource := range s.stored {
		for _, object := range s.sortedLocked(resource, name) {
			s.removeLocked(resource, object)
		}
	}
	if namespace := s.stored[namespaces][storeKey("", name)]; namespace != nil {
		s.removeLocked(namespaces, namespace)
	}
}

// checkNamespaceLocked returns the error of creating an object where its namespace is missing or ends.
func (s *Server) checkNamespaceLocked(req request) error {
	if !req.kind.namespaced {
		return nil
	}
	namespace := s.stored[namespaces][storeKey("", req.namespace)]
	if namespace == nil {
		return apierrors.NewNotFound(namespaces, req.namespace)
	}
	if namespace.GetDeletionTimestamp() == nil {
		return nil
	}
	err := apierrors.NewForbidden(req.kind.groupResource(), req.name,
		terminating("unable to create new content in namespace "+req.namespace+" because it is being terminated"))
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{
		Type: "NamespaceTerminating", Message: "namespace " + req.namespace + " is being terminated", Field: "metadata.namespace",
	})
	return err
}

type terminating string

func (t terminating) Error() string { return string(t) }

// bornLocked fills what the server gives a new object.
func (s *Server) bornLocked(req request, object *unstructured.Unstructured) {
	object.SetUID(types.UID(uuid.NewString()))
	object.SetCreationTimestamp(metav1.Now().Rfc3339Copy())
	if _, has := object.Object["spec"]; has && req.kind.status {
		object.SetGeneration(1)
	}
	switch req.kind.groupResource() {
	case namespaces:
		labels := object.GetLabels()
		if labels == nil {
			labels = map[string]string{}
		}
		labels["kubernetes.io/metadata.name"] = object.GetName()
		object.SetLabels(labels)
		object.Object["spec"] = map[string]any{"finalizers": []any{"kubernetes"}}
		object.Object["status"] = map[string]any{"phase": "Active"}
	case crds:
		if !s.crdsWait {
			establish(object)
		}
	}
}
