//go:build !nokubernetes

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/kubernetes/fakeapi"
	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// kubeWorld is a database with the resource apps, whose rows are manifests for the target prod in a cluster: a and b are applied, c is new.
type kubeWorld struct {
	*place

	db   *pgtest.DB
	fake *fakeapi.Server
}

const kubeSchema = `
CREATE TABLE public.apps (id text PRIMARY KEY, cluster text NOT NULL DEFAULT 'prod', manifest jsonb NOT NULL);
CREATE FUNCTION public.config(name text, value text) RETURNS jsonb LANGUAGE sql IMMUTABLE AS
$$ SELECT jsonb_build_object('apiVersion', 'v1', 'kind', 'ConfigMap', 'metadata', jsonb_build_object('name', name), 'data', jsonb_build_object('k', value)) $$;
INSERT INTO public.apps SELECT n, 'prod', public.config(n, '1') FROM unnest('{a,b,c}'::text[]) AS n;
SELECT reconciler.track('apps', 'public.apps', '{id}', 'cluster', spec => 'manifest');
INSERT INTO reconciler.targets (name, configured, driver) VALUES ('prod', true, 'kubernetes')`

func newKubeWorld(t *testing.T) *kubeWorld {
	t.Helper()
	w := &kubeWorld{place: newPlace(t), db: pgtest.New(t), fake: fakeapi.New(t)}
	w.db.Exec(t, kubeSchema)
	w.write(t, "reconciler.yaml", fmt.Sprintf("database_url: %q\ntargets: [{name: prod, driver: kubernetes, timeout: 2s, options: {kubeconfig: %q}}]\n",
		w.db.URL, w.fake.Kubeconfig(t)))
	w.apply(t, "a", "b")
	return w
}

// apply applies rows, and writes into the ledger what their owner would.
func (w *kubeWorld) apply(t *testing.T, keys ...string) {
	t.Helper()
	kind, ok := registry().Lookup("kubernetes")
	require.True(t, ok)
	drv, err := kind.Open("prod", driver.Options{"kubeconfig": w.fake.Kubeconfig(t)}, driver.Env{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, drv.Close(context.WithoutCancel(t.Context()))) })
	for _, key := range keys {
		var spec []byte
		require.NoError(t, w.db.Pool.QueryRow(t.Context(), "SELECT spec::text FROM reconciler.desired_apps WHERE key = $1", key).Scan(&spec))
		hash := driver.HashSpec(spec)
		out := drv.Apply(t.Context(), driver.Object{Ref: driver.Ref{Target: "prod", Resource: "apps", Key: key}, Spec: spec, Hash: hash})
		require.NoError(t, out.Err)
		w.db.Exec(t, `INSERT INTO reconciler.ledger (target_id, resource_id, key, state, wanted, present, desired_revision, applied_revision, applied_hash, applied_at, memory)
			SELECT t.id, r.id, $1, 'applied', true, true, 1, 1, $2, '2026-01-02 03:04:09+00', $3 FROM reconciler.targets t, reconciler.resources r
			ON CONFLICT (target_id, resource_id, key) DO UPDATE SET applied_hash = excluded.applied_hash, memory = excluded.memory`, key, hash[:], out.Memory)
	}
}

// edit changes a ConfigMap behind the driver's back.
func (w *kubeWorld) edit(t *testing.T, name, patch string) {
	t.Helper()
	client, err := dynamic.NewForConfig(w.fake.Config())
	require.NoError(t, err)
	_, err = client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Namespace("default").
		Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: "kubectl-edit"})
	require.NoError(t, err)
}

const createdC = `created: {"apiVersion":"v1","data":{"k":"1"},"kind":"ConfigMap","metadata":{"name":"c","namespace":"default"}}`

func TestDiffShowsWhatTheNextCallsWouldChange(t *testing.T) {
	t.Parallel()
	w := newKubeWorld(t)
	const missing = "prod apps/c: missing: a running row wants it, and it was not applied yet\n    ConfigMap c in default: " + createdC + "\n"
	require.Equal(t, result{code: 1, stderr: "reconciler: 1 object differs\n", stdout: missing}, w.run(t, "diff"))

	w.db.Exec(t, "UPDATE public.apps SET manifest = public.config('a', '2') WHERE id = 'a'; DELETE FROM public.apps WHERE id = 'b'")
	changed := `prod apps/a: different: its row changed after it was applied
    ConfigMap a in default .data.k: "1" -> "2"
`
	stale := `prod apps/b: stale: is in the target, and no running row wants it
    ConfigMap b in default: deleted: {"apiVersion":"v1","data":{"k":"1"},"kind":"ConfigMap","metadata":{"name":"b","namespace":"default"}}
`
	require.Equal(t, result{code: 1, stderr: "reconciler: 3 objects differ\n", stdout: changed + stale + missing}, w.run(t, "diff", "prod", "apps"))
	for key, want := range map[string]string{"a": changed, "b": stale, "c": missing} {
		require.Equal(t, result{code: 1, stderr: "reconciler: 1 object differs\n", stdout: want}, w.run(t, "diff", "prod", "apps", key))
	}

	r := w.run(t, "diff", "prod", "apps", "a", "-o", "json")
	var found []map[string]any
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &found))
	require.Equal(t, []map[string]any{{
		"target": "prod", "resource": "apps", "key": "a", "kind": "different", "reason": "its row changed after it was applied",
		"changes": []any{map[string]any{"object": "ConfigMap a in default", "field": ".data.k", "from": `"1"`, "to": `"2"`}},
	}}, found)
}

