package fakeapi

import (
	"net/http"
	"strings"

	discovery "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
)

const aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

// discover answers paths that name no resource. It returns false for those that it does not know.
func (s *Server) discover(w http.ResponseWriter, r *http.Request) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	wantsAll := strings.Contains(r.Header.Get("Accept"), "as=APIGroupDiscoveryList")
	switch {
	case r.URL.Path == "/version":
		writeJSON(w, http.StatusOK, version.Info{Major: "1", Minor: "36", GitVersion: "v1.36.3"})
	case len(parts) == 1 && (parts[0] == "readyz" || parts[0] == "livez" || parts[0] == "healthz"):
		_, _ = w.Write([]byte("ok"))
	case len(parts) == 1 && (parts[0] == "api" || parts[0] == "apis") && wantsAll:
		w.Header().Set("Content-Type", aggregated)
		writeJSON(w, http.StatusOK, s.allLocked(parts[0] == "api"))
	case r.URL.Path == "/api":
		writeJSON(w, http.StatusOK, metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}})
	case r.URL.Path == "/apis":
		writeJSON(w, http.StatusOK, s.groupsLocked())
	case len(parts) == 2 && parts[0] == "api":
		return s.resourcesLocked(w, schema.GroupVersion{Version: parts[1]})
	case len(parts) == 3 && parts[0] == "apis":
		return s.resourcesLocked(w, schema.GroupVersion{Group: parts[1], Version: parts[2]})
	default:
		return false
	}
	return true
}

func (s *Server) allLocked(core bool) discovery.APIGroupDiscoveryList {
	list := discovery.APIGroupDiscoveryList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupDiscoveryList", APIVersion: "apidiscovery.k8s.io/v2"}}
	for _, kinds := range s.byGroupLocked() {
		if (kinds[0].Group == "") != core {
			continue
		}
		group := discovery.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: kinds[0].Group}}
		for i, k := range kinds {
			if i == 0 || kinds[i-1].Version != k.Version {
				group.Versions = append(group.Versions, discovery.APIVersionDiscovery{Version: k.Version, Freshness: discovery.DiscoveryFreshnessCurrent})
			}
			last := &group.Versions[len(group.Versions)-1]
			last.Resources = append(last.Resources, k.discovery())
		}
		list.Items = append(list.Items, group)
	}
	return list
}

func (k *kind) discovery() discovery.APIResourceDiscovery {
	gvk := metav1.GroupVersionKind(k.GroupVersionKind)
	resource := discovery.APIResourceDiscovery{
		Resource: k.resource, ResponseKind: &gvk, Scope: discovery.ScopeCluster, SingularResource: k.singular, Verbs: verbs,
	}
	if k.namespaced {
		resource.Scope = discovery.ScopeNamespace
	}
	if k.status {
		resource.Subresources = []discovery.APISubresourceDiscovery{
			{Subresource: "status", ResponseKind: &gvk, Verbs: metav1.Verbs{"get", "patch", "update"}},
		}
	}
	return resource
}

func (s *Server) groupsLocked() metav1.APIGroupList {
	list := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
	for _, kinds := range s.byGroupLocked() {
		if kinds[0].Group == "" {
			continue
		}
		group := metav1.APIGroup{Name: kinds[0].Group}
		for i, k := range kinds {
			if i == 0 || kinds[i-1].Version != k.Version {
				group.Versions = append(group.Versions, metav1.GroupVersionForDiscovery{GroupVersion: k.GroupVersion().String(), Version: k.Version})
			}
		}
		group.PreferredVersion = group.Versions[0]
		list.Groups = append(list.Groups, group)
	}
	return list
}

func (s *Server) resourcesLocked(w http.ResponseWriter, gv schema.GroupVersion) bool {
	list := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: gv.String()}
	for _, kinds := range s.byGroupLocked() {
		for _, k := range kinds {
			if k.GroupVersion() != gv {
				continue
			}
			resource := metav1.APIResource{Name: k.resource, SingularName: k.singular, Namespaced: k.namespaced, Kind: k.Kind, Verbs: verbs}
			list.APIResources = append(list.APIResources, resource)
			if k.status {
				resource.Name, resource.SingularName, resource.Verbs = k.resource+"/status", "", metav1.Verbs{"get", "patch", "update"}
				list.APIResources = append(list.APIResources, resource)
			}
		}
	}
	if list.APIResources == nil {
		return false
	}
	writeJSON(w, http.StatusOK, list)
	return true
}
