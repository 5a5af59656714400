package fakeapi

import (
	"cmp"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Server is an API server. Its methods can be called at any time.
type Server struct {
	URL string

	http *httptest.Server

	mu        sync.Mutex // guards what follows
	served    map[schema.GroupVersionResource]*kind
	stored    map[schema.GroupResource]map[string]*unstructured.Unstructured // by namespace/name; never changed in place
	version   uint64                                                         // resourceVersion of the last write
	compacted uint64                                                         // events up to here are gone
	events    []event
	written   chan struct{} // closed by the next write, Cut or end
	cuts      int           // how often Cut was called
	pages     map[string]page
	crdsWait  bool
	fail      func(*http.Request) *Failure
	admit     func(*unstructured.Unstructured) error
	requests  []Request
	ended     bool
}

// Request is a request that the server got.
type Request struct {
	Verb  string // of HTTP
	Path  string
	Query url.Values
}

// Failure is an answer instead of the server's.
type Failure struct {
	Code   int
	Status *metav1.Status // nil: Text, as plain text
	Text   string         // "": the code's
	Header http.Header
	Abort  bool // close the connection without an answer
	Empty  bool // answer 200 with nothing, as a proxy may answer a watch
}

// New starts a server that has the namespaces default and kube-system. It ends with the test.
func New(t testing.TB) *Server {
	t.Helper()
	converter, err := builtinSchemas()
	require.NoError(t, err)
	s := &Server{
		served: builtin(converter), stored: map[schema.GroupResource]map[string]*unstructured.Unstructured{},
		written: make(chan struct{}), pages: map[string]page{},
	}
	s.http = httptest.NewServer(s)
	s.URL = s.http.URL
	t.Cleanup(func() {
		s.mu.Lock()
		s.ended = true
		s.wakeLocked()
		s.mu.Unlock()
		s.http.Close()
	})
	for _, name := range []string{"default", "kube-system"} {
		namespace := &unstructured.Unstructured{}
		namespace.SetName(name)
		_, err = s.create(request{kind: s.served[namespaces.WithVersion("v1")], manager: "fakeapi"}, namespace)
		require.NoError(t, err)
	}
	s.Compact()
	return s
}

// Config returns a configuration of a client without limits of its own.
func (s *Server) Config() *rest.Config { return &rest.Config{Host: s.URL, QPS: -1} }

// Kubeconfig writes a kubeconfig file and returns its path.
func (s *Server) Kubeconfig(t testing.TB) string {
	t.Helper()
	config := clientcmdapi.NewConfig()
	config.Clusters["fake"] = &clientcmdapi.Cluster{Server: s.URL}
	config.AuthInfos["fake"] = &clientcmdapi.AuthInfo{Token: "fake"}
	config.Contexts["fake"] = &clientcmdapi.Context{Cluster: "fake", AuthInfo: "fake"}
	config.CurrentContext = "fake"
	path := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, clientcmd.WriteToFile(*config, path))
	return path
}

// Fail has fail look at every request before the server does. Where it returns nil, the server answers.
func (s *Server) Fail(fail func(r *http.Request) *Failure) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = fail
}

// Admit has admit see and change every object before it is written, as defaults and admission do. Its error is the answer.
func (s *Server) Admit(admit func(obj *unstructured.Unstructured) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.admit = admit
}

// Requests returns all requests since the start or the last ResetRequests.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Request(nil), s.requests...)
}

// ResetRequests forgets the requests so far.
func (s *Server) ResetRequests() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = nil
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.requests = append(s.requests, Request{Verb: r.Method, Path: r.URL.Path, Query: r.URL.Query()})
	fail := s.fail
	s.mu.Unlock()
	if fail != nil {
		if failure := fail(r); failure != nil {
			failure.write(w)
			return
		}
	}
	if r.Method == http.MethodGet && s.discover(w, r) {
		return
	}
	req, ok := s.parse(r)
	if !ok {
		unknown(w, r)
		return
	}
	if r.Method == http.MethodGet && r.URL.Query().Get("watch") != "" {
		s.watch(w, r, req)
		return
	}
	code, answer, err := s.answer(r, req)
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, code, answer)
}

func (f *Failure) write(w http.ResponseWriter) {
	if f.Abort {
		panic(http.ErrAbortHandler)
	}
	if f.Empty {
		w.Header().Set("Content-Type", "application/json")
		return
	}
	for name, values := range f.Header {
		w.Header()[http.CanonicalHeaderKey(name)] = values
	}
	if f.Status == nil {
		http.Error(w, cmp.Or(f.Text, http.StatusText(f.Code)), f.Code)
		return
	}
	writeJSON(w, f.Code, f.Status)
}

func writeJSON(w http.ResponseWriter, code int, body any) {
	if w.Header().Get("Content-Type") == "" {
		w.Header().Set("Content-Type", "application/json")
	}
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body)
}

// unknown answers a path that is not served. Built-in groups have an answer of their own.
func unknown(w http.ResponseWriter, r *http.Request) {
	group, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/apis/"), "/")
	if !strings.HasPrefix(r.URL.Path, "/api/") && !slices.Contains(builtinGroups, group) {
		http.NotFound(w, r)
		return
	}
	writeError(w, &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound, Details: &metav1.StatusDetails{},
		Message: "the server could not find the requested resource",
	}})
}

// request is a request for a resource.
type request struct {
	kind                 *kind
	namespace, name, sub string
	manager              string
	metadataOnly         bool
	dry                  bool // nothing is written: PATCH, PUT and POST only
}

func (s *Server) parse(r *http.Request) (request, bool) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	var gv schema.GroupVersion
	switch {
	case len(parts) > 2 && parts[0] == "api":
		gv.Version, parts = parts[1], parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		gv.Group, gv.Version, parts = parts[1], parts[2], parts[3:]
	default:
		return request{}, false
	}
	req := request{dry: r.URL.Query().Has("dryRun"), metadataOnly: strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata")}
	if len(parts) > 2 && parts[0] == "namespaces" && parts[2] != "status" {
		req.namespace, parts = parts[1], parts[2:]
	}
	s.mu.Lock()
	req.kind = s.served[gv.WithResource(parts[0])]
	s.mu.Unlock()
	if req.kind == nil || len(parts) > 3 || (!req.kind.namespaced && req.namespace != "") {
		return request{}, false
	}
	if len(parts) > 1 {
		req.name = parts[1]
	}
	if len(parts) > 2 {
		req.sub = parts[2]
	}
	if req.sub != "" && (req.sub != "status" || !req.kind.status) {
		return request{}, false
	}
	req.manager = r.URL.Query().Get("fieldManager")
	if req.manager == "" {
		req.manager, _, _ = strings.Cut(r.UserAgent(), "/")
	}
	return req, true
}
