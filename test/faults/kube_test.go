package faults_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/kubernetes/fakeapi"
)

// kubeCluster is a Kubernetes API server that fails as its endpoint does, and whose objects people change. A call is a write of the first
// member of an object.
type kubeCluster struct {
	*endpoint

	world  *world
	fake   *fakeapi.Server
	manual map[string]any // options of the driver
	r      *rand.Rand     // of what people do
	ends   []due          // of that

	one     sync.Mutex        // one write at a time. It guards what follows
	names   map[string]object // by name of the first member
	foreign map[string]string // by uid: objects of others, which must stay as they are
	struck  map[string]int    // how often people have changed an object
	writes  int               // of the product
	leaving bool              // the namespace side is deleted
	calm    bool              // connections are not cut any more
}

// The namespaces of a cluster. Members in side may lose it.
const (
	namespaceMain = "default"
	namespaceSide = "side"
)

// manifests replaces test.spec(): specs are lists of one to three manifests, which grow and shrink with each version.
const manifests = `
CREATE OR REPLACE FUNCTION test.spec(resource text, key text, state jsonb) RETURNS jsonb IMMUTABLE LANGUAGE sql AS $$
    SELECT jsonb_agg(m ORDER BY n) FROM (VALUES
        (1, jsonb_build_object('apiVersion', 'v1', 'kind', 'ConfigMap', 'metadata', jsonb_build_object('name', resource || '-' || md5(key)),
            'data', jsonb_build_object('state', state::text))),
        (2, jsonb_build_object('apiVersion', 'v1', 'kind', 'ConfigMap', 'metadata', jsonb_build_object('name', resource || '-' || md5(key),
            'namespace', 'side'), 'data', jsonb_build_object('state', state::text))),
        (3, jsonb_build_object('apiVersion', 'v1', 'kind', 'ServiceAccount', 'metadata', jsonb_build_object('name', resource || '-' || md5(key))))
    ) AS members (n, m) WHERE n = 1 OR (state ->> 'version')::bigint % n = 0
$$;`

// kubeObject is what is judged of an object of a cluster.
type kubeObject struct {
	Kind     string `json:"kind"`
	Metadata struct {
		Name        string            `json:"name"`
		Namespace   string            `json:"namespace"`
		UID         string            `json:"uid"`
		Labels      map[string]string `json:"labels"`
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
	Data map[string]string `json:"data"`
}

// addKubernetes makes one target of every third world a cluster. Worlds that once failed are left as they were.
func (p *plan) addKubernetes(r *rand.Rand) {
	if r.IntN(3) > 0 || slices.Contains(slices.Concat(briefSeeds, longSeeds), p.Seed) || p.Seed == agentSeed {
		return
	}
	t := &p.Targets[r.IntN(len(p.Targets)-1)]
	t.Driver, t.Fences = "kubernetes", false
	// The spec of uid is the whole row, which is no manifest.
	p.Resources = slices.DeleteFunc(p.Resources, func(name string) bool { return name == "uid" })
	if len(p.Resources) == 1 {
		p.Resources = append(p.Resources, "txt")
	}
}

// kubernetes reports whether a target of the world is a cluster.
func (p *plan) kubernetes() bool {
	return slices.ContainsFunc(p.Targets, func(t targetPlan) bool { return t.Driver == "kubernetes" })
}

func (w *world) clusters() (all []*kubeCluster) {
	for _, e := range w.endpoints {
		if e.cluster != nil {
			all = append(all, e.cluster)
		}
	}
	return all
}

func newKubeCluster(w *world, e *endpoint) *kubeCluster {
	c := &kubeCluster{
		endpoint: e, world: w, fake: fakeapi.New(w.t), r: w.plan.stream(streamKubernetes + 1),
		names: map[string]object{}, foreign: map[string]string{}, struck: map[string]int{},
	}
	https := httptest.NewUnstartedServer(c) // over HTTP, clients send no token
	https.StartTLS()
	e.server, e.url = https.Config, https.URL
	c.manual = []map[string]any{{"force_managers": []string{byHand}}, {"conflicts": "force"}}[c.r.IntN(2)]
	c.makeSide()
	for i := range 6 {
		c.plant(fmt.Sprintf("foreign-%d", i))
	}
	return c
}

// options are those of the driver. A program gives each process a token of its own, which names it.
func (c *kubeCluster) options() map[string]any {
	path := filepath.Join(c.world.dir, c.plan.Name+".kubeconfig")
	text := fmt.Sprintf(`
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: c}}]
clusters: [{name: c, cluster: {server: %q, insecure-skip-tls-verify: true}}]
users: [{name: c, user: {exec: {apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, command: sh, args: [-c, '
  echo "{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"kind\":\"ExecCredential\",\"status\":{\"token\":\"$WORLD_REPLICA\"}}"']}}}]
`, c.url)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		c.world.violate("tester", "%v", err)
	}
	options := map[string]any{"kubeconfig": path, "namespace": namespaceMain}
	for name, value := range c.manual {
		options[name] = value
	}
	return options
}

