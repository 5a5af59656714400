package kubernetes

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// looksMost is how often a member is looked at in one call while others replace it.
const looksMost = 3

var (
	namespaceKind = schema.GroupKind{Kind: "Namespace"}
	secretKind    = schema.GroupKind{Kind: "Secret"}
)

// errReplaced is an object that is another one than the one that was looked at.
var errReplaced = errors.New("the object was replaced while it was applied")

// target is a member on its way into the cluster.
type target struct {
	member

	api     metadata.ResourceInterface
	mapping *restMapping
	applied string // hash of its manifest
	exact   bool   // it is applied to the version that was looked at, and to no other
	handed  bool   // another row had it, and does not want it any more
}

// located returns the API of a member's kind, and its place, with the namespace that the kind has or has not.
func (w *work) located(m member) (*restMapping, place, error) {
	mapping, err := w.mapper.find(w.ctx, m.at.GroupKind, m.gvk.Version)
	if err == nil && mapping.namespaced && m.at.Namespace == "" {
		m.at.Namespace = w.namespace
	}
	return mapping, m.at, err
}

// bring applies a member, unless the cluster has it as it should be.
func (w *work) bring(m member) driver.Outcome {
	t, out := w.prepare(m)
	if out.Verdict != driver.VerdictDone {
		return out
	}
	was := w.memory[t.at]
	if was.uid == "" {
		w.memory[t.at] = known{at: t.at} // a call that ends without an answer may have created it
	}
	same := was.uid != "" && was.applied == t.applied
	look := same || len(w.ignore[t.at.GroupKind]) > 0 || w.lastOfAnother(t.at)
	var now *metav1.PartialObjectMetadata
	for range looksMost {
		uid := was.uid
		if look {
			if now, out = w.look(t, was); out.Verdict != driver.VerdictDone {
				return out
			}
			if t.handed = now != nil && w.ownerOf(now, w.ref) == ownerRow; t.handed {
				t.exact = true // whose it is may change until it is taken
			}
			if uid = uidOf(now); same && now != nil && w.ownerOf(now, w.ref) == ownerSelf && w.seen(t.at, now) == was {
				w.observed(t.at, now)
				return driver.Done()
			}
		}
		if out := w.fights.paused(t.at); same && out.Verdict != driver.VerdictDone {
			return out
		}
		after, err := w.patchOwned(t, uid, now)
		switch {
		case err == nil:
			if same {
				if why := w.fights.repaired(t.at, w.blame(now, after)); why != nil {
					w.log.Warn("repairs_pause", "resource", w.ref.Resource, "key", w.ref.Key, "error", why)
				}
			}
			w.memory[t.at] = w.seen(t.at, after)
			w.observed(t.at, after)
			return w.stays(t.at, after)
		case errors.Is(err, errReplaced):
			look = true
		case overOwner(conflicts(err)) && !t.exact: // whose it is now decides, and not who may be overruled
			look, t.exact = true, true
		default:
			return w.rejected(t, uid, err)
		}
	}
	return driver.Backoff(fmt.Errorf("%s: %w", t.at, errReplaced))
}

// look returns a member as the cluster has it, nil if it does not, and an outcome that is not done if it may not be changed.
func (w *work) look(t target, was known) (*metav1.PartialObjectMetadata, driver.Outcome) {
	now, err := t.api.Get(w.ctx, t.at.Name, metav1.GetOptions{})
	if err != nil && (!apierrors.IsNotFound(err) || missingKind(err)) {
		return nil, w.failed(t.at, err)
	}
	if err != nil {
		return nil, driver.Done()
	}
	return now, w.admit(t, now, was)
}

func uidOf(now *metav1.PartialObjectMetadata) string {
	if now == nil {
		return ""
	}
	return string(now.UID)
}

// prepare finds the API of a member, gives it its namespace and its hash, and makes the ApplySet list its place.
func (w *work) prepare(m member) (target, driver.Outcome) {
	t, out := w.locate(m)
	if out.Verdict != driver.VerdictDone {
		return t, out
	}
	err := w.cover(w.ctx, t.at)
	if missingNamespace(err) && t.at.GroupKind == namespaceKind && t.at.Name == w.set.namespace {
		err = nil // the ApplySet comes into this namespace, with the next call
	}
	if err != nil {
		return target{}, w.failed(t.at, err)
	}
	return t, driver.Done()
}

// locate finds the API of a member and gives it its namespace and its hash.
func (w *work) locate(m member) (target, driver.Outcome) {
	mapping, at, err := w.located(m)
	if err != nil {
		return target{}, w.failed(m.at, err)
	}
	t := target{member: m, mapping: mapping}
	switch {
	case mapping.namespaced:
		t.body.SetNamespace(at.Namespace)
	case at.Namespace != "":
		return target{}, driver.Terminal(fmt.Errorf("%s: objects of this kind have no namespace: take it out of the manifest", at))
	case len(w.namespaces) > 0 && len(w.kinds) == 0 && at.GroupKind != namespaceKind:
		return target{}, driver.Terminal(fmt.Errorf("%s: this target may touch some namespaces only (options.namespaces), and "+
			"the object is in none: name its kind in options.kinds", at))
	}
	t.at = at
	t.api = w.meta.Resource(mapping.resource).Namespace(at.Namespace)
	for _, p := range w.ignore[at.GroupKind] {
		p.remove(t.body.Object)
	}
	if t.applied, err = digest(t.member); err != nil {
		return target{}, driver.Terminal(shown(err))
	}
	return t, driver.Done()
}

