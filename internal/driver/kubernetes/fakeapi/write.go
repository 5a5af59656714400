package fakeapi

import (
	"encoding/base64"
	"errors"
	"fmt"
	"reflect"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/rand"
)

// changedMessage is registry.OptimisticLockErrorMsg of k8s.io/apiserver.
const changedMessage = "the object has been modified; please apply your changes to the latest version and try again"

// create stores an object that a client sent with POST.
func (s *Server) create(req request, object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if object.GetName() == "" && object.GetGenerateName() != "" {
		object.SetName(object.GetGenerateName() + rand.String(5))
	}
	req.name = object.GetName()
	if err := place(req, object); err != nil {
		return nil, err
	}
	if object.GetResourceVersion() != "" {
		return nil, apierrors.NewBadRequest("resourceVersion should not be set on objects to be created")
	}
	object, err := owned(req, req.kind.empty(), object)
	if err != nil {
		return nil, err
	}
	return s.insertLocked(req, object)
}

// place puts the object where the path of the request is.
func place(req request, object *unstructured.Unstructured) error {
	if namespace := object.GetNamespace(); namespace != "" && namespace != req.namespace {
		return apierrors.NewBadRequest("the namespace of the provided object does not match the namespace sent on the request")
	}
	if name := object.GetName(); name != req.name {
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match the name on the URL (%s)", name, req.name))
	}
	if req.namespace != "" {
		object.SetNamespace(req.namespace)
	}
	if kind := object.GetKind(); kind != "" && kind != req.kind.Kind {
		return apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: no kind %q is registered for version %q",
			kind, object.GetAPIVersion(), req.kind.Kind, kind, object.GetAPIVersion()))
	}
	object.SetGroupVersionKind(req.kind.GroupVersionKind)
	return nil
}

func (s *Server) insertLocked(req request, object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	if err := s.checkNamespaceLocked(req); err != nil {
		return nil, err
	}
	s.bornLocked(req, object)
	if s.admit != nil {
		if err := s.admit(object); err != nil {
			return nil, err
		}
	}
	if err := validate(req.kind, nil, object); err != nil {
		return nil, err
	}
	if s.findLocked(req) != nil {
		return nil, apierrors.NewAlreadyExists(req.kind.groupResource(), req.name)
	}
	if !req.dry {
		s.putLocked(req.kind.stored(), nil, object)
	}
	return object, nil
}

// update stores an object that a client sent with PUT.
func (s *Server) update(req request, object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := place(req, object); err != nil {
		return nil, err
	}
	old := s.findLocked(req)
	if old == nil {
		return nil, apierrors.NewNotFound(req.kind.groupResource(), req.name)
	}
	if uid := object.GetUID(); uid != "" && uid != old.GetUID() {
		return nil, apierrors.NewConflict(req.kind.groupResource(), req.name, fmt.Errorf(
			"StorageError: invalid object, Code: 4, Key: /registry/%s/%s, ResourceVersion: 0, AdditionalErrorMsg: "+
				"Precondition failed: UID in precondition: %s, UID in object meta: %s",
			req.kind.resource, storeKey(req.namespace, req.name), uid, old.GetUID()))
	}
	object, err := owned(req, old, keep(req, old, object))
	if err != nil {
		return nil, err
	}
	return s.replaceLocked(req, old, object)
}

// keep gives the new object what the request cannot change: its status, or everything but that.
func keep(req request, old, object *unstructured.Unstructured) *unstructured.Unstructured {
	from, to := old, object
	if req.sub == "status" {
		from, to = object, old.DeepCopy()
		to.SetResourceVersion(object.GetResourceVersion())
		to.SetManagedFields(object.GetManagedFields())
	}
	if !req.kind.status {
		return to
	}
	if status, has := from.Object["status"]; has {
		to.Object["status"] = status
	} else {
		delete(to.Object, "status")
	}
	return to
}

