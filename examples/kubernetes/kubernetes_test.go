package kubernetes_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pgreconciler/reconciler/examples/internal/exampletest"
	"github.com/pgreconciler/reconciler/internal/pgtest"
)

const (
	patience = pgtest.Patience
	poll     = 20 * time.Millisecond
)

var (
	namespaces  = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	services    = schema.GroupVersionResource{Version: "v1", Resource: "services"}
	deployments = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	scalers     = schema.GroupVersionResource{Group: "autoscaling", Version: "v2", Resource: "horizontalpodautoscalers"}
	policies    = schema.GroupVersionResource{Group: "networking.k8s.io", Version: "v1", Resource: "networkpolicies"}
	resources   = map[string]schema.GroupVersionResource{
		"Deployment": deployments, "Service": services, "HorizontalPodAutoscaler": scalers, "NetworkPolicy": policies,
	}
)

func TestMigrationsAndSeedRunAgain(t *testing.T) {
	t.Parallel()
	db := exampletest.New(t, pgtest.New(t).URL, example(t), nil)
	require.Empty(t, db.Messages())
	for range 2 { // the second time adds nothing
		require.NoError(t, example(t).Fill(t.Context(), db.SQL))
	}
	require.Equal(t, []string{"9 rows in 3 clusters"}, exampletest.Rows[string](t, db,
		"SELECT format('%s rows in %s clusters', count(*), count(DISTINCT target)) FROM reconciler.desired_workload WHERE running"))
	require.Empty(t, exampletest.Rows[string](t, db, "SELECT problem FROM reconciler.capture_problems()"))
	require.NoError(t, example(t).Down(t.Context(), db.SQL))
	require.NoError(t, example(t).Up(t.Context(), db.SQL))
}

func TestRefusesWhatKubernetesWould(t *testing.T) {
	t.Parallel()
	db := exampletest.New(t, pgtest.New(t).URL, example(t), nil)
	for _, name := range []string{"", "Shop", "1shop", "shop-", strings.Repeat("s", 54)} {
		_, err := db.SQL.ExecContext(t.Context(), "INSERT INTO kubernetes.teams VALUES ($1, 'kim')", name)
		require.ErrorContains(t, err, "name_check", name)
	}
}

// TestReadmeIsTrue types what README.md has people type, beside a daemon and an agent.
func TestReadmeIsTrue(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.settled(t)
	blocks := exampletest.Readme(t)
	require.Len(t, blocks, 6)
	typed := func(n int) {
		t.Helper()
		w.Exec(t, strings.Join(blocks[n], ";\n"))
		w.settled(t)
		w.compare(t)
	}
	w.compare(t)
	w.scale(t, "web", 7)

	typed(0) // a release
	for _, cluster := range clusterNames {
		require.Equal(t, "registry.example.org/web:2", w.container(t, cluster, "web")["image"], cluster)
		require.EqualValues(t, 7, w.field(t, cluster, deployments, "web", "spec", "replicas"), "the autoscaler's")
	}

	typed(1) // more in one cluster
	require.EqualValues(t, 20, w.field(t, "us", scalers, "web", "spec", "maxReplicas"))
	require.EqualValues(t, 10, w.field(t, "eu", scalers, "web", "spec", "maxReplicas"))
	require.Contains(t, w.container(t, "us", "web")["env"], map[string]any{"name": "LOG_LEVEL", "value": "debug"})
	require.Contains(t, w.container(t, "eu", "web")["env"], map[string]any{"name": "LOG_LEVEL", "value": "info"})

	for _, cluster := range clusterNames { // edits and deletes by hand
		w.patch(t, cluster, scalers, "web", "kubectl-edit", `{"spec": {"maxReplicas": 3}}`)
		require.NoError(t, w.clusters[cluster].Resource(services).Namespace("shop").Delete(t.Context(), "api", metav1.DeleteOptions{}))
	}
	require.Eventually(t, func() bool { return w.differences(t) == "" }, patience, poll)

	typed(2) // an app that goes from one cluster
	require.Equal(t, []string{"eu", "us"}, w.having(t, "api"))

	typed(3) // a cluster is drained, and filled again
	require.Equal(t, []string{"eu", "ap"}, w.having(t, "index"))
	typed(4)
	require.Equal(t, clusterNames, w.having(t, "index"))
	for _, cluster := range clusterNames {
		for _, name := range []string{"shop", "search"} {
			_, err := w.clusters[cluster].Resource(namespaces).Get(t.Context(), name, metav1.GetOptions{})
			require.NoError(t, err, "no namespace goes with an app")
		}
	}

	w.Exec(t, strings.Join(blocks[5], ";\n")) // a release, cluster by cluster
	const waits = "waiting for eu: not healthy: workload eu/shop/web: "
	require.Eventually(t, func() bool {
		return strings.HasPrefix(w.detail(t, "us"), waits)
	}, patience, poll)
	images := func() (all []any) {
		for _, cluster := range clusterNames {
			all = append(all, w.container(t, cluster, "web")["image"])
		}
		return all
	}
	const old, released = "registry.example.org/web:2", "registry.example.org/web:3"
	require.Equal(t, []any{released, old, old}, images())
	w.work(t, "eu", "web")
	w.settled(t)
	require.Equal(t, []any{released, released, released}, images())
	w.compare(t)
}

// detail returns what an operation of the newest rollout waits for.
func (w *world) detail(t *testing.T, target string) string {
	t.Helper()
	return exampletest.Rows[string](t, w.Database, "SELECT coalesce(max(detail), '') FROM reconciler.apply_targets WHERE target = $1", target)[0]
}

