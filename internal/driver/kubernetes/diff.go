package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// differ is a look at one object. It sends nothing but reads and dry runs.
type differ struct {
	*work

	spec    []member
	changes []driver.Change
	more    int // changes beyond driver.ChangesMost
}

func (c *cluster) differ(ctx context.Context, ref driver.Ref) *differ {
	return &differ{work: &work{
		cluster: c, ctx: ctx, ref: ref, object: objectMark(ref), marks: c.marksOf(ref), memory: decode(ref.Memory),
	}}
}

// Diff compares each member with what a server-side dry run of its apply returns. A member that was not changed since it was applied
// takes one request for its metadata.
func (c *cluster) Diff(ctx context.Context, obj driver.Object) ([]driver.Change, error) {
	d := c.differ(ctx, obj.Ref)
	members, err := parse(obj.Spec)
	if err == nil {
		err = c.permit(members)
	}
	if err == nil {
		err = d.fits(members)
	}
	if err != nil {
		return []driver.Change{{Note: c.scrubber.Text(shown(err).Error())}}, nil
	}
	d.spec = members
	wanted := map[place]bool{}
	for _, m := range members {
		at, err := d.apply(m)
		if err != nil {
			return nil, err
		}
		wanted[at] = true
	}
	for at := range d.memory {
		if wanted[at] {
			delete(d.memory, at)
		}
	}
	return d.removals()
}

// DiffDelete returns the members that the cluster has.
func (c *cluster) DiffDelete(ctx context.Context, ref driver.Ref) ([]driver.Change, error) {
	d := c.differ(ctx, ref)
	if len(d.memory) == 0 {
		if err := d.recall(); err != nil {
			return nil, c.scrubber.Outcome(c.outcome(ctx, err)).Err
		}
	}
	return d.removals()
}

// apply compares a member with what the cluster has, and returns its place.
func (d *differ) apply(m member) (place, error) {
	_, err := d.mapper.find(d.ctx, m.at.GroupKind, m.gvk.Version)
	var unknown *unknownKindError
	if one, ok := d.definition(m.at.GroupKind); ok && errors.As(err, &unknown) {
		if one.namespaced && m.at.Namespace == "" {
			m.at.Namespace = d.namespace
		}
		d.whole(m.at, nil, m.body)
		return m.at, nil
	}
	t, out := d.locate(m)
	if out.Verdict != driver.VerdictDone {
		err := d.refused(m.at, out)
		if m.at.Namespace == "" {
			m.at.Namespace = d.namespace // where the member is that is remembered, as far as is known
		}
		return m.at, err
	}
	was := d.memory[t.at]
	now, out := d.look(t, was)
	if out.Verdict != driver.VerdictDone {
		return t.at, d.refused(t.at, out)
	}
	if now != nil && was.uid != "" && was.applied == t.applied && d.seen(t.at, now) == was {
		return t.at, nil // Apply leaves it alone, too
	}
	before, after, err := d.dryRun(t, now)
	if err != nil {
		return t.at, d.notApplied(t, now, err)
	}
	if before == nil {
		d.whole(t.at, nil, after)
		return t.at, nil
	}
	compare("", visible(t.at, before), visible(t.at, after), func(field string, from, to any) {
		d.add(driver.Change{Object: t.at.String(), Field: field, From: d.text(from), To: d.text(to)})
	})
	return t.at, nil
}

// dryRun returns a member as the cluster has it, nil if it does not, and as it would be if it were applied.
func (d *differ) dryRun(t target, now *metav1.PartialObjectMetadata) (before, after *unstructured.Unstructured, err error) {
	api := d.full.Resource(t.mapping.resource).Namespace(t.at.Namespace)
	if now != nil {
		if before, err = api.Get(d.ctx, t.at.Name, metav1.GetOptions{}); err != nil {
			return nil, nil, err //nolint:wrapcheck // by the caller
		}
	}
	text, err := d.marked(t, uidOf(now), now)
	if err != nil {
		return nil, nil, err
	}
	err = d.forced(now != nil, func(opts metav1.PatchOptions) (err error) {
		opts.DryRun = []string{metav1.DryRunAll}
		after, err = api.Patch(d.ctx, t.at.Name, types.ApplyPatchType, text, opts)
		return err //nolint:wrapcheck // by the caller
	})
	return before, after, err
}

