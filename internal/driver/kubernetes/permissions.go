package kubernetes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"regexp"
	"slices"
	"strings"

	rbac "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// The verbs that calls need, in the order in which they are printed.
var verbs = []string{"get", "list", "watch", "create", "patch", "delete"}

// accountDefault is the service account that roles are bound to, in the target's namespace.
const accountDefault = "reconciler"

var accountName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$`)

// notesMost is how many unusable specs are noted.
const notesMost = 10

// access gathers what a target needs rights for.
type access struct {
	*cluster

	uses    map[schema.GroupKind]*use
	defined map[schema.GroupKind]defined
	made    map[string]bool // namespaces that rows make: a role in one cannot be made before
	grants  map[grant]map[string]bool
	notes   []string
	skipped int
}

// use is a kind, and the namespaces that calls change objects of it in; true: they apply, and do not only delete.
type use map[string]bool

// grant is a resource, in a namespace or in all, and the names that rights are for; "": all.
type grant struct {
	namespace string
	resource  schema.GroupResource
	names     string // separated by commas
}

// Permissions returns roles with the least rights for these objects, for the kinds that the ApplySet lists, and for the ApplySet itself;
// and bindings to a service account, given as NAMESPACE/NAME or NAME.
func (c *cluster) Permissions(ctx context.Context, account string, objects iter.Seq2[driver.Object, error]) ([]byte, []string, error) {
	a := &access{
		cluster: c, uses: map[schema.GroupKind]*use{}, defined: map[schema.GroupKind]defined{}, made: map[string]bool{},
		grants: map[grant]map[string]bool{},
	}
	subject, err := c.account(account)
	if err != nil {
		return nil, nil, err
	}
	for obj, err := range objects {
		if err != nil {
			return nil, nil, err
		}
		a.object(obj)
	}
	if err := a.known(ctx); err != nil {
		return nil, nil, c.scrubber.Outcome(c.outcome(ctx, err)).Err
	}
	a.allow(c.set.namespace, configMaps.GroupResource(), c.set.name, "get", "create", "patch")
	for kind, u := range a.uses {
		if err := a.kind(ctx, kind, *u); err != nil {
			return nil, nil, c.scrubber.Outcome(c.outcome(ctx, err)).Err
		}
	}
	if a.skipped > notesMost {
		a.notes = append(a.notes, fmt.Sprintf("%d more objects are left out", a.skipped-notesMost))
	}
	text, err := a.manifests(subject)
	return text, a.notes, err
}

func (c *cluster) account(text string) (rbac.Subject, error) {
	namespace, name, ok := strings.Cut(text, "/")
	if !ok {
		namespace, name = c.set.namespace, text
	}
	if name == "" && !ok {
		name = accountDefault
	}
	if !namespaceName.MatchString(namespace) || !accountName.MatchString(name) {
		return rbac.Subject{}, driver.Problems{{Path: "account", Text: fmt.Sprintf("%q is not a service account: write NAMESPACE/NAME", text)}}
	}
	return rbac.Subject{Kind: rbac.ServiceAccountKind, Namespace: namespace, Name: name}, nil
}

// object adds what a row asks for and what is remembered of it.
func (a *access) object(obj driver.Object) {
	for at := range decode(obj.Memory) {
		a.use(at.GroupKind, at.Namespace, false)
	}
	if obj.Spec == nil {
		return
	}
	members, err := parse(obj.Spec)
	if err == nil {
		err = a.permit(members)
	}
	if err != nil {
		if a.skipped++; a.skipped <= notesMost {
			a.notes = append(a.notes, fmt.Sprintf("%s/%s is left out: %s", obj.Resource, obj.Key, shown(err)))
		}
		return
	}
	for _, m := range members {
		if one, ok := definitionOf(m); ok {
			a.defined[one.kind] = one
		}
		if m.at.GroupKind == namespaceKind {
			a.made[m.at.Name] = true
		}
		a.use(m.at.GroupKind, m.at.Namespace, true)
	}
}

func (a *access) use(kind schema.GroupKind, namespace string, applied bool) {
	if a.uses[kind] == nil {
		a.uses[kind] = &use{}
	}
	(*a.uses[kind])[namespace] = (*a.uses[kind])[namespace] || applied
}

// known adds the kinds that the ApplySet lists: each listing goes through all of them.
func (a *access) known(ctx context.Context) error {
	has, err := a.readSet(ctx)
	switch {
	case apierrors.IsForbidden(err):
		a.notes = append(a.notes, "the kinds that the target has had are not known: "+shown(err).Error())
	case err != nil && !missingNamespace(err):
		return err
	}
	for _, name := range has.named("kind") {
		kind := schema.ParseGroupKind(name)
		if _, err := a.mapper.find(ctx, kind, ""); err == nil && a.uses[kind] == nil {
			a.uses[kind] = &use{}
		}
	}
	return nil
}

// kind adds the rights for a kind.
func (a *access) kind(ctx context.Context, kind schema.GroupKind, u use) error {
	resource, namespaced, err := a.resource(ctx, kind)
	if err != nil {
		return err
	}
	listed := []string{""}
	if namespaced && len(a.namespaces) > 0 {
		listed = a.namespaces
	}
	for _, namespace := range listed {
		a.allow(namespace, resource, "", "list", "watch")
	}
	names := ""
	if kind == namespaceKind {
		names = strings.Join(slices.Sorted(slices.Values(a.namespaces)), ",")
	}
	for namespace, applied := range u {
		if namespaced && namespace == "" {
			namespace = a.namespace
		}
		a.allow(namespace, resource, names, "get")
		if applied {
			a.allow(namespace, resource, names, "create", "patch")
		}
		if !slices.Contains(a.protected, kind) {
			a.allow(namespace, resource, names, "delete")
		}
	}
	if kind.Group == rbac.GroupName {
		a.notes = append(a.notes, fmt.Sprintf("%s: the account can only apply one with rights that it has itself, unless you add the verb escalate (or bind)", kind))
	}
	return nil
}

// resource returns the resource of a kind, and whether its objects are in namespaces. A kind that the cluster does not have may be defined by
// a row.
func (a *access) resource(ctx context.Context, kind schema.GroupKind) (schema.GroupResource, bool, error) {
	mapping, err := a.mapper.find(ctx, kind, "")
	var unknown *unknownKindError
	switch {
	case err == nil:
		return mapping.resource.GroupResource(), mapping.namespaced, nil
	case !errors.As(err, &unknown):
		return schema.GroupResource{}, false, err
	}
	if one, ok := a.defined[kind]; ok && one.plural != "" {
		return schema.GroupResource{Group: kind.Group, Resource: one.plural}, one.namespaced, nil
	}
	plural, _ := meta.UnsafeGuessKindToResource(kind.WithVersion("v1"))
	a.notes = append(a.notes, fmt.Sprintf("the cluster has no kind %s: its resource is guessed (%s, in namespaces)", kind, plural.Resource))
	return plural.GroupResource(), true, nil
}

// allow adds verbs for a resource.
func (a *access) allow(namespace string, resource schema.GroupResource, names string, allowed ...string) {
	if a.made[namespace] {
		namespace = "" // a role in it could not be made before the first call makes the namespace
	}
	at := grant{namespace, resource, names}
	if a.grants[at] == nil {
		a.grants[at] = map[string]bool{}
	}
	for _, verb := range allowed {
		a.grants[at][verb] = true
	}
}

// rules returns the rules of each namespace; "" stands for the cluster. What is allowed everywhere is not allowed again in a namespace.
func (a *access) rules() map[string][]rbac.PolicyRule {
	all := slices.SortedFunc(maps.Keys(a.grants), func(x, y grant) int {
		return slices.Compare([]string{x.namespace, x.resource.Group, x.resource.Resource, x.names}, []string{y.namespace, y.resource.Group, y.resource.Resource, y.names})
	})
	rules := map[string][]rbac.PolicyRule{}
	for _, at := range all {
		rule := rbac.PolicyRule{APIGroups: []string{at.resource.Group}, Resources: []string{at.resource.Resource}}
		if at.names != "" {
			rule.ResourceNames = strings.Split(at.names, ",")
		}
		for _, verb := range verbs {
			if a.grants[at][verb] && !a.wider(at, verb) {
				rule.Verbs = append(rule.Verbs, verb)
			}
		}
		if len(rule.Verbs) > 0 {
			rules[at.namespace] = append(rules[at.namespace], rule)
		}
	}
	return rules
}

// wider reports whether another grant allows the same, and more.
func (a *access) wider(at grant, verb string) bool {
	for _, other := range []grant{{"", at.resource, ""}, {at.namespace, at.resource, ""}, {"", at.resource, at.names}} {
		if other != at && a.grants[other][verb] {
			return true
		}
	}
	return false
}

// manifests returns a role and a binding for each namespace with rules, and for the cluster, as YAML.
func (a *access) manifests(subject rbac.Subject) ([]byte, error) {
	var b bytes.Buffer
	rules := a.rules()
	for _, namespace := range slices.Sorted(maps.Keys(rules)) {
		about := metav1.ObjectMeta{Name: a.set.name, Namespace: namespace}
		ref := rbac.RoleRef{APIGroup: rbac.GroupName, Name: a.set.name}
		kind := func(kind string) metav1.TypeMeta {
			return metav1.TypeMeta{APIVersion: rbac.SchemeGroupVersion.String(), Kind: kind}
		}
		subjects := []rbac.Subject{subject}
		var role, binding any
		if namespace == "" {
			ref.Kind = "ClusterRole"
			role = rbac.ClusterRole{TypeMeta: kind("ClusterRole"), ObjectMeta: about, Rules: rules[namespace]}
			binding = rbac.ClusterRoleBinding{TypeMeta: kind("ClusterRoleBinding"), ObjectMeta: about, Subjects: subjects, RoleRef: ref}
		} else {
			ref.Kind = "Role"
			role = rbac.Role{TypeMeta: kind("Role"), ObjectMeta: about, Rules: rules[namespace]}
			binding = rbac.RoleBinding{TypeMeta: kind("RoleBinding"), ObjectMeta: about, Subjects: subjects, RoleRef: ref}
		}
		for _, one := range []any{role, binding} {
			text, err := yaml.Marshal(one)
			if err != nil {
				return nil, fmt.Errorf("write a role as YAML: %w", err)
			}
			if b.Len() > 0 {
				b.WriteString("---\n")
			}
			b.Write(text)
		}
	}
	return b.Bytes(), nil
}