func TestDiffOfOneObject(t *testing.T) {
	t.Parallel()
	w := newKubeWorld(t)
	w.fake.ResetRequests()
	require.Equal(t, result{stdout: "no differences: 1 target, 1 running row compared\n"}, w.run(t, "diff", "prod", "apps", "a"))
	for _, r := range w.fake.Requests() {
		require.NotContains(t, r.Query, "labelSelector", "nothing is listed for one object")
	}
	w.edit(t, "a", `{"data": {"k": "9"}}`)
	r := w.run(t, "diff", "prod", "apps", "a")
	require.Equal(t, 1, r.code)
	require.True(t, strings.HasPrefix(r.stdout, "prod apps/a: different: was changed in the target\n"+
		"    ConfigMap a in default: refused: kubectl-edit owns .data.k: "), r.stdout)
	w.db.Exec(t, "UPDATE reconciler.ledger SET state = 'blocked', last_error = 'no' WHERE key = 'b'")
	w.edit(t, "b", `{"data": {"k": null}}`)
	require.Equal(t, "prod apps/b: blocked: cannot be applied: no; waits for a change of its row, or SELECT reconciler.retry('prod', 'apps', 'b');\n"+
		"    ConfigMap b in default .data.k: added: \"1\"\n", w.run(t, "diff", "prod", "apps", "b").stdout)

	w.db.Exec(t, "DELETE FROM reconciler.ledger WHERE key = 'a'; DELETE FROM public.apps WHERE id = 'a'")
	require.Contains(t, w.run(t, "diff", "prod", "apps", "a").stdout, "prod apps/a: orphan: is in the target, and neither a row nor the ledger knows it\n")
}

func TestDiffOfOneObjectWithoutADriverThatCanTell(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.db.Exec(t, "UPDATE public.deployments SET image = 'app:2' WHERE id IN (1, 2)")
	require.Equal(t, result{code: 1, stderr: "reconciler: 1 object differs\n", stdout: "eu deployments/1: different: its row changed after it was applied\n"},
		w.run(t, "diff", "eu", "deployments", "1"))
	require.Equal(t, result{stdout: "no differences: 1 target, 1 running row compared\n"}, w.run(t, "diff", "us", "deployments", "5"))
	require.Equal(t, result{code: 2, stderr: "reconciler: target eu has no object \"77\" of resource deployments\n" +
		"hint: What is known of it: reconciler explain -- eu deployments 77\n"}, w.run(t, "diff", "eu", "deployments", "77"))
}

func TestDiffRefusesNamesThatThereAreNot(t *testing.T) {
	t.Parallel()
	w := newKubeWorld(t)
	require.Equal(t, result{code: 2, stderr: "reconciler: no resource is named \"x\"\nhint: Resources: apps\n"}, w.run(t, "diff", "prod", "x"))
	require.Equal(t, result{code: 2, stderr: "reconciler: target prod has no object \"x\" of resource apps\nhint: What is known of it: reconciler explain -- prod apps x\n"},
		w.run(t, "diff", "prod", "apps", "x"))
	require.Equal(t, result{code: 2, stderr: "reconciler: reconciler diff takes [TARGET [RESOURCE [KEY]]], and got 1 arguments too many: [\"x\"]\nhint: see `reconciler diff --help`\n"},
		w.run(t, "diff", "prod", "apps", "a", "x"))
}

func TestDiffOfATargetThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	w := newKubeWorld(t)
	ended := make(chan struct{})
	t.Cleanup(func() { close(ended) })
	w.fake.Fail(func(r *http.Request) *fakeapi.Failure {
		if r.Method == http.MethodPatch {
			<-ended
		}
		return nil
	})
	r := w.run(t, "diff")
	require.Equal(t, 4, r.code)
	require.Equal(t, "prod apps/c: missing: a running row wants it, and it was not applied yet\n", r.stdout)
	require.Equal(t, "reconciler: what a call for apps/c would change in target prod is not known: no answer within 2s\n", r.stderr)
	w.fake.Fail(func(*http.Request) *fakeapi.Failure { return &fakeapi.Failure{Code: http.StatusUnauthorized} })
	r = w.run(t, "diff", "prod", "apps", "c")
	require.Equal(t, 3, r.code)
	require.Contains(t, r.stderr, "reconciler: what a call for apps/c would change in target prod is not known: the cluster refuses the credentials: ")
	r = w.run(t, "diff")
	require.Equal(t, 3, r.code)
	require.Contains(t, r.stderr, "reconciler: list what target prod has: ")
}

