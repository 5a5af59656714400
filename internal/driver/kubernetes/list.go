package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// pageObjects is how many objects a request lists.
const pageObjects = 500

// List yields the objects of the resources by the marks of their members. It reads metadata only.
func (c *cluster) List(ctx context.Context, resources []string) iter.Seq2[driver.Listed, error] {
	return driver.EachResource(resources, func(resource string) iter.Seq2[driver.Listed, error] { return c.list(ctx, resource) })
}

func (c *cluster) list(ctx context.Context, resource string) iter.Seq2[driver.Listed, error] {
	return func(yield func(driver.Listed, error) bool) {
		objects, err := c.gather(ctx, resource)
		if err != nil {
			yield(driver.Listed{}, c.scrubber.Outcome(c.outcome(ctx, err)).Err)
			return
		}
		for key, members := range objects {
			ref, text := driver.Ref{Target: c.target, Resource: resource, Key: key}, members.encode()
			c.mu.Lock()
			c.listed[objectMark(ref)] = text
			c.mu.Unlock()
			if !yield(driver.Listed{Resource: resource, Key: key, Memory: text}, nil) {
				return
			}
		}
	}
}

// gather returns the members of each object of a resource, by key.
func (c *cluster) gather(ctx context.Context, resource string) (map[string]memory, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	has, err := c.coverage(ctx)
	if err != nil {
		return nil, err
	}
	objects := map[string]memory{}
	selector := labelPartOf + "=" + c.set.id + "," + labelResource + "=" + resourceMark(resource)
	err = c.each(ctx, has, selector, func(at place, one *metav1.PartialObjectMetadata) {
		of, key, ok := rowOf(one)
		ref := driver.Ref{Target: c.target, Resource: resource, Key: key}
		if has.elsewhere(at, c.entryOf(one)) {
			return
		}
		if !ok || of != resource || one.Labels[labelObject] != objectMark(ref) {
			return // its marks do not belong together: its row finds it missing, and marks it again
		}
		if objects[key] == nil {
			objects[key] = memory{}
		}
		objects[key][at] = c.seen(at, one)
	})
	return objects, err
}

// coverage returns which kinds and namespaces may have members.
func (c *cluster) coverage(ctx context.Context) (coverage, error) {
	has, err := c.readSet(ctx)
	if err != nil && !missingNamespace(err) {
		return nil, err
	}
	select {
	case c.set.busy <- struct{}{}:
		defer func() { <-c.set.busy }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if len(has) == 0 {
		c.set.covered = nil // somebody has deleted it: the next call writes it again
		return coverage{}, nil
	}
	maps.Copy(has, c.set.covered)
	return has, nil
}

// elsewhere reports whether an object is listed in another API group than the one in which we have applied it, and there too.
func (has coverage) elsewhere(at place, ours *metav1.ManagedFieldsEntry) bool {
	if ours == nil {
		return false
	}
	gv, err := schema.ParseGroupVersion(ours.APIVersion)
	applied := schema.GroupKind{Group: gv.Group, Kind: at.Kind}
	return err == nil && applied != at.GroupKind && has.has(coverage{"kind " + applied.String(): {}})
}

// each calls do for every object of the listed kinds that a selector of labels matches.
func (c *cluster) each(ctx context.Context, has coverage, selector string, do func(place, *metav1.PartialObjectMetadata)) error {
	for _, name := range has.named("kind") {
		kind := schema.ParseGroupKind(name)
		mapping, err := c.mapper.find(ctx, kind, "")
		var unknown *unknownKindError
		if errors.As(err, &unknown) {
			continue // its objects went with the kind
		}
		if err != nil {
			return err
		}
		for _, namespace := range c.scopes(mapping) {
			if err := c.pages(ctx, mapping, namespace, selector, do); err != nil {
				return fmt.Errorf("list %s: %w", kind, err)
			}
		}
	}
	return nil
}

// scopes returns the namespaces that objects of a kind are looked for in; "" stands for all.
func (c *cluster) scopes(mapping *restMapping) []string {
	if len(c.namespaces) > 0 && mapping.namespaced {
		return c.namespaces
	}
	return []string{""}
}

func (c *cluster) pages(
	ctx context.Context, mapping *restMapping, namespace, selector string, do func(place, *metav1.PartialObjectMetadata),
) error {
	opts := metav1.ListOptions{LabelSelector: selector, Limit: pageObjects}
	for {
		page, err := c.page(ctx, mapping, namespace, opts)
		if apierrors.IsNotFound(err) {
			c.mapper.expire() // the kind is gone since it was looked up
			return nil
		}
		if err != nil {
			return err //nolint:wrapcheck // by the caller
		}
		for i := range page.Items {
			one := &page.Items[i]
			do(place{GroupKind: mapping.kind.GroupKind(), Namespace: one.Namespace, Name: one.Name}, one)
		}
		if opts.Continue = page.Continue; opts.Continue == "" {
			return nil
		}
	}
}

// page lists a page of a kind. The first one shows whether the cluster was restored.
func (c *cluster) page(
	ctx context.Context, mapping *restMapping, namespace string, opts metav1.ListOptions,
) (*metav1.PartialObjectMetadataList, error) {
	kind := mapping.kind.GroupKind()
	before := c.newestOf(kind) // calls go on meanwhile
	page, err := c.meta.Resource(mapping.resource).Namespace(namespace).List(ctx, opts)
	if err == nil && opts.Continue == "" {
		c.listedAt(kind, versionOf(page), before)
	}
	return page, err //nolint:wrapcheck // by the caller
}
