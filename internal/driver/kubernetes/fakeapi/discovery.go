package fakeapi

import (
	"net/http"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
)

// discover answers paths that name no resource. It returns false for those that it does not know.
func (s *Server) discover(w http.ResponseWriter, r *http.Request) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch {
	case r.URL.Path == "/version":
		writeJSON(w, http.StatusOK, version.Info{Major: "1", Minor: "36", GitVersion: "v1.36.3"})
	case len(parts) == 1 && (parts[0] == "readyz" || parts[0] == "livez" || parts[0] == "healthz"):
		_, _ = w.Write([]byte("ok"))
	case len(parts) == 2 && parts[0] == "apis":
		return s.groupLocked(w, parts[1])
	case len(parts) == 2 && parts[0] == "api":
		return s.resourcesLocked(w, schema.GroupVersion{Version: parts[1]})
	case len(parts) == 3 && parts[0] == "apis":
		return s.resourcesLocked(w, schema.GroupVersion{Group: parts[1], Version: parts[2]})
	default:
		return false
	}
	return true
}

func (s *Server) groupLocked(w http.ResponseWriter, name string) bool {
	group := metav1.APIGroup{TypeMeta: metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}, Name: name}
	var last string
	for _, k := range s.kindsLocked() {
		if k.Group == name && k.Version != last {
			group.Versions = append(group.Versions, metav1.GroupVersionForDiscovery{GroupVersion: k.GroupVersion().String(), Version: k.Version})
			last = k.Version
		}
	}
	if group.Versions == nil {
		return false
	}
	group.PreferredVersion = group.Versions[0]
	writeJSON(w, http.StatusOK, group)
	return true
}

func (s *Server) resourcesLocked(w http.ResponseWriter, gv schema.GroupVersion) bool {
	list := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: gv.String()}
	for _, k := range s.kindsLocked() {
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
	if list.APIResources == nil {
		return false
	}
	writeJSON(w, http.StatusOK, list)
	return true
}
