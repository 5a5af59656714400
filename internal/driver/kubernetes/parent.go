package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// The annotations and the label of an ApplySet's parent.
const (
	labelSet      = "applyset.kubernetes.io/id"
	setTooling    = "applyset.kubernetes.io/tooling"
	setKinds      = "applyset.kubernetes.io/contains-group-kinds"
	setNamespaces = "applyset.kubernetes.io/additional-namespaces"
	markOwner     = markDomain + "owner" // driver.Owner
	tooling       = "reconciler/v1"
)

var configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}

// applySet is the parent object that lists which kinds a target has members of, and in which namespaces: a ConfigMap. A listing
// reads it; an owner that takes over has nothing else to go by where memory was lost.
type applySet struct {
	id, name, namespace, target string

	busy    chan struct{} // of size one, and full while somebody has what follows
	owner   *driver.Owner // nil: nobody owns the target here, and nothing is verified
	checked bool          // the parent was found not to be another owner's
	covered coverage      // what the parent is known to list; nil: it is to be read first
}

// coverage is what a parent lists.
type coverage map[string]struct{}

// setName is the name of a target's parent, and of its field manager.
func setName(target string) string {
	if name := "reconciler-" + target; namespaceName.MatchString(name) {
		return name
	}
	return "reconciler-" + short([]byte(target))
}

func newApplySet(target, namespace string) *applySet {
	name := setName(target)
	return &applySet{
		id: setID(name, namespace, "ConfigMap", ""), name: name, namespace: namespace, target: target, busy: make(chan struct{}, 1),
	}
}

func (s *applySet) place() place {
	return place{GroupKind: schema.GroupKind{Kind: "ConfigMap"}, Namespace: s.namespace, Name: s.name}
}

func (s *applySet) start(home driver.Home) {
	s.busy <- struct{}{}
	defer func() { <-s.busy }()
	s.owner, s.checked, s.covered = &driver.Owner{Target: s.target, Home: home}, false, nil
}

// foreignError is a parent that belongs to another owner.
type foreignError struct {
	set, namespace string
	err            error // of driver.Owner.Check
}

func (e *foreignError) Error() string {
	return fmt.Sprintf("the ConfigMap %s in %s, and every object that it stands for, %s: give this target another name, or stop the other "+
		"owner and hand the objects over: kubectl -n %[2]s annotate configmap %[1]s %[4]s-", e.set, e.namespace, e.err, markOwner)
}

// verify reads the parent before the first call, and returns a *foreignError if it is another owner's.
func (c *cluster) verify(ctx context.Context) error {
	select {
	case c.set.busy <- struct{}{}:
		defer func() { <-c.set.busy }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if c.set.owner == nil || c.set.checked {
		return nil
	}
	if _, err := c.readSet(ctx); err != nil && !missingNamespace(err) {
		return err
	}
	c.set.checked = true
	return nil
}

// cover makes the parent list a place before something is created there.
func (c *cluster) cover(ctx context.Context, at place) error {
	select {
	case c.set.busy <- struct{}{}:
		defer func() { <-c.set.busy }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	want := coverage{"kind " + at.GroupKind.String(): {}}
	if at.Namespace != "" && at.Namespace != c.set.namespace {
		want["namespace "+at.Namespace] = struct{}{}
	}
	if c.set.covered.has(want) {
		return nil
	}
	has, err := c.readSet(ctx)
	if err != nil {
		return err
	}
	if !has.has(want) || c.set.covered == nil {
		maps.Copy(has, want)
		if err := c.writeSet(ctx, has); err != nil {
			return err
		}
	}
	c.set.covered = has
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.grown)
	c.grown = make(chan struct{})
	return nil
}

func (has coverage) has(want coverage) bool {
	for name := range want {
		if _, ok := has[name]; !ok {
			return false
		}
	}
	return true
}

// named returns the names of a sort, in order.
func (has coverage) named(sort string) []string {
	var names []string
	for name := range has {
		if name, ok := strings.CutPrefix(name, sort+" "); ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// readSet returns what the parent lists: nothing if there is none.
func (c *cluster) readSet(ctx context.Context) (coverage, error) {
	has := coverage{}
	parent, err := c.meta.Resource(configMaps).Namespace(c.set.namespace).Get(ctx, c.set.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return has, nil
	}
	if err != nil {
		return nil, fmt.Errorf("ConfigMap %s in %s, which lists the kinds of this target: %w", c.set.name, c.set.namespace, err)
	}
	texts := parent.Annotations
	if mark := texts[markOwner]; mark != "" && c.set.owner != nil {
		if err := c.set.owner.Check([]byte(mark)); err != nil {
			return nil, &foreignError{c.set.name, c.set.namespace, err}
		}
	}
	for sort, annotation := range map[string]string{"kind": setKinds, "namespace": setNamespaces} {
		for name := range strings.SplitSeq(texts[annotation], ",") {
			if name = strings.TrimSpace(name); name != "" {
				has[sort+" "+name] = struct{}{}
			}
		}
	}
	return has, nil
}

func (c *cluster) writeSet(ctx context.Context, has coverage) error {
	annotations := map[string]string{
		setTooling: tooling, setKinds: strings.Join(has.named("kind"), ","), setNamespaces: strings.Join(has.named("namespace"), ","),
	}
	if c.set.owner != nil {
		annotations[markOwner] = c.set.owner.Mark()
	}
	body, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{
			"name": c.set.name, "namespace": c.set.namespace, "annotations": annotations,
			"labels": map[string]string{labelSet: c.set.id, labelManagedBy: managedBy},
		},
	})
	if err != nil {
		return err //nolint:wrapcheck // cannot happen: these are texts
	}
	force := true
	_, err = c.meta.Resource(configMaps).Namespace(c.set.namespace).Patch(ctx, c.set.name, types.ApplyPatchType, body,
		metav1.PatchOptions{FieldManager: c.manager, Force: &force})
	if err != nil {
		return fmt.Errorf("ConfigMap %s in %s, which lists the kinds of this target: %w", c.set.name, c.set.namespace, err)
	}
	return nil
}
