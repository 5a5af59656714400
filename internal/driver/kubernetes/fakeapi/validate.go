package fakeapi

import (
	"reflect"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// immutable are fields that the real server rejects a change of, by kind.
var immutable = map[string][]string{
	"Deployment": {"spec", "selector"}, "StatefulSet": {"spec", "selector"}, "DaemonSet": {"spec", "selector"}, "Job": {"spec", "template"},
}

// validate returns the error of writing object instead of old, which is nil for a new one. Only metadata and what cannot
// change are looked at.
func validate(k *kind, old, object *unstructured.Unstructured) error {
	meta := field.NewPath("metadata")
	name := validation.NameIsDNSSubdomain
	switch k.Kind {
	case "Namespace":
		name = validation.NameIsDNSLabel
	case "Service":
		name = validation.NameIsDNS1035Label
	case "Role", "ClusterRole":
		name = func(string, bool) []string { return nil }
	}
	errs := validation.ValidateObjectMetaAccessor(object, k.namespaced, name, meta)
	if old != nil {
		// The real server looks twice: once for every kind, once for this one.
		errs = append(errs, validation.ValidateObjectMetaAccessorUpdate(object, old, meta)...)
		errs = append(errs, validation.ValidateObjectMetaAccessorUpdate(object, old, meta)...)
		errs = append(errs, unchanged(old, object)...)
	}
	if len(errs) > 0 {
		return apierrors.NewInvalid(k.GroupKind(), object.GetName(), errs)
	}
	return nil
}

func unchanged(old, object *unstructured.Unstructured) field.ErrorList {
	var errs field.ErrorList
	if path := immutable[object.GetKind()]; path != nil {
		before, _, _ := unstructured.NestedFieldNoCopy(old.Object, path...)
		after, _, _ := unstructured.NestedFieldNoCopy(object.Object, path...)
		if !reflect.DeepEqual(before, after) {
			errs = append(errs, field.Invalid(field.NewPath(path[0], path[1:]...), after, validation.FieldImmutableErrorMsg))
		}
	}
	if kind := object.GetKind(); (kind != "ConfigMap" && kind != "Secret") || old.Object["immutable"] != true {
		return errs
	}
	if object.Object["immutable"] != true {
		errs = append(errs, field.Forbidden(field.NewPath("immutable"), "field is immutable when `immutable` is set"))
	}
	for _, name := range []string{"data", "binaryData"} {
		if !reflect.DeepEqual(old.Object[name], object.Object[name]) {
			errs = append(errs, field.Forbidden(field.NewPath(name), "field is immutable when `immutable` is set"))
		}
	}
	return errs
}
