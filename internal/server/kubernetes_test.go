package server_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/kubernetes"
	"github.com/pgreconciler/reconciler/internal/driver/kubernetes/fakeapi"
	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// cluster is a cluster with ConfigMaps for rows.
type cluster struct {
	w      *world
	driver driver.Driver
	maps   dynamic.ResourceInterface
}

// cluster makes a cluster, and a table whose rows have a ConfigMap for each of their parts.
func (w *world) cluster() *cluster {
	w.t.Helper()
	w.db.Exec(w.t, `CREATE TABLE apps (name text PRIMARY KEY, image text NOT NULL, parts text[] NOT NULL);
		INSERT INTO apps VALUES ('api', 'v1', '{a}'), ('web', 'v1', '{a,b}');
		SELECT reconciler.track('app', 'apps', '{name}', $$'eu'$$, spec => $$(SELECT coalesce(jsonb_agg(jsonb_build_object('apiVersion', 'v1',
			'kind', 'ConfigMap', 'metadata', jsonb_build_object('name', name || '-' || part), 'data', jsonb_build_object('image', image))), '[]')
			FROM unnest(parts) AS part)$$)`)
	d, admin := w.kubernetes()
	return &cluster{w: w, driver: d, maps: admin.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Namespace("default")}
}

// kubernetes returns the driver of a cluster, and what its administrators use.
func (w *world) kubernetes() (driver.Driver, dynamic.Interface) {
	w.t.Helper()
	server := fakeapi.New(w.t)
	d, err := kubernetes.Kind().Open("eu", driver.Options{"kubeconfig": server.Kubeconfig(w.t), "force_managers": []any{"kubectl"}}, driver.Env{})
	require.NoError(w.t, err)
	w.t.Cleanup(func() { require.NoError(w.t, d.Close(context.Background())) })
	admin, err := dynamic.NewForConfig(server.Config())
	require.NoError(w.t, err)
	return d, admin
}