// compare fails unless the clusters have the manifests of all rows, and no object of another placement.
func (w *world) compare(t *testing.T) {
	t.Helper()
	require.Empty(t, w.differences(t))
}

func (w *world) differences(t *testing.T) string {
	t.Helper()
	var wanted []struct {
		Cluster, Team, App string
		Placed             bool
		Spec               []map[string]any
	}
	text := exampletest.Rows[string](t, w.Database, "SELECT jsonb_agg(w)::text FROM kubernetes.workloads w")[0]
	require.NoError(t, json.Unmarshal([]byte(text), &wanted))
	count := map[string]int{}
	for _, one := range wanted {
		if !one.Placed {
			continue
		}
		for _, manifest := range one.Spec {
			kind, _ := manifest["kind"].(string)
			count[one.Cluster+" "+kind]++
			live := w.get(t, one.Cluster, resources[kind], one.Team, one.App)
			if live == nil || !covers(manifest, live.Object) {
				return fmt.Sprintf("%s %s in %s is\n%v, and shall be\n%v", kind, one.App, one.Cluster, live, manifest)
			}
		}
	}
	for _, cluster := range clusterNames {
		for kind, resource := range resources {
			have, err := w.clusters[cluster].Resource(resource).List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/managed-by=reconciler"})
			require.NoError(t, err)
			if len(have.Items) != count[cluster+" "+kind] {
				return fmt.Sprintf("%s has %d objects of kind %s, and shall have %d", cluster, len(have.Items), kind, count[cluster+" "+kind])
			}
		}
	}
	return ""
}

// covers reports whether an object has all that a manifest names.
func covers(want, have any) bool {
	switch want := want.(type) {
	case map[string]any:
		have, ok := have.(map[string]any)
		for name := range want {
			ok = ok && covers(want[name], have[name])
		}
		return ok
	case []any:
		have, ok := have.([]any)
		ok = ok && len(want) == len(have)
		for i := range want {
			ok = ok && covers(want[i], have[i])
		}
		return ok
	default:
		return fmt.Sprint(want) == fmt.Sprint(have)
	}
}

// get returns an object; nil: there is none.
func (w *world) get(t *testing.T, cluster string, of schema.GroupVersionResource, namespace, name string) *unstructured.Unstructured {
	t.Helper()
	live, err := w.clusters[cluster].Resource(of).Namespace(namespace).Get(t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	require.NoError(t, err)
	return live
}

// field returns a field of an object of the team shop.
func (w *world) field(t *testing.T, cluster string, of schema.GroupVersionResource, name string, path ...string) any {
	t.Helper()
	live := w.get(t, cluster, of, "shop", name)
	require.NotNil(t, live)
	value, _, err := unstructured.NestedFieldNoCopy(live.Object, path...)
	require.NoError(t, err)
	return value
}

func (w *world) container(t *testing.T, cluster, app string) map[string]any {
	t.Helper()
	all, _ := w.field(t, cluster, deployments, app, "spec", "template", "spec", "containers").([]any)
	require.Len(t, all, 1)
	one, _ := all[0].(map[string]any)
	return one
}

// having returns the clusters that have a Deployment, in whatever namespace.
func (w *world) having(t *testing.T, app string) (clusters []string) {
	t.Helper()
	for _, cluster := range clusterNames {
		if w.get(t, cluster, deployments, "shop", app) != nil || w.get(t, cluster, deployments, "search", app) != nil {
			clusters = append(clusters, cluster)
		}
	}
	return clusters
}

func (w *world) patch(t *testing.T, cluster string, of schema.GroupVersionResource, name, manager, patch string) {
	t.Helper()
	_, err := w.clusters[cluster].Resource(of).Namespace("shop").Patch(t.Context(), name, types.MergePatchType, []byte(patch),
		metav1.PatchOptions{FieldManager: manager})
	require.NoError(t, err)
}

// work has an app of the team shop work, as it does in a cluster with nodes.
func (w *world) work(t *testing.T, cluster, app string) {
	t.Helper()
	if startPods != nil {
		startPods(t, w.clusters[cluster], app)
	}
	generation := w.get(t, cluster, deployments, "shop", app).GetGeneration()
	for of, status := range map[schema.GroupVersionResource]map[string]any{
		services: {"loadBalancer": map[string]any{}},
		scalers:  {"currentReplicas": 7, "desiredReplicas": 7},
		deployments: {
			"observedGeneration": generation, "replicas": 7, "updatedReplicas": 7, "readyReplicas": 7, "availableReplicas": 7,
			"conditions": []any{map[string]any{"type": "Available", "status": "True"}},
		},
	} {
		if of == deployments && startPods != nil {
			continue // its controller writes it
		}
		text, err := json.Marshal(map[string]any{"status": status})
		require.NoError(t, err)
		_, err = w.clusters[cluster].Resource(of).Namespace("shop").Patch(t.Context(), app, types.MergePatchType, text,
			metav1.PatchOptions{FieldManager: "kube-controller-manager"}, "status")
		require.NoError(t, err)
	}
}

// scale does in each cluster what a HorizontalPodAutoscaler does.
func (w *world) scale(t *testing.T, app string, replicas int) {
	t.Helper()
	for _, cluster := range clusterNames {
		w.patch(t, cluster, deployments, app, "kube-controller-manager", fmt.Sprintf(`{"spec": {"replicas": %d}}`, replicas))
	}
}
