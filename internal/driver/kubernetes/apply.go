package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// work is one call for one object.
type work struct {
	*cluster

	ctx    context.Context //nolint:containedctx // lives no longer than the call
	ref    driver.Ref
	object string // its mark
	marks  marks
	memory memory // of the members that it has or may have
}

func (c *cluster) work(ctx context.Context, ref driver.Ref) *work {
	w := &work{cluster: c, ctx: ctx, ref: ref, object: objectMark(ref), marks: c.marksOf(ref), memory: decode(ref.Memory)}
	c.mu.Lock()
	defer c.mu.Unlock()
	for at, k := range decode(c.listed[w.object]) { // what a call has created whose result was never recorded
		if _, ok := w.memory[at]; !ok {
			w.memory[at] = known{at: at, uid: k.uid} // others may have changed it before it was listed
		}
	}
	delete(c.listed, w.object)
	return w
}

// Apply brings the members to their manifests, and removes those that the spec does not name any more once all others are there.
func (c *cluster) Apply(ctx context.Context, obj driver.Object) driver.Outcome {
	if ctx.Err() != nil {
		return driver.Backoff(context.Cause(ctx))
	}
	members, err := parse(obj.Spec)
	if err == nil {
		err = c.permit(members)
	}
	if err != nil {
		return driver.Terminal(shown(err))
	}
	w := c.work(ctx, obj.Ref)
	if err := w.fits(members); err != nil {
		return driver.Terminal(err)
	}
	c.claim(obj.Ref, members)
	defer c.calling(obj.Ref)()
	if err := c.verify(ctx); err != nil {
		return c.scrubber.Outcome(c.outcome(ctx, err))
	}
	if err := w.leavesFormer(members); err != nil {
		return c.finish(c.outcome(ctx, err), w.memory)
	}
	out := w.bringAll(members)
	if out.Verdict == driver.VerdictDone {
		out = w.prune(members)
	}
	if out.Verdict == driver.VerdictDone {
		c.waits.over(w.object)
	}
	return c.finish(out, w.memory)
}

// permit returns an error for what the target may not touch, and for a member that is named twice.
func (c *cluster) permit(members []member) error {
	seen := map[place]bool{}
	for i := range members {
		m := &members[i]
		if len(c.kinds) > 0 && !slices.Contains(c.kinds, m.at.GroupKind) {
			return fmt.Errorf("%s: this target may not touch the kind (options.kinds)", m.at)
		}
		at := m.at
		if at.Namespace == "" {
			at.Namespace = c.namespace
		} else if err := c.permitNamespace(at, at.Namespace); err != nil {
			return err
		}
		if m.at.GroupKind == namespaceKind {
			if err := c.permitNamespace(m.at, m.at.Name); err != nil {
				return err
			}
		}
		if at == c.set.place() {
			return fmt.Errorf("%s: it lists what belongs to this target, and is the driver's", at)
		}
		if seen[at] {
			return fmt.Errorf("%s: the spec names it twice", m.at)
		}
		seen[at] = true
	}
	return nil
}

func (c *cluster) permitNamespace(at place, namespace string) error {
	if len(c.namespaces) > 0 && !slices.Contains(c.namespaces, namespace) {
		return fmt.Errorf("%s: this target may not touch the namespace (options.namespaces)", at)
	}
	return nil
}

// fits returns an error if the members are too many to be remembered. Before a call: what is not remembered could not be removed.
func (w *work) fits(members []member) error {
	const rest = 1 + 63 + 1 + 36 + 1 + 2*hashBytes + 1 + 2*hashBytes + 2 // namespace, uid, hash, digest, separators
	bytes := len(w.memory.encode())
	for _, m := range members {
		bytes += len(m.at.GroupKind.String()) + 1 + len(m.at.Name) + rest
	}
	if bytes > driver.MemoryMost {
		return fmt.Errorf("%d manifests are too many to be remembered (%d bytes of names; at most %d): spread them over several rows",
			len(members), bytes, driver.MemoryMost)
	}
	return nil
}

// bringAll applies members rank by rank: what a rank needs is there before it is asked for. Within a rank, a member that fails stops no
// other.
func (w *work) bringAll(members []member) driver.Outcome {
	out := driver.Done()
	for i, m := range members {
		if i > 0 && rank(m.at.GroupKind) != rank(members[i-1].at.GroupKind) && out.Verdict != driver.VerdictDone {
			break
		}
		if w.ctx.Err() != nil {
			return driver.Backoff(context.Cause(w.ctx))
		}
		one := w.bring(m)
		if one.Verdict == driver.VerdictUnreachable {
			return one
		}
		out = worse(out, one)
	}
	return out
}

// prune removes the members that the spec does not name.
func (w *work) prune(members []member) driver.Outcome {
	gone, out := w.dropped(members)
	if out.Verdict != driver.VerdictDone {
		return out
	}
	if out := w.mayRemove(gone); out.Verdict != driver.VerdictDone {
		return out
	}
	return w.removeAll(gone)
}

// dropped returns the members that the spec does not name. One that it names in another API group is the same object.
func (w *work) dropped(members []member) ([]known, driver.Outcome) {
	wanted, named := map[place]bool{}, map[string]place{}
	for _, m := range members {
		_, at, err := w.located(m)
		if err != nil {
			return nil, w.failed(m.at, err)
		}
		wanted[at] = true
		uid := w.memory[at].uid
		if other, twice := named[uid]; twice {
			return nil, driver.Terminal(fmt.Errorf("%s: the spec names it twice, also as %s", at, other))
		}
		named[uid] = at
	}
	var gone []known
	for at, k := range w.memory {
		if _, same := named[k.uid]; !wanted[at] && same {
			delete(w.memory, at)
		} else if !wanted[at] {
			gone = append(gone, k)
		}
	}
	return gone, driver.Done()
}

// failed classifies an error about a place. A namespace or a kind that is not there may be on its way.
func (w *work) failed(at place, err error) driver.Outcome {
	var unknown *unknownKindError
	switch {
	case errors.As(err, &unknown):
		return w.waits.on(w.object, fmt.Sprintf("%s: %s", at, unknown), missingMost)
	case missingNamespace(err):
		return w.waits.on(w.object, fmt.Sprintf("%s: the namespace does not exist", at), missingMost)
	case causeOf(err, "NamespaceTerminating"):
		return w.waits.on(w.object, fmt.Sprintf("%s: the namespace is being deleted", at), 0)
	case missingKind(err):
		w.mapper.expire()
		return w.waits.on(w.object, fmt.Sprintf("%s: the cluster does not serve the kind yet", at), missingMost)
	}
	if at.GroupKind == secretKind {
		err = withheld(err)
	}
	out := w.outcome(w.ctx, err)
	if out.Verdict != driver.VerdictUnreachable && w.ctx.Err() == nil {
		out.Err = fmt.Errorf("%s: %w", at, out.Err)
	}
	return out
}

// digest returns the hash of a manifest as it is applied, without marks.
func digest(m member) (string, error) {
	text, err := json.Marshal(m.body.Object)
	if err != nil {
		return "", fmt.Errorf("%s: write it as JSON: %w", m.at, err)
	}
	return short(text), nil
}
