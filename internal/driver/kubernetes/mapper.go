package kubernetes

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	internalscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
)

const (
	// discoverEvery is how often the cluster is asked for a kind that it does not have, at most.
	discoverEvery = time.Second
	// discoverTimeout bounds the requests for one kind.
	discoverTimeout = 10 * time.Second
)

// mapper finds the API of a kind. It asks the cluster for the kinds in one version of a group when the first of them is needed, and
// remembers them until one is missing. The discovery client of client-go asks for the kinds of all groups, and makes the binary 15 MB larger.
type mapper struct {
	client  rest.Interface
	timeout time.Duration
	flight  singleflight.Group

	mu       sync.Mutex          // guards what follows
	versions map[string][]string // by group, the preferred one first
	kinds    map[schema.GroupVersion]map[string]*restMapping
	missing  map[schema.GroupVersionKind]time.Time // when the cluster did not have them
}

// restMapping is the API of a kind.
type restMapping struct {
	kind       schema.GroupVersionKind
	resource   schema.GroupVersionResource
	namespaced bool
	status     bool // its objects have a status, which a controller writes
}

func newMapper(config *rest.Config, client *http.Client, timeout time.Duration) (*mapper, error) {
	config = rest.CopyConfig(config)
	config.NegotiatedSerializer = internalscheme.Codecs.WithoutConversion()
	asking, err := rest.UnversionedRESTClientForConfigAndClient(config, client)
	if err != nil {
		return nil, err //nolint:wrapcheck // by the caller
	}
	m := &mapper{client: asking, timeout: timeout}
	m.expire()
	return m, nil
}

// unknownKindError is a kind that the cluster does not have.
type unknownKindError struct{ kind schema.GroupVersionKind }

func (e *unknownKindError) Error() string {
	if e.kind.Version == "" {
		return fmt.Sprintf("the cluster has no kind %s", e.kind.GroupKind())
	}
	return fmt.Sprintf("the cluster has no kind %s in version %s", e.kind.GroupKind(), e.kind.Version)
}

// find returns the API of a kind, in this version, or in the one that the cluster prefers if version is empty. It returns an
// unknownKindError if the cluster has no such kind. Those who ask for the same one at once share the requests.
func (m *mapper) find(ctx context.Context, kind schema.GroupKind, version string) (*restMapping, error) {
	wanted := kind.WithVersion(version)
	mapping, known := m.look(wanted)
	if !known {
		done := m.flight.DoChan(wanted.String(), func() (any, error) {
			if mapping, known := m.look(wanted); known { // since the look above
				return mapping, nil
			}
			bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), m.timeout)
			defer cancel()
			return m.ask(bounded, wanted)
		})
		select {
		case r := <-done:
			if r.Err != nil {
				return nil, r.Err
			}
			mapping = r.Val.(*restMapping)
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	if mapping == nil {
		return nil, &unknownKindError{kind: wanted}
	}
	return mapping, nil
}

// expire forgets the kinds of the cluster.
func (m *mapper) expire() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.versions = map[string][]string{"": {"v1"}}
	m.kinds = map[schema.GroupVersion]map[string]*restMapping{}
	m.missing = map[schema.GroupVersionKind]time.Time{}
}

// look returns what is known of a kind: nil if the cluster does not have it, and false if the cluster must be asked.
func (m *mapper) look(wanted schema.GroupVersionKind) (mapping *restMapping, known bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	versions := m.versions[wanted.Group]
	if wanted.Version != "" {
		versions = []string{wanted.Version}
	}
	for _, version := range versions {
		kinds, asked := m.kinds[schema.GroupVersion{Group: wanted.Group, Version: version}]
		if mapping = kinds[wanted.Kind]; mapping != nil {
			return mapping, true
		}
		if !asked {
			break // it may have a kind that the versions after it have, too
		}
	}
	at, missing := m.missing[wanted]
	return nil, missing && time.Since(at) < discoverEvery
}

// ask asks the cluster for a kind. It returns nil if the cluster does not have it.
func (m *mapper) ask(ctx context.Context, wanted schema.GroupVersionKind) (*restMapping, error) {
	versions := []string{wanted.Version}
	if wanted.Version == "" {
		var err error
		if versions, err = m.askVersions(ctx, wanted.Group); err != nil {
			return nil, err
		}
	}
	for _, version := range versions {
		kinds, err := m.askKinds(ctx, schema.GroupVersion{Group: wanted.Group, Version: version})
		if mapping := kinds[wanted.Kind]; mapping != nil || err != nil {
			return mapping, err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.missing, func(_ schema.GroupVersionKind, at time.Time) bool { return time.Since(at) >= discoverEvery })
	m.missing[wanted] = time.Now()
	return nil, nil //nolint:nilnil // the cluster does not have it
}

// askVersions returns the versions of a group, the preferred one first, and none of a group that the cluster does not have.
func (m *mapper) askVersions(ctx context.Context, group string) ([]string, error) {
	if group == "" {
		return []string{"v1"}, nil
	}
	var answer metav1.APIGroup
	served, err := m.get(ctx, &answer, "/apis", group)
	if err != nil {
		return nil, fmt.Errorf("ask the cluster for the versions of %s: %w", group, err)
	}
	var versions []string
	for _, one := range answer.Versions {
		if one.Version == answer.PreferredVersion.Version {
			versions = append([]string{one.Version}, versions...)
		} else {
			versions = append(versions, one.Version)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.versions, group)
	if served {
		m.versions[group] = versions
	}
	return versions, nil
}

// askKinds returns the kinds in a version of a group, and none of a version that the cluster does not have.
func (m *mapper) askKinds(ctx context.Context, version schema.GroupVersion) (map[string]*restMapping, error) {
	path := []string{"/apis", version.Group, version.Version}
	if version.Group == "" {
		path = []string{"/api", version.Version}
	}
	var answer metav1.APIResourceList
	served, err := m.get(ctx, &answer, path...)
	if err != nil {
		return nil, fmt.Errorf("ask the cluster for the kinds in %s: %w", version, err)
	}
	kinds := map[string]*restMapping{}
	status := map[string]bool{}
	for _, one := range answer.APIResources {
		if resource, sub, isSub := strings.Cut(one.Name, "/"); isSub {
			status[resource] = status[resource] || sub == "status"
		} else if kinds[one.Kind] == nil {
			kinds[one.Kind] = &restMapping{kind: version.WithKind(one.Kind), resource: version.WithResource(one.Name), namespaced: one.Namespaced}
		}
	}
	for _, mapping := range kinds {
		mapping.status = status[mapping.resource.Resource]
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.kinds, version)
	if served {
		m.kinds[version] = kinds
	}
	return kinds, nil
}

// get reads what the cluster serves at a path, and returns false where it serves nothing. What manifests give of the path is a name, or
// cannot be served.
func (m *mapper) get(ctx context.Context, answer runtime.Object, path ...string) (served bool, err error) {
	for _, part := range path[1:] {
		if len(validation.IsDNS1123Subdomain(part)) > 0 {
			return false, nil
		}
	}
	err = m.client.Get().AbsPath(path...).SetHeader("Accept", runtime.ContentTypeJSON).Do(ctx).Into(answer)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err //nolint:wrapcheck // by the caller
}
