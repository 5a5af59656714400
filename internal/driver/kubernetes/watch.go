package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// kindAgain is when a watch looks again for a kind that the cluster does not have any more.
const kindAgain = 10 * time.Second

// Watch follows the metadata of all members and names the objects whose members others change or delete. What was missed while the
// cluster did not answer is found when it answers again, within one process. A kind that cannot be watched is one of Unwatched.
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
					group.Go(func() error {
						c.follow(ctx, schema.ParseGroupKind(name))
						return context.Cause(ctx)
					})
				}
			}
			select {
			case <-grown:
			case <-c.restored:
				return driver.ErrRestored
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

// Unwatched returns the first of the kinds, or of their namespaces, that cannot be watched at the moment.
func (c *cluster) Unwatched() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	parts := slices.Sorted(maps.Keys(c.unwatched))
	if len(parts) == 0 {
		return nil
	}
	err := fmt.Errorf("watch %s: %w", parts[0], c.unwatched[parts[0]])
	if more := len(parts) - 1; more > 0 {
		err = fmt.Errorf("%w; %d more watches fail", err, more)
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

// keep runs the watch of a part until ctx ends. Others go on while it fails.
func (c *cluster) keep(ctx context.Context, part string, watch func(worked func()) error) {
	note := func(err error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if delete(c.unwatched, part); err != nil {
			c.unwatched[part] = err
		}
	}
	defer note(nil)
	driver.Keep(ctx, watch, note)
}

// follow watches a kind until ctx ends.
func (c *cluster) follow(ctx context.Context, kind schema.GroupKind) {
	c.keep(ctx, kind.String(), func(worked func()) error {
		mapping, err := c.mapper.find(ctx, kind, "")
		var unknown *unknownKindError
		if err != nil && !errors.As(err, &unknown) {
			return shown(err)
		}
		worked()
		if err == nil {
			c.followMapped(ctx, mapping)
			c.mapper.expire()
		}
		select {
		case <-time.After(kindAgain):
		case <-ctx.Done():
		}
		return nil
	})
}

// followMapped watches a kind until ctx ends or the kind is gone.
func (c *cluster) followMapped(ctx context.Context, mapping *restMapping) {
	ctx, gone := context.WithCancel(ctx)
	defer gone()
	var group sync.WaitGroup
	for _, namespace := range c.scopes(mapping) {
		f, part := &follower{cluster: c, mapping: mapping, namespace: namespace}, mapping.kind.GroupKind().String()
		if namespace != "" {
			part += " in " + namespace
		}
		group.Go(func() {
			c.keep(ctx, part, func(worked func()) error {
				err := f.run(ctx, worked)
				if err == nil {
					return nil
				}
				if missingKind(err) {
					gone()
				}
				return shown(err)
			})
		})
	}
	group.Wait()
}

// follower follows the members of a kind, in a namespace or in all.
type follower struct {
	*cluster

	mapping   *restMapping
	namespace string
	at        string // resourceVersion of what was seen last; "": a list comes first
}

func (f *follower) kind() schema.GroupKind { return f.mapping.kind.GroupKind() }

func (f *follower) selects() metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: labelPartOf + "=" + f.set.id, Limit: pageObjects}
}

// run watches from where the last look has ended, until the server ends that.
func (f *follower) run(ctx context.Context, worked func()) error {
	var err error
	if f.at == "" {
		err = f.list(ctx)
	} else {
		// A cluster that was restored in between shows nothing before it has come as far as the watch asks for.
		opts := f.selects()
		opts.Limit = 1
		_, err = f.page(ctx, opts)
	}
	if err == nil {
		err = f.watch(ctx, worked)
	}
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		f.at = ""
	}
	return err
}

// list compares what there is with what was seen last.
func (f *follower) list(ctx context.Context) error {
	missing := f.membersOf(f.kind(), f.namespace)
	at, opts := "", f.selects()
	for {
		page, err := f.page(ctx, opts)
		if err != nil {
			return err
		}
		for i := range page.Items {
			one := &page.Items[i]
			delete(missing, placeOf(f.kind(), one))
			f.tell(f.saw(sight{at: placeOf(f.kind(), one), meta: one}))
		}
		at = page.ResourceVersion
		if opts.Continue = page.Continue; opts.Continue == "" {
			break
		}
	}
	for at := range missing {
		f.tell(f.saw(sight{at: at, gone: true}))
	}
	f.at = at
	return nil
}

func (f *follower) page(ctx context.Context, opts metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	ctx, cancel := context.WithTimeout(ctx, f.answerWithin)
	defer cancel()
	return f.cluster.page(ctx, f.mapping, f.namespace, opts)
}

// watch follows from where the last look has ended. It returns nil when the server ends the watch, which has worked if it has brought an
// event or was open for a while.
func (f *follower) watch(ctx context.Context, worked func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	opts := f.selects()
	opts.Limit, opts.ResourceVersion, opts.AllowWatchBookmarks = 0, f.at, true
	silence := time.AfterFunc(f.answerWithin, cancel)
	w, err := f.meta.Resource(f.mapping.resource).Namespace(f.namespace).Watch(ctx, opts)
	if !silence.Stop() {
		return fmt.Errorf("the watch got no answer within %s", f.answerWithin)
	}
	if err != nil {
		return err //nolint:wrapcheck // by the caller
	}
	defer w.Stop()
	defer driver.Steady(worked)()
	for event := range w.ResultChan() {
		one, ok := event.Object.(*metav1.PartialObjectMetadata)
		if event.Type == watch.Error || !ok {
			return apierrors.FromObject(event.Object)
		}
		switch event.Type {
		case watch.Added, watch.Modified:
			f.tell(f.saw(sight{at: placeOf(f.kind(), one), meta: one, event: true}))
		case watch.Deleted:
			f.tell(f.saw(sight{at: placeOf(f.kind(), one), meta: one, event: true, gone: true}))
		case watch.Bookmark, watch.Error:
		}
		f.passes(f.kind(), versionOf(one))
		f.at = one.ResourceVersion
		worked()
	}
	return nil
}

func placeOf(kind schema.GroupKind, one *metav1.PartialObjectMetadata) place {
	return place{GroupKind: kind, Namespace: one.Namespace, Name: one.Name}
}