// admit returns an outcome that is not done if the object that is there may not be changed.
func (w *work) admit(t target, now *metav1.PartialObjectMetadata, was known) driver.Outcome {
	who := w.ownerOf(now, w.ref)
	mine := who == ownerSelf || who == ownerNone && string(now.UID) == was.uid // somebody has taken our marks off
	switch {
	case mine || w.adopt && who != ownerRow:
		return w.stays(t.at, now)
	case who == ownerRow:
		return w.released(t.at, now)
	case who == ownerOther:
		err := w.former(now, was)
		if former, ok := errors.AsType[*formerError](err); err != nil && (!ok || former.was != "") {
			return w.failed(t.at, err)
		}
		return driver.Backoff(fmt.Errorf("%s: it belongs to another ApplySet or target (%s): remove it there, or set options.adopt",
			t.at, driver.Snippet([]byte(now.Labels[labelPartOf]), 100)))
	}
	return driver.Backoff(fmt.Errorf("%s: it exists, and was not created by this target: remove it, or set options.adopt to take it over", t.at))
}

// stays returns done, and waits if the object is on its way out.
func (w *work) stays(at place, now *metav1.PartialObjectMetadata) driver.Outcome {
	if now.DeletionTimestamp == nil {
		return driver.Done()
	}
	return w.waits.on(w.object, fmt.Sprintf("%s: it is being deleted, and is created anew when it is gone%s", at, finalizers(now)), 0)
}

func finalizers(now *metav1.PartialObjectMetadata) string {
	if len(now.Finalizers) == 0 {
		return ""
	}
	return fmt.Sprintf(" (finalizers: %s)", strings.Join(now.Finalizers, ", "))
}

// absent is a resourceVersion that no object has. Server-side apply with it creates an object, and is refused where there is one.
const absent = "1"

// patch applies a member to the object with this uid, or creates it if uid is empty. It returns errReplaced if the cluster has another
// object, or one where there should be none.
func (w *work) patch(t target, uid string, now *metav1.PartialObjectMetadata) (after *metav1.PartialObjectMetadata, err error) {
	text, err := w.marked(t, uid, now)
	if err != nil {
		return nil, err
	}
	err = w.forced(t.exact, func(opts metav1.PatchOptions) (err error) {
		after, err = t.api.Patch(w.ctx, t.at.Name, types.ApplyPatchType, text, opts)
		return err //nolint:wrapcheck // by the caller
	})
	return after, err
}

// marked returns the manifest of a member as it is sent for the object with this uid, or for none if uid is empty.
func (w *work) marked(t target, uid string, now *metav1.PartialObjectMetadata) ([]byte, error) {
	body := t.body.DeepCopy()
	w.marks.put(body, t.applied)
	if uid == "" {
		body.SetResourceVersion(absent)
	} else {
		body.SetUID(types.UID(uid))
	}
	if t.exact && now != nil {
		body.SetResourceVersion(now.ResourceVersion)
	}
	if err := w.handOver(t, now, body); err != nil {
		return nil, err
	}
	text, err := json.Marshal(body.Object)
	if err != nil {
		return nil, fmt.Errorf("write it as JSON: %w", err)
	}
	return text, nil
}

// forced sends a patch, and once more with force if managers refuse it that are to be overruled. The marks of an owner are overruled only
// if the object was looked at.
func (w *work) forced(looked bool, send func(metav1.PatchOptions) error) error {
	force := false
	for {
		err := send(metav1.PatchOptions{FieldManager: w.manager, Force: &force})
		found := conflicts(err)
		switch {
		case !force && w.overrules(found) && (looked || !overOwner(found)):
			force = true
		case err != nil && replaced(err):
			return errReplaced
		default:
			return err
		}
	}
}

// replaced reports whether a change was refused because the object is not the one with the uid, or the version, that it was for.
func replaced(err error) bool {
	uid := func(cause metav1.StatusCause) bool { return cause.Field == "metadata.uid" }
	return apierrors.IsConflict(err) && len(conflicts(err)) == 0 || slices.ContainsFunc(causesOf(err), uid)
}

// rejected classifies a refused change of a member. Where the row asks for it, an object with an immutable field is deleted, and
// created anew when it is gone.
func (w *work) rejected(t target, uid string, err error) driver.Outcome {
	if found := conflicts(err); len(found) > 0 {
		return driver.Backoff(fmt.Errorf("%s: %s", t.at, describe(found)))
	}
	if uid != "" && immutable(err) && t.body.GetAnnotations()[markReplace] == "true" {
		out := w.erase(known{at: t.at, uid: uid, applied: t.applied})
		if out.Verdict != driver.VerdictDone {
			return out
		}
		return driver.Waiting(waitLeast, fmt.Sprintf("%s: it was deleted, and is created anew", t.at))
	}
	return w.failed(t.at, err)
}
