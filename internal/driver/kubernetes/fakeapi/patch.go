package fakeapi

import (
	"encoding/json"
	"fmt"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// patch answers PATCH. Strategic merge patches are merged as JSON merge patches: lists are replaced.
func (s *Server) patch(req request, patchType types.PatchType, body []byte, options *metav1.PatchOptions) (object *unstructured.Unstructured, created bool, err error) {
	if errs := metavalidation.ValidatePatchOptions(options, patchType); len(errs) > 0 {
		return nil, false, apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "PatchOptions"}, "", errs)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.findLocked(req)
	if old == nil && (patchType != types.ApplyYAMLPatchType || req.sub != "") {
		return nil, false, apierrors.NewNotFound(req.kind.groupResource(), req.name)
	}
	live := old
	if old == nil {
		live = req.kind.empty()
	}
	object, err = patched(req, live, patchType, body, options)
	if err != nil {
		return nil, false, err
	}
	if old == nil && object.GetUID() != "" {
		return nil, false, apierrors.NewConflict(req.kind.groupResource(), req.name,
			fmt.Errorf("uid mismatch: the provided object specified uid %s, and no existing object was found", object.GetUID()))
	}
	if err := place(req, object); err != nil {
		return nil, false, err
	}
	if old == nil {
		object, err = s.insertLocked(req, object)
		return object, true, err
	}
	object, err = s.replaceLocked(req, old, keep(req, old, object))
	return object, false, err
}

func patched(req request, live *unstructured.Unstructured, patchType types.PatchType, body []byte, options *metav1.PatchOptions) (*unstructured.Unstructured, error) {
	if patchType == types.ApplyYAMLPatchType {
		return apply(req, live, body, options.Force != nil && *options.Force)
	}
	before, err := live.MarshalJSON()
	if err != nil {
		return nil, err
	}
	var after []byte
	if patchType == types.JSONPatchType {
		var operations jsonpatch.Patch
		if operations, err = jsonpatch.DecodePatch(body); err == nil {
			after, err = operations.Apply(before)
		}
	} else {
		after, err = jsonpatch.MergePatch(before, body)
	}
	if err != nil {
		return nil, apierrors.NewGenericServerResponse(422, "", schema.GroupResource{}, "", err.Error(), 0, false)
	}
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(after); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return owned(req, live, object)
}

func apply(req request, live *unstructured.Unstructured, body []byte, force bool) (*unstructured.Unstructured, error) {
	wanted := &unstructured.Unstructured{}
	text, err := yaml.ToJSON(body)
	if err == nil {
		err = json.Unmarshal(text, &wanted.Object)
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("error decoding YAML: %v", err))
	}
	manager, err := req.kind.fieldManager(req.sub)
	if err != nil {
		return nil, err
	}
	object, err := manager.Apply(live.DeepCopy(), wanted, req.manager, force)
	if err != nil {
		return nil, err
	}
	return object.(*unstructured.Unstructured), moveStringData(object.(*unstructured.Unstructured)) // the manager owns it as it was applied
}

// owned returns the new object with what its writer now owns.
func owned(req request, live, object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	manager, err := req.kind.fieldManager(req.sub)
	if err == nil {
		err = moveStringData(object)
	}
	if err != nil {
		return nil, err
	}
	return manager.UpdateNoErrors(live.DeepCopy(), object, req.manager).(*unstructured.Unstructured), nil
}

func (k *kind) empty() *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(k.GroupVersionKind)
	return object
}

func (k *kind) fieldManager(sub string) (*managedfields.FieldManager, error) {
	reset := map[fieldpath.APIVersion]fieldpath.Filter{}
	if k.status {
		ignored := fieldpath.NewSet(fieldpath.MakePathOrDie("status"))
		if sub == "status" {
			ignored = fieldpath.NewSet(fieldpath.MakePathOrDie("spec"), fieldpath.MakePathOrDie("metadata"))
		}
		reset[fieldpath.APIVersion(k.GroupVersion().String())] = fieldpath.NewExcludeSetFilter(ignored)
	}
	return managedfields.NewDefaultCRDFieldManager(k.converter, versions{}, versions{}, versions{}, k.GroupVersionKind, k.GroupVersion(), sub, reset)
}

// versions converts between versions of a kind as CustomResourceDefinitions without a webhook do: only apiVersion differs.
type versions struct{}

func (versions) Default(runtime.Object) {}

func (versions) New(gvk schema.GroupVersionKind) (runtime.Object, error) {
	return (&kind{GroupVersionKind: gvk}).empty(), nil
}

func (versions) Convert(in, out, _ any) error {
	in.(*unstructured.Unstructured).DeepCopyInto(out.(*unstructured.Unstructured))
	return nil
}

func (versions) ConvertToVersion(in runtime.Object, target runtime.GroupVersioner) (runtime.Object, error) {
	object := in.(*unstructured.Unstructured).DeepCopy()
	gvk, ok := target.KindForGroupVersionKinds(groupsOf(object.GroupVersionKind()))
	if !ok {
		return nil, fmt.Errorf("%v has no version %v", object.GroupVersionKind(), target)
	}
	object.SetGroupVersionKind(gvk)
	return object, nil
}

func (versions) ConvertFieldLabel(_ schema.GroupVersionKind, label, value string) (string, string, error) {
	return label, value, nil
}
