package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/metadata"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// Delete removes the members of an object, those first that others may need, and is done when all are gone. It removes none before a
// person has approved that protected ones go.
func (c *cluster) Delete(ctx context.Context, ref driver.Ref) driver.Outcome {
	if ctx.Err() != nil {
		return driver.Backoff(context.Cause(ctx))
	}
	defer c.calling(ref)()
	if err := c.verify(ctx); err != nil {
		return c.scrubber.Outcome(c.outcome(ctx, err))
	}
	w := c.work(ctx, ref)
	if len(w.memory) == 0 { // it was lost, or the first call was never recorded
		if err := w.recall(); err != nil {
			return c.scrubber.Outcome(c.outcome(ctx, err))
		}
	}
	all := make([]known, 0, len(w.memory))
	for at, k := range w.memory {
		w.dropClaim(at, rowName{ref.Resource, ref.Key})
		all = append(all, k)
	}
	out := w.approval(all)
	if out.Verdict == driver.VerdictDone {
		out = w.removeAll(all)
	}
	if out.Verdict == driver.VerdictDone {
		c.waits.over(w.object)
	}
	return c.finish(out, w.memory)
}

// mayRemove asks the guard once for the members that a spec has lost. What has passed it is remembered, so that an attempt that is made
// again does not count again. Members of protected kinds are not counted: each waits for approval. Nor are those that other rows have or
// take over.
func (w *work) mayRemove(gone []known) driver.Outcome {
	var asks []known
	for _, k := range gone {
		_, claimed, err := w.claimed(k.at)
		switch {
		case err != nil:
			return driver.Backoff(err)
		case !claimed && k.applied != passed && !slices.Contains(w.protected, k.at.GroupKind) && !w.lastOfAnother(k.at):
			asks = append(asks, k)
		}
	}
	if !w.ref.MayRemove(len(asks)) {
		first := slices.MinFunc(asks, func(a, b known) int { return a.at.compare(b.at) })
		return driver.Unapproved(fmt.Errorf("objects that the spec no longer names would be deleted: %d, %s the first, and the guard allows no "+
			"more deletes now", len(asks), first.at))
	}
	for _, k := range asks {
		k.applied = passed
		w.memory[k.at] = k
	}
	return driver.Done()
}

// approval returns Unapproved if the removal of a member needs approval, else Done.
func (w *work) approval(members []known) driver.Outcome {
	for _, k := range members {
		if !slices.Contains(w.protected, k.at.GroupKind) {
			continue
		}
		_, now, err := w.find(k)
		var unknown *unknownKindError
		switch {
		case errors.As(err, &unknown):
			continue // its objects went with the kind
		case err != nil:
			return w.failed(k.at, err)
		case now == nil || !w.unapproved(k, now):
			continue
		}
		switch _, claimed, err := w.claimed(k.at); {
		case err != nil:
			return driver.Backoff(err)
		case !claimed:
			return unapproved(k)
		}
	}
	return driver.Done()
}

// unapproved reports whether a member is of a protected kind, and its removal was not approved.
func (w *work) unapproved(k known, now *metav1.PartialObjectMetadata) bool {
	return slices.Contains(w.protected, k.at.GroupKind) && now.DeletionTimestamp == nil && !w.ref.Approved
}

func unapproved(k known) driver.Outcome {
	return driver.Unapproved(fmt.Errorf("%s would be deleted, and its kind is protected (options.protected)", k.at))
}

// recall finds the members by their marks.
func (w *work) recall() error {
	has, err := w.coverage(w.ctx)
	if err != nil {
		return err
	}
	return w.each(w.ctx, has, labelObject+"="+w.object, func(at place, meta *metav1.PartialObjectMetadata) {
		if !has.elsewhere(at, w.entryOf(meta)) {
			w.memory[at] = w.seen(at, meta)
		}
	})
}

// removeAll removes members in reverse order of their ranks; a rank is begun when the one before is gone.
func (w *work) removeAll(members []known) driver.Outcome {
	slices.SortFunc(members, func(a, b known) int {
		if ra, rb := rank(a.at.GroupKind), rank(b.at.GroupKind); ra != rb {
			return rb - ra
		}
		return b.at.compare(a.at)
	})
	out := driver.Done()
	for i, k := range members {
		if i > 0 && rank(k.at.GroupKind) != rank(members[i-1].at.GroupKind) && out.Verdict != driver.VerdictDone {
			break
		}
		if w.ctx.Err() != nil {
			return driver.Backoff(context.Cause(w.ctx))
		}
		one := w.remove(k)
		if one.Verdict == driver.VerdictUnreachable {
			return one
		}
		if one.Verdict == driver.VerdictDone {
			delete(w.memory, k.at)
		}
		out = worse(out, one)
	}
	return out
}

// remove deletes a member that is ours and that no other row takes over, and is done when it is gone.
func (w *work) remove(k known) driver.Outcome {
	row, claimed, err := w.claimed(k.at)
	switch {
	case err != nil:
		return driver.Backoff(err)
	case !claimed:
		return w.erase(k)
	}
	_, now, err := w.find(k)
	var unknown *unknownKindError
	switch {
	case errors.As(err, &unknown), err == nil && now == nil:
		return driver.Done()
	case err != nil:
		return w.failed(k.at, err)
	}
	return w.waits.on(w.object, fmt.Sprintf("%s: %s %q names it now, and takes it over", k.at, row.resource, row.key), 0)
}

// erase deletes a member that is ours, and is done when it is gone. The version that was looked at is deleted, and no other: another row
// may have taken it over since.
func (w *work) erase(k known) driver.Outcome {
	for looks := 1; ; looks++ {
		api, now, err := w.find(k)
		var unknown *unknownKindError
		switch {
		case errors.As(err, &unknown):
			return driver.Done() // its objects went with the kind
		case err != nil:
			return w.failed(k.at, err)
		case now == nil:
			return driver.Done()
		case now.DeletionTimestamp != nil:
			return w.waits.on(w.object, fmt.Sprintf("%s: it is being deleted%s", k.at, finalizers(now)), 0)
		case w.unapproved(k, now):
			return unapproved(k)
		}
		w.removes(k.at)
		err = api.Delete(w.ctx, k.at.Name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &now.UID, ResourceVersion: &now.ResourceVersion}, PropagationPolicy: &w.propagation,
		})
		switch {
		case err == nil || apierrors.IsNotFound(err):
		case !apierrors.IsConflict(err):
			return w.failed(k.at, err)
		case looks == looksMost:
			return w.waits.on(w.object, fmt.Sprintf("%s: others change it at the moment that it is to be deleted", k.at), 0)
		}
	}
}

// find returns the API of a member's kind, and the member as the cluster has it; nil: it has none, or one that is not ours.
func (w *work) find(k known) (metadata.ResourceInterface, *metav1.PartialObjectMetadata, error) {
	for again := false; ; again = true {
		mapping, err := w.mapper.find(w.ctx, k.at.GroupKind, "")
		if err != nil {
			return nil, nil, err
		}
		api := w.meta.Resource(mapping.resource).Namespace(k.at.Namespace)
		now, err := api.Get(w.ctx, k.at.Name, metav1.GetOptions{})
		switch {
		case missingKind(err) && !again:
			w.mapper.expire() // the kind may be gone since it was looked up
		case apierrors.IsNotFound(err) && !missingKind(err):
			return api, nil, nil
		case err != nil:
			return api, nil, err //nolint:wrapcheck // by the caller
		default:
			if mine, err := w.owned(now, k); err != nil || !mine {
				return api, nil, err
			}
			return api, now, nil
		}
	}
}