func (c *kubeCluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client went in the middle of its request
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	m := c.read(r, body)
	how := c.chance(m)
	watch := r.URL.Query().Has("watch")
	c.mu.Lock()
	c.counts[how]++
	c.mu.Unlock()
	if watch && !slices.Contains([]string{callDown, call500, call503, call429, callCut}, how) {
		c.fake.ServeHTTP(&cutWriter{w, c, rand.IntN(20_000)}, r)
		return
	}
	var journalled *call
	if m.Key != "" {
		replica := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		journalled = c.journal.begin(call{
			Object: object{c.plan.Name, m.Resource, m.Key}, Delete: m.Action == "delete", Versions: m.versions(), Replica: replica, Remote: c.plan.Remote,
		})
	}
	outcome, gone := c.act(w, r, how, func() {}, func() (string, *httptest.ResponseRecorder) { return "", c.take(r, body, journalled) })
	if journalled != nil {
		c.journal.end(journalled, outcome, gone)
	}
}

// read returns which object a request is for, if it writes the first member of one.
func (c *kubeCluster) read(r *http.Request, body []byte) (m message) {
	name, first := strings.CutPrefix(r.URL.Path, "/api/v1/namespaces/"+namespaceMain+"/configmaps/")
	var is kubeObject
	if !first || r.Method != http.MethodDelete && (r.Method != http.MethodPatch || json.Unmarshal(body, &is) != nil) {
		return m
	}
	c.one.Lock()
	defer c.one.Unlock()
	o, marked := is.row(c.plan.Name)
	switch {
	case r.Method == http.MethodDelete:
		o = c.names[name]
		return message{Action: "delete", Resource: o.Resource, Key: o.Key}
	case !marked:
		return m // it is the ApplySet
	}
	c.names[name] = o
	return message{Action: "apply", Resource: o.Resource, Key: o.Key, Spec: json.RawMessage("[" + string(body) + "]")}
}

// take lets a request take effect, and judges it.
func (c *kubeCluster) take(r *http.Request, body []byte, journalled *call) *httptest.ResponseRecorder {
	answer := httptest.NewRecorder()
	if r.Method == http.MethodGet {
		c.fake.ServeHTTP(answer, r)
		return answer
	}
	c.one.Lock()
	defer c.one.Unlock()
	c.writes++
	_, before := c.do(http.MethodGet, r.URL.Path, "")
	c.fake.ServeHTTP(answer, r)
	_, after := c.do(http.MethodGet, r.URL.Path, "")
	if wrong := wrongWrite(r.Method, body, before, after, c.foreign); wrong != "" {
		c.world.violate("K8s write", "%s of %s: %s", r.Method, r.URL.Path, wrong)
	}
	if journalled != nil && answer.Code < http.StatusBadRequest {
		c.journal.took(journalled)
	}
	return answer
}

// do sends a request as people do, under a manager of their own. It needs one, if it writes.
func (c *kubeCluster) do(method, path, body string) (code int, answer string) {
	r := httptest.NewRequest(method, path+"?fieldManager="+byHand, strings.NewReader(body))
	r.Header.Set("Content-Type", map[string]string{http.MethodPatch: "application/merge-patch+json"}[method])
	w := httptest.NewRecorder()
	c.fake.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

// objects returns what the cluster has of the kinds that worlds know.
func (c *kubeCluster) objects() (all []kubeObject) {
	for _, kind := range []string{"configmaps", "serviceaccounts"} {
		var list struct{ Items []kubeObject }
		if code, text := c.do(http.MethodGet, "/api/v1/"+kind, ""); json.Unmarshal([]byte(text), &list) != nil {
			c.world.violate("tester", "list %s: %d %s", kind, code, text)
		}
		all = append(all, list.Items...)
	}
	return all
}

func (is kubeObject) path() string {
	return fmt.Sprintf("/api/v1/namespaces/%s/%ss/%s", is.Metadata.Namespace, strings.ToLower(is.Kind), is.Metadata.Name)
}

// row returns the object that a member is of, by its annotation.
func (is kubeObject) row(target string) (o object, marked bool) {
	resource, key, marked := strings.Cut(is.Metadata.Annotations[markRow], " ")
	resource, err := driver.DecodeKey(resource)
	if err == nil {
		key, err = driver.DecodeKey(key)
	}
	return object{target, resource, key}, marked && err == nil
}

// cutWriter ends a watch after some bytes.
type cutWriter struct {
	http.ResponseWriter

	cluster *kubeCluster
	left    int
}

func (w *cutWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *cutWriter) Write(text []byte) (int, error) {
	w.cluster.one.Lock()
	calm := w.cluster.calm
	w.cluster.one.Unlock()
	if n := w.left; !calm && n < len(text) {
		_, _ = w.ResponseWriter.Write(text[:n]) // the client may have gone
		_ = http.NewResponseController(w.ResponseWriter).Flush()
		panic(http.ErrAbortHandler)
	}
	w.left -= len(text)
	return w.ResponseWriter.Write(text)
}