func (s *Server) replaceLocked(req request, old, object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	resource := req.kind.groupResource()
	if version := object.GetResourceVersion(); version == "" {
		object.SetResourceVersion(old.GetResourceVersion())
	} else if version != old.GetResourceVersion() {
		return nil, apierrors.NewConflict(resource, req.name, errors.New(changedMessage))
	}
	object.SetCreationTimestamp(old.GetCreationTimestamp())
	object.SetDeletionTimestamp(old.GetDeletionTimestamp())
	object.SetDeletionGracePeriodSeconds(old.GetDeletionGracePeriodSeconds())
	object.SetGeneration(old.GetGeneration())
	if object.GetUID() == "" {
		object.SetUID(old.GetUID())
	}
	if req.kind.status && !reflect.DeepEqual(old.Object["spec"], object.Object["spec"]) {
		object.SetGeneration(old.GetGeneration() + 1)
	}
	if s.admit != nil {
		if err := s.admit(object); err != nil {
			return nil, err
		}
	}
	if err := validate(req.kind, old, object); err != nil {
		return nil, err
	}
	if same(old, object) {
		return old, nil
	}
	if req.dry {
		return object, nil
	}
	if object.GetDeletionTimestamp() != nil && len(object.GetFinalizers()) == 0 && resource != namespaces {
		s.removeLocked(req.kind.stored(), object)
		return object, nil
	}
	s.putLocked(req.kind.stored(), old, object)
	return object, nil
}

// moveStringData moves stringData of a Secret to data, as its conversion from a version does.
func moveStringData(object *unstructured.Unstructured) error {
	if object.GroupVersionKind() != (schema.GroupVersionKind{Version: "v1", Kind: "Secret"}) {
		return nil
	}
	texts, _, err := unstructured.NestedStringMap(object.Object, "stringData")
	delete(object.Object, "stringData")
	for name, text := range texts {
		if err == nil {
			err = unstructured.SetNestedField(object.Object, base64.StdEncoding.EncodeToString([]byte(text)), "data", name)
		}
	}
	return err
}

// same is true if nothing but times of managed fields differs.
func same(old, object *unstructured.Unstructured) bool {
	bare := func(o *unstructured.Unstructured) map[string]any {
		o = o.DeepCopy()
		entries := o.GetManagedFields()
		for i := range entries {
			entries[i].Time = nil
		}
		o.SetManagedFields(entries)
		return o.Object
	}
	return reflect.DeepEqual(bare(old), bare(object))
}

// remove deletes an object, or marks it if something has to happen first. done is false in the second case.
func (s *Server) remove(req request, options *metav1.DeleteOptions) (object *unstructured.Unstructured, done bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, resource := s.findLocked(req), req.kind.groupResource()
	if old == nil {
		return nil, false, apierrors.NewNotFound(resource, req.name)
	}
	if err := checkPreconditions(req, options.Preconditions, old); err != nil {
		return nil, false, err
	}
	object = old.DeepCopy()
	if policy := options.PropagationPolicy; policy != nil {
		wait := map[metav1.DeletionPropagation]string{
			metav1.DeletePropagationForeground: metav1.FinalizerDeleteDependents, metav1.DeletePropagationOrphan: metav1.FinalizerOrphanDependents,
		}[*policy]
		if finalizers := object.GetFinalizers(); wait != "" && !slices.Contains(finalizers, wait) {
			object.SetFinalizers(append(finalizers, wait))
		}
	}
	if len(object.GetFinalizers()) == 0 && resource != namespaces {
		s.removeLocked(req.kind.stored(), old)
		return old, true, nil
	}
	if object.GetDeletionTimestamp() == nil {
		now, none := metav1.Now().Rfc3339Copy(), int64(0)
		object.SetDeletionTimestamp(&now)
		object.SetDeletionGracePeriodSeconds(&none)
		if req.kind.status && object.GetGeneration() > 0 {
			object.SetGeneration(object.GetGeneration() + 1)
		}
		if resource == namespaces {
			object.Object["status"] = map[string]any{"phase": "Terminating"}
		}
	}
	if same(old, object) {
		return old, false, nil
	}
	s.putLocked(req.kind.stored(), old, object)
	return object, false, nil
}

func checkPreconditions(req request, want *metav1.Preconditions, old *unstructured.Unstructured) error {
	if want == nil {
		return nil
	}
	resource := schema.GroupResource{Group: req.kind.Group, Resource: req.kind.Kind} // as rest.BeforeDelete of k8s.io/apiserver has it
	if want.UID != nil && *want.UID != old.GetUID() {
		return apierrors.NewConflict(resource, req.name, fmt.Errorf(
			"the UID in the precondition (%s) does not match the UID in record (%s). The object might have been deleted and then recreated",
			*want.UID, old.GetUID()))
	}
	if want.ResourceVersion != nil && *want.ResourceVersion != old.GetResourceVersion() {
		return apierrors.NewConflict(resource, req.name, fmt.Errorf(
			"the ResourceVersion in the precondition (%s) does not match the ResourceVersion in record (%s). The object might have been modified",
			*want.ResourceVersion, old.GetResourceVersion()))
	}
	return nil
}
