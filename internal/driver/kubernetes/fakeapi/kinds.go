package fakeapi

import (
	"cmp"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
)

// kind is a served kind in one version.
type kind struct {
	schema.GroupVersionKind

	resource, singular string
	namespaced         bool
	status             bool // has the subresource status, and a metadata.generation
	converter          managedfields.TypeConverter
}

func (k *kind) groupResource() schema.GroupResource {
	return schema.GroupResource{Group: k.Group, Resource: k.resource}
}

// aliases are resources that show the objects of another one, in a group of their own.
var aliases = map[schema.GroupResource]schema.GroupResource{
	{Group: "events.k8s.io", Resource: "events"}: {Resource: "events"},
}

// groupsOf returns a kind in each group that shows its objects.
func groupsOf(kind schema.GroupVersionKind) []schema.GroupVersionKind {
	if kind.Kind != "Event" {
		return []schema.GroupVersionKind{kind}
	}
	return []schema.GroupVersionKind{kind, {Version: "v1", Kind: "Event"}, {Group: "events.k8s.io", Version: "v1", Kind: "Event"}}
}

// stored returns the resource that the objects are stored as.
func (k *kind) stored() schema.GroupResource {
	if other, ok := aliases[k.groupResource()]; ok {
		return other
	}
	return k.groupResource()
}

func (k *kind) versionResource() schema.GroupVersionResource {
	return k.GroupVersion().WithResource(k.resource)
}

// verbs are those of discovery. deletecollection is not served.
var verbs = metav1.Verbs{"create", "delete", "get", "list", "patch", "update", "watch"}

// builtin returns the kinds that are served from the start.
func builtin(converter managedfields.TypeConverter) map[schema.GroupVersionResource]*kind {
	served := map[schema.GroupVersionResource]*kind{}
	add := func(group, version, name, resource, singular string, namespaced, status bool) {
		k := &kind{
			GroupVersionKind: schema.GroupVersionKind{Group: group, Version: version, Kind: name},
			resource:         resource, singular: singular, namespaced: namespaced, status: status, converter: converter,
		}
		if group == crdGroup {
			k.converter = managedfields.NewDeducedTypeConverter()
		}
		served[k.versionResource()] = k
	}
	add("", "v1", "Namespace", "namespaces", "namespace", false, true)
	add("", "v1", "ConfigMap", "configmaps", "configmap", true, false)
	add("", "v1", "Secret", "secrets", "secret", true, false)
	add("", "v1", "Service", "services", "service", true, true)
	add("", "v1", "Event", "events", "event", true, false)
	add("events.k8s.io", "v1", "Event", "events", "event", true, false)
	add("", "v1", "ServiceAccount", "serviceaccounts", "serviceaccount", true, false)
	add("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", "persistentvolumeclaim", true, true)
	add("apps", "v1", "Deployment", "deployments", "deployment", true, true)
	add("apps", "v1", "StatefulSet", "statefulsets", "statefulset", true, true)
	add("apps", "v1", "DaemonSet", "daemonsets", "daemonset", true, true)
	add("batch", "v1", "Job", "jobs", "job", true, true)
	add("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers", "horizontalpodautoscaler", true, true)
	add("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies", "networkpolicy", true, false)
	add("rbac.authorization.k8s.io", "v1", "Role", "roles", "role", true, false)
	add("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles", "clusterrole", false, false)
	add("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings", "rolebinding", true, false)
	add("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings", "clusterrolebinding", false, false)
	add(crdGroup, "v1", "CustomResourceDefinition", crdResource, "customresourcedefinition", false, true)
	return served
}

// builtinGroups answer for kinds that they lack with a Status; groups of definitions do not.
var builtinGroups = []string{crdGroup, "apps", "batch", "autoscaling", "events.k8s.io", "networking.k8s.io", "rbac.authorization.k8s.io"}

const (
	crdGroup    = "apiextensions.k8s.io"
	crdResource = "customresourcedefinitions"
)

// defined returns the kinds that a CustomResourceDefinition defines.
func defined(crd *unstructured.Unstructured) []*kind {
	field := func(path ...string) string {
		text, _, _ := unstructured.NestedString(crd.Object, path...)
		return text
	}
	versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
	var kinds []*kind
	for _, item := range versions {
		version, _ := item.(map[string]any)
		if served, _ := version["served"].(bool); !served {
			continue
		}
		name, _ := version["name"].(string)
		_, status, _ := unstructured.NestedMap(version, "subresources", "status")
		kinds = append(kinds, &kind{
			GroupVersionKind: schema.GroupVersionKind{Group: field("spec", "group"), Version: name, Kind: field("spec", "names", "kind")},
			resource:         field("spec", "names", "plural"),
			singular:         field("spec", "names", "singular"),
			namespaced:       field("spec", "scope") == "Namespaced",
			status:           status,
			converter:        managedfields.NewDeducedTypeConverter(),
		})
	}
	return kinds
}

// kindsLocked returns what is served, by group, version and name.
func (s *Server) kindsLocked() []*kind {
	return slices.SortedFunc(maps.Values(s.served), func(a, b *kind) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Version, b.Version), cmp.Compare(a.resource, b.resource))
	})
}