// Beside a running process: neither the cluster nor the database is written to.
func TestDiffOfAClusterWritesNothing(t *testing.T) {
	t.Parallel()
	w := newKubeWorld(t)
	w.db.Exec(t, "UPDATE public.apps SET manifest = public.config('a', '2') WHERE id = 'a'; DELETE FROM public.apps WHERE id = 'b'")
	state := func() (text string) {
		require.NoError(t, w.db.Pool.QueryRow(t.Context(), `SELECT md5(string_agg(x::text, E'\n' ORDER BY x::text)) FROM (
			SELECT l::text FROM reconciler.ledger l UNION ALL SELECT o::text FROM reconciler.outbox o UNION ALL SELECT t::text FROM reconciler.targets t) AS u(x)`).Scan(&text))
		return text
	}
	before := state()
	w.fake.ResetRequests()
	require.Equal(t, 1, w.run(t, "diff").code)
	require.Equal(t, 1, w.run(t, "diff", "prod", "apps", "a").code)
	dry := 0
	for _, r := range w.fake.Requests() {
		if r.Verb != http.MethodGet {
			dry++
			require.Equal(t, "All", r.Query.Get("dryRun"), "%s %s", r.Verb, r.Path)
		}
	}
	require.Equal(t, 3, dry)
	require.Equal(t, before, state())
}

func TestRBACPrintsRolesForTheRowsOfATarget(t *testing.T) {
	t.Parallel()
	w := newKubeWorld(t)
	w.db.Exec(t, `DELETE FROM public.apps WHERE id = 'b'; INSERT INTO public.apps SELECT 'r' || i, 'prod', jsonb_build_object('apiVersion', 'apps/v1', 'kind', 'Deployment',
		'metadata', jsonb_build_object('name', 'r' || i, 'namespace', 'kube-system')) FROM generate_series(1, 1200) AS i; INSERT INTO public.apps VALUES ('bad', 'prod', '1'),
		('z', 'prod', '{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "z", "namespace": "kube-system"}}')`)
	w.fake.ResetRequests()
	r := w.run(t, "kubernetes", "rbac", "prod", "--service-account", "ops/robot")
	require.Zero(t, r.code)
	require.Equal(t, "note: apps/bad is left out: the spec is neither a manifest nor a list of manifests\n", r.stderr)
	require.Equal(t, 3, strings.Count(r.stdout, "Binding\nmetadata:\n  name: reconciler-prod\n"), r.stdout)
	require.Equal(t, 3, strings.Count(r.stdout, "subjects:\n- kind: ServiceAccount\n  name: robot\n  namespace: ops\n"))
	require.Contains(t, r.stdout, "  - services\n  verbs:\n  - get\n  - create\n  - patch\n  - delete\n- apiGroups:\n  - apps\n  resources:\n  - deployments\n  verbs:\n  - get\n  - create\n  - patch\n  - delete\n---\n")
	for _, request := range w.fake.Requests() {
		require.Equal(t, http.MethodGet, request.Verb)
	}

	var printed struct{ Manifests string }
	require.NoError(t, json.Unmarshal([]byte(w.run(t, "kubernetes", "rbac", "prod", "--service-account", "ops/robot", "-o", "json").stdout), &printed))
	require.Equal(t, r.stdout, printed.Manifests)
	w.fake.Fail(func(*http.Request) *fakeapi.Failure { return &fakeapi.Failure{Code: http.StatusUnauthorized} })
	require.Equal(t, 3, w.run(t, "kubernetes", "rbac", "prod").code)
}

// Members of a row that is gone are known to the ledger's memory only.
func TestRBACKnowsWhatTheLedgerRemembers(t *testing.T) {
	t.Parallel()
	w := newKubeWorld(t)
	w.db.Exec(t, "DELETE FROM public.apps")
	require.Contains(t, w.run(t, "kubernetes", "rbac", "prod").stdout, "  - configmaps\n  verbs:\n  - get\n  - delete\n")
}

func TestRBACRefusesBadInput(t *testing.T) {
	t.Parallel()
	w := newKubeWorld(t)
	const hint = "\nhint: see `reconciler kubernetes rbac --help`\n"
	require.Equal(t, result{code: 2, stderr: "reconciler: no target \"x\" is configured\nhint: Targets of the configuration: prod\n"}, w.run(t, "kubernetes", "rbac", "x"))
	require.Equal(t, result{code: 2, stderr: "reconciler: --service-account: \"A/B\" is not a service account: write NAMESPACE/NAME" + hint},
		w.run(t, "kubernetes", "rbac", "prod", "--service-account", "A/B"))
	require.Equal(t, result{code: 2, stderr: "reconciler: target eu has the driver file: there are no roles for it" + hint}, newWorld(t).run(t, "kubernetes", "rbac", "eu"))
}
