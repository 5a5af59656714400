package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// kindAgain is when a watch looks again for a kind that the cluster does not have any more.
const kindAgain = 10 * time.Second

// Watch follows the metadata of all members and names the objects whose members others change or delete. What was missed while the
// cluster did not answer is found when it answers again, within one process.
func (c *cluster) Watch(parent context.Context, changed func(resource, key string)) error {
	c.mu.Lock()
	c.changed = changed
	c.mu.Unlock()
	group, ctx := errgroup.WithContext(parent)
	started := map[string]bool{}
	group.Go(func() error {
		for {
			has, grown, err := c.kindsInUse(ctx)
			if err != nil {
				return err
			}
			for _, name := range has.named("kind") {
				if !started[name] {
					started[name] = true
					group.Go(func() error { return c.follow(ctx, schema.ParseGroupKind(name)) })
				}
			}
			select {
			case <-grown:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	})
	err := group.Wait()
	if parent.Err() != nil {
		return context.Cause(parent)
	}
	return c.scrubber.Outcome(driver.Backoff(err)).Err
}

// kindsInUse returns the coverage of the target, and a channel that is closed when it grows.
func (c *cluster) kindsInUse(ctx context.Context) (coverage, <-chan struct{}, error) {
	c.mu.Lock()
	grown := c.grown // before the look
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, c.answerWithin)
	defer cancel()
	has, err := c.coverage(ctx)
	return has, grown, err
}

// follow watches a kind until ctx ends.
func (c *cluster) follow(ctx context.Context, kind schema.GroupKind) error {
	for {
		mapping, err := c.mapper.find(ctx, kind, "")
		var unknown *unknownKindError
		if err != nil && !errors.As(err, &unknown) {
			return err
		}
		if err == nil {
			err = c.followMapped(ctx, mapping)
			if err != nil && !missingKind(err) {
				return fmt.Errorf("watch %s: %w", kind, shown(err))
			}
			c.mapper.expire()
		}
		select {
		case <-time.After(kindAgain):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (c *cluster) followMapped(ctx context.Context, mapping *restMapping) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, namespace := range c.scopes(mapping) {
		f := &follower{
			cluster: c, kind: mapping.kind.GroupKind(), namespace: namespace,
			api: c.meta.Resource(mapping.resource).Namespace(namespace),
		}
		group.Go(func() error { return f.run(ctx) })
	}
	return group.Wait()
}

// follower follows the members of a kind, in a namespace or in all.
type follower struct {
	*cluster

	kind      schema.GroupKind
	namespace string
	api       metadata.ResourceInterface
	at        string // resourceVersion of what was seen last; "": a list comes first
}

func (f *follower) run(ctx context.Context) error {
	for {
		if f.at == "" {
			if err := f.list(ctx); err != nil {
				return err
			}
		}
		err := f.watch(ctx)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case apierrors.IsResourceExpired(err) || apierrors.IsGone(err):
			f.at = ""
		case err != nil:
			return err
		}
	}
}

// list compares what there is with what was seen last.
func (f *follower) list(ctx context.Context) error {
	missing := f.membersOf(f.kind, f.namespace)
	opts := metav1.ListOptions{LabelSelector: labelPartOf + "=" + f.set.id, Limit: pageObjects}
	for {
		page, err := f.page(ctx, opts)
		if err != nil {
			return err //nolint:wrapcheck // by the caller
		}
		for i := range page.Items {
			one := &page.Items[i]
			delete(missing, placeOf(f.kind, one))
			f.tell(f.saw(sight{at: placeOf(f.kind, one), meta: one}))
		}
		f.at = page.ResourceVersion
		if opts.Continue = page.Continue; opts.Continue == "" {
			break
		}
	}
	for at := range missing {
		f.tell(f.saw(sight{at: at, gone: true}))
	}
	return nil
}

func (f *follower) page(ctx context.Context, opts metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	ctx, cancel := context.WithTimeout(ctx, f.answerWithin)
	defer cancel()
	return f.api.List(ctx, opts) //nolint:wrapcheck // by the caller
}

// watch follows from where the last look has ended. It returns nil when the server ends the watch.
func (f *follower) watch(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	silence := time.AfterFunc(f.answerWithin, cancel)
	w, err := f.api.Watch(ctx, metav1.ListOptions{LabelSelector: labelPartOf + "=" + f.set.id, ResourceVersion: f.at, AllowWatchBookmarks: true})
	if !silence.Stop() {
		return fmt.Errorf("the watch got no answer within %s", f.answerWithin)
	}
	if err != nil {
		return err //nolint:wrapcheck // by the caller
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		one, ok := event.Object.(*metav1.PartialObjectMetadata)
		if event.Type == watch.Error || !ok {
			return apierrors.FromObject(event.Object)
		}
		switch event.Type {
		case watch.Added, watch.Modified:
			f.tell(f.saw(sight{at: placeOf(f.kind, one), meta: one, event: true}))
		case watch.Deleted:
			f.tell(f.saw(sight{at: placeOf(f.kind, one), meta: one, event: true, gone: true}))
		case watch.Bookmark, watch.Error:
		}
		f.at = one.ResourceVersion
	}
	return nil
}

func placeOf(kind schema.GroupKind, one *metav1.PartialObjectMetadata) place {
	return place{GroupKind: kind, Namespace: one.Namespace, Name: one.Name}
}
