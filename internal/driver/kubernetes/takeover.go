package kubernetes

import (
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// markPath is a field that only this driver applies.
var markPath = fieldpath.MakePathOrDie("metadata", "annotations", markApplied)

// formerly reports whether an entry in managedFields is that of another field manager of reconciler: ours from when options.field_manager
// was another one, or that of a target whose object is adopted.
func (c *cluster) formerly(entry *metav1.ManagedFieldsEntry) bool {
	return entry.Manager != c.manager && entry.Operation == metav1.ManagedFieldsOperationApply && entry.Subresource == "" &&
		fieldsIn(entry).Has(markPath)
}

// takeOver makes the entries that are ours under former names one under the present name, and reports whether there were any. Otherwise
// fields that the spec drops would stay, and fields that it changes would conflict.
func (w *work) takeOver(t target, now *metav1.PartialObjectMetadata) (taken bool, err error) {
	ours := metav1.ManagedFieldsEntry{Manager: w.manager, Operation: metav1.ManagedFieldsOperationApply, FieldsType: "FieldsV1"}
	fields, others := fieldpath.NewSet(), []metav1.ManagedFieldsEntry{}
	for i := range now.ManagedFields {
		entry := &now.ManagedFields[i]
		former := w.formerly(entry)
		if !former && entry != w.entryOf(now) {
			others = append(others, *entry)
			continue
		}
		taken = taken || former
		fields, ours.APIVersion = fields.Union(fieldsIn(entry)), entry.APIVersion
	}
	if !taken {
		return false, nil
	}
	text, err := fields.ToJSON()
	if err != nil {
		return false, fmt.Errorf("write the fields that it owns: %w", err)
	}
	ours.FieldsV1 = metav1.NewFieldsV1(string(text))
	patch, err := json.Marshal([]map[string]any{
		{"op": "replace", "path": "/metadata/managedFields", "value": append(others, ours)},
		{"op": "replace", "path": "/metadata/resourceVersion", "value": now.ResourceVersion}, // else it is refused
	})
	if err != nil {
		return false, fmt.Errorf("write it as JSON: %w", err)
	}
	_, err = t.api.Patch(w.ctx, t.at.Name, types.JSONPatchType, patch, metav1.PatchOptions{FieldManager: w.manager})
	return err == nil, err //nolint:wrapcheck // by the caller
}

// takes reports whether what other field managers of reconciler have applied is this row's, or is adopted.
func (w *work) takes(who owner) bool { return who == ownerSelf || w.adopt && who == ownerOther }

// patchOwned is patch, and once more after takeOver where the object is this row's or is adopted.
func (w *work) patchOwned(t target, uid string, now *metav1.PartialObjectMetadata) (after *metav1.PartialObjectMetadata, err error) {
	after, err = w.patch(t, uid, now)
	found := after
	if len(conflicts(err)) > 0 {
		if found = now; now == nil {
			found, _ = t.api.Get(w.ctx, t.at.Name, metav1.GetOptions{}) // without it the conflict stands
		}
	}
	if found == nil || string(found.UID) != uid || !t.handed && !w.takes(w.ownerOf(found, w.ref)) {
		return after, err
	}
	switch taken, failed := w.takeOver(t, found); {
	case failed != nil && apierrors.IsConflict(failed):
		return nil, errReplaced
	case failed != nil:
		return nil, failed
	case taken:
		return w.patch(t, uid, now)
	}
	return after, err
}
