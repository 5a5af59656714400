package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/pgreconciler/reconciler/internal/driver/kubernetes/fakeapi"
	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// cluster is a cluster with ConfigMaps for rows.
type cluster struct {
	w      *world
	target object
	admin  dynamic.Interface
	maps   dynamic.ResourceInterface
}

// newCluster returns a world with a cluster, and a config with the cluster as its target.
func newCluster(t testing.TB) *cluster {
	t.Helper()
	w := newWorld(t)
	server := fakeapi.New(t)
	admin, err := dynamic.NewForConfig(server.Config())
	require.NoError(t, err)
	c := &cluster{w: w, admin: admin, maps: admin.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Namespace("default")}
	c.target = object{"name": "eu", "driver": "kubernetes", "options": object{"kubeconfig": server.Kubeconfig(t), "force_managers": []string{"kubectl"}}}
	w.configure([]object{c.target})
	return c
}

// newMappedCluster is newCluster with a table whose rows have a ConfigMap for each of their parts.
func newMappedCluster(t testing.TB) *cluster {
	t.Helper()
	c := newCluster(t)
	c.w.exec(`CREATE TABLE apps (name text PRIMARY KEY, image text NOT NULL, parts text[] NOT NULL);
		INSERT INTO apps VALUES ('api', 'v1', '{a}'), ('web', 'v1', '{a,b}');
		SELECT reconciler.track('app', 'apps', '{name}', $$'eu'$$, spec => $$(SELECT coalesce(jsonb_agg(jsonb_build_object('apiVersion', 'v1',
			'kind', 'ConfigMap', 'metadata', jsonb_build_object('name', name || '-' || part), 'data', jsonb_build_object('image', image))), '[]')
			FROM unnest(parts) AS part)$$)`)
	return c
}

