package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// formerError is an object that this target has applied as a member of the ApplySet of another namespace. It cannot be forgotten. Nor can it
// be deleted without a word of the user's: one of the same name may have come in its place.
type formerError struct {
	was, now string // options.namespace; was is "" if it is not known
	set      string // the ApplySet that the object is a member of
}

func (e *formerError) Error() string {
	const leave = "or remove the label " + labelObject + " from the object to leave it there"
	if e.was == "" {
		return fmt.Sprintf("this target has applied it, and it belongs to another ApplySet now (%s): if options.namespace was changed, set it back; "+
			"or delete the object, %s", driver.Snippet([]byte(e.set), 100), leave)
	}
	return fmt.Sprintf("it was applied while options.namespace was %q, which is %q now: set it back, set options.adopt to take over what was "+
		"applied before, %s", e.was, e.now, leave)
}

// owned reports whether an object is the member that is remembered: it has our marks, or it is the one that we applied and nobody has put
// marks on it. It returns a *formerError for one of a former namespace, unless that is known and its objects are adopted.
func (w *work) owned(now *metav1.PartialObjectMetadata, k known) (bool, error) {
	switch who := w.ownerOf(now, w.ref); {
	case who == ownerSelf || who == ownerNone && string(now.UID) == k.uid:
		return true, nil
	case who != ownerOther:
		return false, nil
	}
	err := w.former(now, k)
	if former, ok := errors.AsType[*formerError](err); ok && w.adopt && former.was != "" {
		return true, nil
	}
	return false, err
}

// former returns a *formerError if another target's object, by its ApplySet, is a member of ours that is remembered. A copy of the database
// remembers the original's, too: the ApplySet tells whose it is.
func (w *work) former(now *metav1.PartialObjectMetadata, k known) error {
	if now.Labels[labelObject] != w.object || string(now.UID) != k.uid {
		return nil
	}
	of := func(namespace string) bool { return now.Labels[labelPartOf] == newApplySet(w.target, namespace).id }
	namespaces := []string{k.at.Namespace} // members that name no namespace lie in that of their ApplySet
	for at := range w.memory {
		namespaces = append(namespaces, at.Namespace)
	}
	found := slices.IndexFunc(namespaces, of)
	if found < 0 {
		return &formerError{now: w.namespace, set: now.Labels[labelPartOf]}
	}
	foreign, err := w.foreign(w.ctx, namespaces[found])
	if err != nil || foreign {
		return err
	}
	return &formerError{was: namespaces[found], now: w.namespace}
}

// foreign reports whether the ApplySet of this target's name in a namespace is another owner's.
func (c *cluster) foreign(ctx context.Context, namespace string) (bool, error) {
	parent, err := c.meta.Resource(configMaps).Namespace(namespace).Get(ctx, c.set.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("ConfigMap %s in %s, which lists the kinds of this target: %w", c.set.name, namespace, err)
	}
	mark := parent.Annotations[markOwner]
	return mark != "" && c.set.owner != nil && c.set.owner.Check([]byte(mark)) != nil, nil
}

// leavesFormer returns a *formerError if members of a former namespace would go: what the spec names now would be made beside them.
func (w *work) leavesFormer(members []member) error {
	named := map[place]bool{}
	for _, m := range members {
		named[m.at] = true
		if m.at.Namespace == "" {
			named[place{GroupKind: m.at.GroupKind, Namespace: w.namespace, Name: m.at.Name}] = true
		}
	}
	for _, at := range slices.SortedFunc(maps.Keys(w.memory), place.compare) {
		if named[at] {
			continue
		}
		_, _, err := w.find(w.memory[at])
		if former, ok := errors.AsType[*formerError](err); ok {
			return fmt.Errorf("%s: %w", at, former)
		}
	}
	return nil
}