// has waits until the cluster has these ConfigMaps with these images, and no other.
func (c *cluster) has(want map[string]string) {
	c.w.t.Helper()
	require.NoError(c.w.t, pgtest.Poll(context.Background(), deadline, func() error {
		list, err := c.maps.List(context.Background(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		have := map[string]string{}
		for _, one := range list.Items {
			if data, ok := one.Object["data"].(map[string]any); ok && !strings.HasPrefix(one.GetName(), "reconciler-") {
				have[one.GetName()] = fmt.Sprint(data["image"])
			}
		}
		if !maps.Equal(have, want) {
			return fmt.Errorf("want %v\nhave %v", want, have)
		}
		return nil
	}))
}

func (c *cluster) edit(name, manager, patch string) {
	c.w.t.Helper()
	_, err := c.maps.Patch(context.Background(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: manager})
	require.NoError(c.w.t, err)
}

const appStates = `SELECT string_agg(key || ' ' || state, ', ' ORDER BY key) FROM reconciler.objects`

func TestRowsBecomeClusterState(t *testing.T) {
	t.Parallel()
	w := setup(t)
	c := w.cluster()
	p := w.start(named("eu", c.driver))
	c.has(map[string]string{"api-a": "v1", "web-a": "v1", "web-b": "v1"})
	w.db.Exec(t, `UPDATE apps SET image = 'v2', parts = '{b,c}' WHERE name = 'web'`)
	c.has(map[string]string{"api-a": "v1", "web-b": "v2", "web-c": "v2"})
	w.settled("ConfigMap default web-b\nConfigMap default web-c\n",
		`SELECT regexp_replace(convert_from(memory, 'UTF8'), '(\S+ \S+ \S+) .*', '\1', 'gn') FROM reconciler.ledger WHERE key = 'web'`)
	w.settled("api applied, web applied", appStates)

	p.stop(t) // what happens while nobody owns the target is found by the next owner's sync
	c.edit("web-b", "somebody", `{"metadata": {"labels": {"pgreconciler.github.io/object": null}}}`)
	require.NoError(t, c.maps.Delete(t.Context(), "api-a", metav1.DeleteOptions{}))
	w.db.Exec(t, `UPDATE apps SET parts = '{c}' WHERE name = 'web'`)
	w.start(named("eu", c.driver))
	c.has(map[string]string{"api-a": "v1", "web-c": "v2"})
	w.settled("api applied, web applied", appStates)

	w.db.Exec(t, `DELETE FROM apps WHERE name = 'web'`)
	c.has(map[string]string{"api-a": "v1"})
	w.settled("api applied", appStates)
}

// A sync asks for nothing but what it lists while the cluster is as it should be, and repairs what was edited.
func TestSyncRepairsClusterState(t *testing.T) {
	t.Parallel()
	w := setup(t)
	c := w.cluster()
	w.start(named("eu", c.driver))
	c.has(map[string]string{"api-a": "v1", "web-a": "v1", "web-b": "v1"})
	w.settled("api applied, web applied", appStates)
	c.edit("web-b", "other", `{"data": {"image": "mine"}}`)
	w.db.Exec(t, `SELECT reconciler.resync('eu')`)
	w.settled("api applied, web failing", appStates)
	require.Equal(t, "ConfigMap web-b in default: other owns .data.image: take the fields out of the manifest, list them in options.ignore, "+
		"or name the manager in options.force_managers", w.text(`SELECT last_error FROM reconciler.objects WHERE key = 'web'`))
	require.NoError(t, c.maps.Delete(t.Context(), "web-b", metav1.DeleteOptions{}))
	w.settled("api applied, web applied", appStates)
	c.has(map[string]string{"api-a": "v1", "web-a": "v1", "web-b": "v1"})
	w.resync("complete resync rows=2 upserts=0 tombstones=0 drifted=0 held=0")
}

func TestWatchRepairsClusterStateAtOnce(t *testing.T) {
	t.Parallel()
	w := setup(t)
	c := w.cluster()
	w.start(named("eu", c.driver))
	all := map[string]string{"api-a": "v1", "web-a": "v1", "web-b": "v1"}
	c.has(all)
	w.settled("api applied, web applied", appStates)
	syncs := w.text(`SELECT count(*)::text FROM reconciler.sync_runs`)
	require.NoError(t, pgtest.Poll(t.Context(), deadline, func() error { // the watch may not have begun yet
		c.edit("web-a", "kubectl", `{"data": {"image": "mine"}}`)
		if w.series("watch_events_total") == 0 {
			return errors.New("the watch has named nothing")
		}
		return nil
	}))
	c.has(all)
	require.NoError(t, c.maps.Delete(t.Context(), "web-b", metav1.DeleteOptions{}))
	c.has(all)
	w.settled("api applied, web applied", appStates)
	require.Equal(t, syncs, w.text(`SELECT count(*)::text FROM reconciler.sync_runs`))
}

// reconciler wait --healthy returns when the cluster's own controllers say so, also behind an agent.
func TestWaitHealthyForADeployment(t *testing.T) {
	t.Parallel()
	for name, run := range map[string]func(*world, driver.Driver){
		"InTheDaemon": func(w *world, d driver.Driver) { w.start(named("eu", d)) },
		"BehindAnAgent": func(w *world, d driver.Driver) {
			w.startWith(func(c *config.Config) { c.Streams.Listen = "127.0.0.1:0" }, acked(w.t, "eu"))
			w.agent(w.address("streams.listen"), "eu", d)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			w.db.Exec(t, `CREATE TABLE apps (name text PRIMARY KEY, replicas int NOT NULL);
				INSERT INTO apps VALUES ('api', 1), ('web', 2);
				SELECT reconciler.track('app', 'apps', '{name}', $$'eu'$$, spec => $$jsonb_build_object('apiVersion', 'apps/v1', 'kind', 'Deployment',
					'metadata', jsonb_build_object('name', name), 'spec', jsonb_build_object('replicas', replicas,
					'selector', '{"matchLabels": {"a": "b"}}'::jsonb, 'template', '{"metadata": {"labels": {"a": "b"}},
						"spec": {"containers": [{"name": "main", "image": "web:1"}]}}'::jsonb))$$)`)
			d, admin := w.kubernetes()
			deployments := admin.Resource(schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}).Namespace("default")
			report := func(name string, replicas int, reason string) {
				t.Helper()
				status := fmt.Sprintf(`{"status": {"observedGeneration": 1, "replicas": %[1]d, "updatedReplicas": %[1]d, "readyReplicas": %[1]d,
					"availableReplicas": %[1]d, "conditions": [{"type": "Available", "status": "True"},
					{"type": "Progressing", "status": "%[2]t", "reason": "%[3]s"}]}}`, replicas, reason == "", reason)
				status = strings.NewReplacer(`"true"`, `"True"`, `"false"`, `"False"`).Replace(status)
				_, err := deployments.Patch(t.Context(), name, types.MergePatchType, []byte(status), metav1.PatchOptions{}, "status")
				require.NoError(t, err)
			}
			run(w, d)
			w.wait()
			require.Contains(t, w.waitHealthy("3 s"), "Deployment.apps api in default: Replicas: 0/1")
			report("api", 1, "")
			report("web", 2, "ProgressDeadlineExceeded")
			w.eventually("the failure has the name of the object", func() bool {
				text := w.waitHealthy("3 s")
				return strings.Contains(text, "Deployment.apps web in default: Progress deadline exceeded") && !strings.Contains(text, "api")
			})
			w.settled("app web Deployment.apps web in default: Progress deadline exceeded",
				`SELECT concat_ws(' ', resource, key, reason) FROM reconciler.health WHERE key IS NOT NULL`)
			done := make(chan string, 1)
			go func() { done <- w.waitHealthy("90 s") }()
			report("web", 2, "")
			require.Equal(t, "all healthy", <-done)
			w.settled("all healthy", health)
		})
	}
}