// has waits until the cluster has these ConfigMaps with these images, and no other.
func (c *cluster) has(want map[string]string) {
	c.w.t.Helper()
	require.NoError(c.w.t, pgtest.Poll(context.Background(), patience, func() error {
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
	c := newMappedCluster(t)
	w := c.w
	d := w.start()
	c.has(map[string]string{"api-a": "v1", "web-a": "v1", "web-b": "v1"})
	w.exec(`UPDATE apps SET image = 'v2', parts = '{b,c}' WHERE name = 'web'`)
	c.has(map[string]string{"api-a": "v1", "web-b": "v2", "web-c": "v2"})
	w.becomes("ConfigMap default web-b\nConfigMap default web-c\n", `SELECT regexp_replace(convert_from(memory, 'UTF8'), '(\S+ \S+ \S+) .*', '\1', 'gn') FROM reconciler.ledger WHERE key = 'web'`)
	w.becomes("api applied, web applied", appStates)

	d.stop() // the sync of the next owner finds what happens without one
	c.edit("web-b", "somebody", `{"metadata": {"labels": {"pgreconciler.github.io/object": null}}}`)
	require.NoError(t, c.maps.Delete(t.Context(), "api-a", metav1.DeleteOptions{}))
	w.exec(`UPDATE apps SET parts = '{c}' WHERE name = 'web'`)
	w.start()
	c.has(map[string]string{"api-a": "v1", "web-c": "v2"})
	w.becomes("api applied, web applied", appStates)

	w.exec(`DELETE FROM apps WHERE name = 'web'`)
	c.has(map[string]string{"api-a": "v1"})
	w.becomes("api applied", appStates)
}

// A sync asks for nothing but what it lists while the cluster is as it should be, and repairs what was edited.
func TestSyncRepairsClusterState(t *testing.T) {
	t.Parallel()
	c := newMappedCluster(t)
	w := c.w
	w.start()
	c.has(map[string]string{"api-a": "v1", "web-a": "v1", "web-b": "v1"})
	w.becomes("api applied, web applied", appStates)
	c.edit("web-b", "other", `{"data": {"image": "mine"}}`)
	w.exec(`SELECT reconciler.resync('eu')`)
	w.becomes("api applied, web failing", appStates)
	require.Equal(t, "ConfigMap web-b in default: other owns .data.image: take the fields out of the manifest, list them in options.ignore, "+
		"or name the manager in options.force_managers", w.text(`SELECT last_error FROM reconciler.objects WHERE key = 'web'`))
	require.NoError(t, c.maps.Delete(t.Context(), "web-b", metav1.DeleteOptions{}))
	w.becomes("api applied, web applied", appStates)
	c.has(map[string]string{"api-a": "v1", "web-a": "v1", "web-b": "v1"})
	w.exec(`SELECT reconciler.resync('eu')`)
	w.becomes("complete rows=2 upserts=0 tombstones=0 drifted=0 held=0", `SELECT format('%s rows=%s upserts=%s tombstones=%s drifted=%s held=%s',
		state, rows, upserts, tombstones, drifted, held) FROM reconciler.sync_runs ORDER BY id DESC LIMIT 1`)
}

func TestWatchRepairsClusterStateAtOnce(t *testing.T) {
	t.Parallel()
	c := newMappedCluster(t)
	w := c.w
	d := w.start()
	all := map[string]string{"api-a": "v1", "web-a": "v1", "web-b": "v1"}
	c.has(all)
	w.becomes("api applied, web applied", appStates)
	syncs := w.text(`SELECT count(*)::text FROM reconciler.sync_runs`)
	require.NoError(t, pgtest.Poll(t.Context(), patience, func() error { // the watch may not have begun yet
		c.edit("web-a", "kubectl", `{"data": {"image": "mine"}}`)
		if d.metric("reconciler_watch_events_total") == 0 {
			return errors.New("the watch has named nothing")
		}
		return nil
	}))
	c.has(all)
	require.NoError(t, c.maps.Delete(t.Context(), "web-b", metav1.DeleteOptions{}))
	c.has(all)
	w.becomes("api applied, web applied", appStates)
	require.Equal(t, syncs, w.text(`SELECT count(*)::text FROM reconciler.sync_runs`))
}

// reconciler wait --healthy returns when the cluster's own controllers report health, also behind an agent.
func TestWaitHealthyForADeployment(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*cluster){
		"InTheDaemon":   func(c *cluster) { c.w.start() },
		"BehindAnAgent": (*cluster).startAgent,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			w := c.w
			w.exec(`CREATE TABLE apps (name text PRIMARY KEY, replicas int NOT NULL);
				INSERT INTO apps VALUES ('api', 1), ('web', 2);
				SELECT reconciler.track('app', 'apps', '{name}', $$'eu'$$, spec => $$jsonb_build_object('apiVersion', 'apps/v1', 'kind', 'Deployment',
					'metadata', jsonb_build_object('name', name), 'spec', jsonb_build_object('replicas', replicas,
					'selector', '{"matchLabels": {"a": "b"}}'::jsonb, 'template', '{"metadata": {"labels": {"a": "b"}},
						"spec": {"containers": [{"name": "main", "image": "web:1"}]}}'::jsonb))$$)`)
			deployments := c.admin.Resource(schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}).Namespace("default")
			report := func(name string, replicas int, reason string) {
				t.Helper()
				status := fmt.Sprintf(`{"status": {"observedGeneration": 1, "replicas": %[1]d, "updatedReplicas": %[1]d, "readyReplicas": %[1]d,
					"availableReplicas": %[1]d, "conditions": [{"type": "Available", "status": "True"},
					{"type": "Progressing", "status": "%[2]t", "reason": "%[3]s"}]}}`, replicas, reason == "", reason)
				status = strings.NewReplacer(`"true"`, `"True"`, `"false"`, `"False"`).Replace(status)
				_, err := deployments.Patch(t.Context(), name, types.MergePatchType, []byte(status), metav1.PatchOptions{}, "status")
				require.NoError(t, err)
			}
			start(c)
			w.wait()
			require.Contains(t, w.cli("wait", "--healthy", "--timeout", "3s").stdout, "Deployment.apps api in default: Replicas: 0/1")
			report("api", 1, "")
			report("web", 2, "ProgressDeadlineExceeded")
			w.becomes("app web Deployment.apps web in default: Progress deadline exceeded",
				`SELECT string_agg(concat_ws(' ', resource, key, reason), ', ') FROM reconciler.health WHERE key IS NOT NULL`)
			waits := make(chan result, 1)
			go func() { waits <- w.cli("wait", "--healthy", "--timeout", patience.String()) }()
			report("web", 2, "")
			done := <-waits
			require.Equal(t, 0, done.code, done.stderr)
			require.Equal(t, "0", w.text(`SELECT count(*) FROM reconciler.health`))
		})
	}
}

