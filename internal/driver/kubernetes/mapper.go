package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
)

const (
	// discoverEvery is how often the cluster is asked for its kinds at most, while manifests name one that it does not have.
	discoverEvery = time.Second
	// discoverTimeout bounds one request of it.
	discoverTimeout = 10 * time.Second
)

// mapper finds the API of a kind. It remembers the kinds of the cluster until one is missing.
type mapper struct {
	client discovery.DiscoveryInterface
	flight singleflight.Group

	mu     sync.Mutex // guards what follows
	kinds  meta.RESTMapper
	found  map[schema.GroupVersionKind]*meta.RESTMapping // by kinds, whose own search costs more than the rest of a call
	status map[schema.GroupVersionResource]bool          // those that have one
	failed map[schema.GroupVersion]error                 // groups that did not answer: nothing is known of their kinds
	at     time.Time
}

func newMapper(config *rest.Config, client *http.Client, timeout time.Duration) (*mapper, error) {
	bounded := *client
	bounded.Timeout = timeout // that of config counts for nothing where the client is given
	d, err := discovery.NewDiscoveryClientForConfigAndClient(config, &bounded)
	if err != nil {
		return nil, err //nolint:wrapcheck // by the caller
	}
	return &mapper{client: d}, nil
}

// unknownKindError is a kind that the cluster does not have.
type unknownKindError struct {
	kind    schema.GroupKind
	version string
}

func (e *unknownKindError) Error() string {
	if e.version == "" {
		return fmt.Sprintf("the cluster has no kind %s", e.kind)
	}
	return fmt.Sprintf("the cluster has no kind %s in version %s", e.kind, e.version)
}

// find returns the API of a kind, in this version, or in the one that the cluster prefers if version is empty. It returns an
// unknownKindError if the cluster has no such kind.
func (m *mapper) find(ctx context.Context, kind schema.GroupKind, version string) (*meta.RESTMapping, error) {
	mapping, err := m.look(kind, version)
	if mapping != nil || err != nil && !m.stale() {
		return mapping, err
	}
	if err := m.refresh(ctx); err != nil {
		return nil, err
	}
	return m.look(kind, version)
}

func (m *mapper) stale() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.kinds == nil || time.Since(m.at) >= discoverEvery
}

// expire makes the next look at an unknown kind ask the cluster again.
func (m *mapper) expire() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kinds = nil
}

func (m *mapper) look(kind schema.GroupKind, version string) (*meta.RESTMapping, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.kinds == nil {
		return nil, nil //nolint:nilnil // nothing is known
	}
	gvk := kind.WithVersion(version)
	if mapping := m.found[gvk]; mapping != nil {
		return mapping, nil
	}
	var versions []string
	if version != "" {
		versions = []string{version}
	}
	mapping, err := m.kinds.RESTMapping(kind, versions...)
	if err == nil {
		m.found[gvk] = mapping
		return mapping, nil
	}
	for gv, err := range m.failed {
		if gv.Group == kind.Group {
			return nil, fmt.Errorf("the cluster does not answer which kinds %s has: %w", gv, err)
		}
	}
	return nil, &unknownKindError{kind: kind, version: version}
}

// hasStatus reports whether the objects of a resource have a status, which a controller writes.
func (m *mapper) hasStatus(resource schema.GroupVersionResource) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.status[resource]
}

// refresh asks the cluster for its kinds. Those who ask at once share one request.
func (m *mapper) refresh(ctx context.Context) error {
	done := m.flight.DoChan("", func() (any, error) { return nil, m.discover() })
	select {
	case r := <-done:
		return r.Err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (m *mapper) discover() error {
	groups, lists, err := m.client.ServerGroupsAndResources()
	var partial *discovery.ErrGroupDiscoveryFailed
	if err != nil && !errors.As(err, &partial) {
		return fmt.Errorf("ask the cluster for its kinds: %w", err)
	}
	found := make(map[string]*restmapper.APIGroupResources, len(groups))
	all := make([]*restmapper.APIGroupResources, 0, len(groups))
	for _, group := range groups {
		one := &restmapper.APIGroupResources{Group: *group, VersionedResources: map[string][]metav1.APIResource{}}
		found[group.Name] = one
		all = append(all, one)
	}
	status := map[schema.GroupVersionResource]bool{}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if one := found[gv.Group]; err == nil && one != nil {
			one.VersionedResources[gv.Version] = list.APIResources
		}
		for _, resource := range list.APIResources {
			if name, ok := strings.CutSuffix(resource.Name, "/status"); ok {
				status[gv.WithResource(name)] = true
			}
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kinds, m.failed, m.at = restmapper.NewDiscoveryRESTMapper(all), nil, time.Now()
	m.status = status
	m.found = map[schema.GroupVersionKind]*meta.RESTMapping{}
	if partial != nil {
		m.failed = partial.Groups
	}
	return nil
}
