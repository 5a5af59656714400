package kubernetes

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// handOver puts ignored fields that we own alone back into a manifest, with the values that they have in the cluster: left out, they
// would fall to their defaults. As soon as another manager owns a field, it is left out.
func (w *work) handOver(t target, now *metav1.PartialObjectMetadata, body *unstructured.Unstructured) error {
	if now == nil {
		return nil
	}
	var live *unstructured.Unstructured
	ours := w.entryOf(now)
	for _, p := range w.ignore[t.at.GroupKind] {
		if p.handedOver(ours, now.ManagedFields) {
			continue
		}
		if live == nil {
			var err error
			live, err = w.full.Resource(t.mapping.resource).Namespace(t.at.Namespace).Get(w.ctx, t.at.Name, metav1.GetOptions{})
			if err != nil {
				return err //nolint:wrapcheck // by the caller
			}
		}
		if value, ok := p.get(live.Object); ok {
			p.set(body.Object, value)
		}
	}
	return nil
}