// startAgent has an agent serve the cluster.
func (c *cluster) startAgent() {
	c.w.t.Helper()
	c.w.configure([]object{{"name": "eu", "driver": "stream", "options": object{"ack": true}}}, object{"streams": object{"listen": "127.0.0.1:0"}})
	d := c.w.start()
	text, err := json.Marshal(object{
		"server": "http://" + d.streams, "state_dir": c.w.path("state"), "listen": "off", "log": object{"format": "json"}, "targets": []object{c.target},
	})
	require.NoError(c.w.t, err)
	file := c.w.path("agent.yaml")
	require.NoError(c.w.t, os.WriteFile(file, text, 0o600))
	c.w.launchCommand("agent", file)
}

// F165: what moves from row to row stays in the cluster: with a key that is renamed, a manifest that goes into another row, and another
// resource. Nothing waits for approval.
func TestF165_WhatMovesBetweenRowsStaysInTheCluster(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	w := c.w
	w.exec(`CREATE TABLE raw (key text PRIMARY KEY, spec jsonb NOT NULL)`)
	const track = `SELECT reconciler.track('%s', 'raw', '{key}', $$'eu'$$, spec => 'spec')`
	w.exec(fmt.Sprintf(track, "raw"))
	manifest := func(kind, name, rest string) string {
		return `{"apiVersion": "v1", "kind": "` + kind + `", "metadata": {"name": "` + name + `"}, ` + rest + `}`
	}
	claim := manifest("PersistentVolumeClaim", "disk", `"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}`)
	settings := manifest("ConfigMap", "settings", `"data": {"image": "v1"}`)
	w.exec(`INSERT INTO raw VALUES ('k1', jsonb_build_array($1::jsonb, $2::jsonb)), ('k0', jsonb_build_array($3::jsonb))`,
		claim, settings, manifest("ConfigMap", "other", `"data": {"image": "v1"}`))
	w.start()
	w.wait()
	disks := c.admin.Resource(schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumeclaims"}).Namespace("default")
	uids := func() (uids [2]types.UID) {
		t.Helper()
		disk, err := disks.Get(t.Context(), "disk", metav1.GetOptions{})
		require.NoError(t, err)
		config, err := c.maps.Get(t.Context(), "settings", metav1.GetOptions{})
		require.NoError(t, err)
		return [2]types.UID{disk.GetUID(), config.GetUID()}
	}
	before := uids()
	for _, sql := range []string{
		`UPDATE raw SET key = 'k2' WHERE key = 'k1'`,
		`UPDATE raw SET spec = CASE key WHEN 'k2' THEN spec - 0 ELSE spec || (SELECT r.spec -> 0 FROM raw r WHERE r.key = 'k2') END`,
		`SELECT reconciler.untrack('raw', release => 'keep')`, fmt.Sprintf(track, "app"),
	} {
		w.exec(sql)
		w.wait()
		require.Equal(t, before, uids(), sql)
	}
	require.Equal(t, "k0 applied, k2 applied", w.text(appStates))
	require.Equal(t, "0", w.text(`SELECT count(*) FROM reconciler.held`))
	w.exec(`DELETE FROM raw WHERE key = 'k2'`)
	c.has(map[string]string{"other": "v1"})
}