// notApplied notes why an apply would be refused. What the spec itself makes first is no reason.
func (d *differ) notApplied(t target, now *metav1.PartialObjectMetadata, err error) error {
	found := conflicts(err)
	switch {
	case len(found) > 0:
		d.note(t.at, "refused: "+describe(found))
	case now != nil && immutable(err) && t.body.GetAnnotations()[markReplace] == "true":
		d.note(t.at, "a field of it is immutable: it is deleted and created anew")
	case missingNamespace(err) && d.makes(namespaceKind, t.at.Namespace):
		d.whole(t.at, nil, t.body)
	case errors.Is(err, errReplaced), apierrors.IsNotFound(err) && now != nil:
		return fmt.Errorf("%s: it was replaced or deleted while it was looked at", t.at)
	default:
		return d.refused(t.at, d.failed(t.at, err))
	}
	return nil
}

// makes reports whether the spec has a member of this kind and name.
func (d *differ) makes(kind schema.GroupKind, name string) bool {
	return slices.ContainsFunc(d.spec, func(m member) bool { return m.at.GroupKind == kind && m.at.Name == name })
}

// definition returns the definition of a kind, if the spec has it.
func (d *differ) definition(kind schema.GroupKind) (defined, bool) {
	for _, m := range d.spec {
		if one, ok := definitionOf(m); ok && one.kind == kind {
			return one, true
		}
	}
	return defined{}, false
}

// defined is what a CustomResourceDefinition says of its kind.
type defined struct {
	kind       schema.GroupKind
	plural     string
	namespaced bool
}

func definitionOf(m member) (defined, bool) {
	if rank(m.at.GroupKind) != rankDefinition {
		return defined{}, false
	}
	text := func(path ...string) string {
		value, _, _ := unstructured.NestedString(m.body.Object, append([]string{"spec"}, path...)...)
		return value
	}
	kind := schema.GroupKind{Group: text("group"), Kind: text("names", "kind")}
	return defined{kind, text("names", "plural"), text("scope") == "Namespaced"}, true
}

// removals adds the removal of everything in memory, and returns all changes.
func (d *differ) removals() ([]driver.Change, error) {
	gone := make([]known, 0, len(d.memory))
	for _, k := range d.memory {
		gone = append(gone, k)
	}
	slices.SortFunc(gone, func(a, b known) int { return a.at.compare(b.at) })
	for _, k := range gone {
		if err := d.removal(k); err != nil {
			return nil, err
		}
	}
	if d.more > 0 {
		d.changes[len(d.changes)-1] = driver.Change{Note: fmt.Sprintf("%d more changes", d.more+1)}
	}
	return d.changes, nil
}

func (d *differ) removal(k known) error {
	_, now, err := d.find(k)
	var unknown *unknownKindError
	switch {
	case errors.As(err, &unknown):
		return nil // its objects went with the kind
	case err != nil:
		return d.refused(k.at, d.failed(k.at, err))
	case now == nil:
		return nil
	case now.DeletionTimestamp != nil:
		d.note(k.at, "it is being deleted"+finalizers(now))
		return nil
	case slices.Contains(d.protected, k.at.GroupKind):
		d.note(k.at, "it is deleted only after reconciler.approve(): its kind is protected (options.protected)")
		return nil
	}
	mapping, err := d.mapper.find(d.ctx, k.at.GroupKind, "")
	if err != nil {
		return d.refused(k.at, d.failed(k.at, err))
	}
	live, err := d.full.Resource(mapping.resource).Namespace(k.at.Namespace).Get(d.ctx, k.at.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return d.refused(k.at, d.failed(k.at, err))
	}
	d.whole(k.at, live, nil)
	return nil
}

// refused notes why a call would not do what it is for, and returns an error if that is not known.
func (d *differ) refused(at place, out driver.Outcome) error {
	out = d.scrubber.Outcome(out)
	switch {
	case out.Verdict == driver.VerdictUnreachable, out.Verdict == driver.VerdictRetryAfter, d.ctx.Err() != nil:
		return out.Err
	}
	text := strings.TrimPrefix(out.Err.Error(), at.String()+": ")
	if out.Verdict != driver.VerdictWaiting {
		text = "refused: " + text
	}
	d.note(at, text)
	return nil
}

func (d *differ) note(at place, text string) {
	d.add(driver.Change{Object: at.String(), Note: d.scrubber.Text(text)})
}

// whole adds the creation of an object (before is nil), or its deletion.
func (d *differ) whole(at place, before, after *unstructured.Unstructured) {
	d.add(driver.Change{Object: at.String(), From: d.text(summary(at, before)), To: d.text(summary(at, after))})
}

func (d *differ) add(c driver.Change) {
	if len(d.changes) == driver.ChangesMost {
		d.more++
		return
	}
	d.changes = append(d.changes, c)
}
