package kubernetes_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/pgreconciler/reconciler/examples/internal/exampletest"
	"github.com/pgreconciler/reconciler/internal/driver"
	driverkubernetes "github.com/pgreconciler/reconciler/internal/driver/kubernetes"
	"github.com/pgreconciler/reconciler/internal/pgtest"
)

var (
	configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	jobs       = schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"}
	codeBlock  = regexp.MustCompile("(?s)```(sql|yaml|console)\n(.*?)```")
)

// blocks returns the code on docs/kubernetes.md in a language.
func blocks(t *testing.T, language string) (all []string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/kubernetes.md")
	require.NoError(t, err)
	for _, found := range codeBlock.FindAllStringSubmatch(string(page), -1) {
		if found[1] == language {
			all = append(all, found[2])
		}
	}
	return all
}

// newPageWorld has the page's two targets, each with the namespace shop, and a daemon with the page's config. It returns the config.
func newPageWorld(t *testing.T) (*world, string) {
	t.Helper()
	w := &world{url: pgtest.New(t).URL, dir: t.TempDir(), clusters: map[string]dynamic.Interface{}}
	w.Database = exampletest.Connect(t, w.url, nil)
	for _, name := range []string{"prod", "staging"} {
		w.clusters[name] = w.addCluster(t, name)
		apply(t, w.clusters[name], `{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}`)
	}
	config := filepath.Join(w.dir, "reconciler.yaml")
	text := strings.NewReplacer("postgres://app@localhost/app", w.url, "/etc/reconciler", w.dir).Replace(blocks(t, "yaml")[0])
	require.NoError(t, os.WriteFile(config, []byte(text), 0o600))
	exampletest.Start(t, []string{"RECONCILER_LISTEN=off"}, reconcilerBinary, "run", "-c", config)
	return w, config
}

// typed executes a block of SQL as psql does.
func (w *world) typed(t *testing.T, block string) {
	t.Helper()
	if strings.HasPrefix(block, "BEGIN") {
		w.Exec(t, block)
		return
	}
	for statement := range strings.SplitSeq(strings.TrimSpace(block), ";\n") {
		w.Exec(t, statement)
	}
}

// TestPageIsTrue types what docs/kubernetes.md has people type.
func TestPageIsTrue(t *testing.T) {
	t.Parallel()
	w, config := newPageWorld(t)
	sql := blocks(t, "sql")
	const rollout = 5
	for _, block := range sql[:rollout] {
		w.typed(t, block)
		w.settled(t)
	}
	require.Equal(t, "hello", w.field(t, "prod", configMaps, "motd", "data", "text"))
	for cluster, want := range map[string][]any{"prod": {"warn", int64(3)}, "staging": {"debug", int64(1)}} {
		require.Equal(t, want, []any{
			w.field(t, cluster, configMaps, "web", "data", "LOG_LEVEL"), w.field(t, cluster, deployments, "web", "spec", "replicas"),
		}, cluster)
		require.Equal(t, "apps", w.field(t, cluster, deployments, "web", "metadata", "labels", "example.org/tier"), "of the function that replaced the first")
		require.NotNil(t, w.get(t, cluster, namespaces, "", "search"))
	}
	require.NotNil(t, w.get(t, "prod", jobs, "shop", "web-migrate"))

	before := w.field(t, "prod", deployments, "web", "spec", "template", "metadata", "annotations", "checksum/settings")
	w.Exec(t, `UPDATE environments SET settings = '{"LOG_LEVEL": "error"}' WHERE cluster = 'prod'`)
	w.settled(t)
	require.NotEqual(t, before, w.field(t, "prod", deployments, "web", "spec", "template", "metadata", "annotations", "checksum/settings"))

	w.findsByApplySet(t)
	w.typed(t, sql[rollout])
	require.Eventually(t, func() bool {
		return strings.HasPrefix(w.detail(t, "prod"), "waiting for staging: not healthy: app staging/web: ")
	}, patience, poll)
	shown := blocks(t, "console")[0]
	command, want, _ := strings.Cut(shown, "\n")
	diff := exec.CommandContext(t.Context(), reconcilerBinary, append(strings.Fields(command)[2:], "-c", config)...)
	output, err := diff.Output()
	require.EqualError(t, err, "exit status 1")
	require.Equal(t, want, string(output))
	require.Equal(t, "web:1", w.container(t, "prod", "web")["image"])
	require.Equal(t, "web:2", w.container(t, "staging", "web")["image"])
	for _, block := range sql[rollout+1:] {
		w.typed(t, block)
	}
}

// findsByApplySet looks for members as the page has kubectl do.
func (w *world) findsByApplySet(t *testing.T) {
	t.Helper()
	set, _ := w.field(t, "prod", configMaps, "reconciler-prod", "metadata", "labels", "applyset.kubernetes.io/id").(string)
	for of, want := range map[schema.GroupVersionResource]int{deployments: 1, configMaps: 2} {
		found, err := w.clusters["prod"].Resource(of).List(t.Context(), metav1.ListOptions{LabelSelector: "applyset.kubernetes.io/part-of=" + set})
		require.NoError(t, err)
		require.Len(t, found.Items, want)
	}
	require.Equal(t, "app prod%2Fweb", w.field(t, "prod", deployments, "web", "metadata", "annotations", "pgreconciler.github.io/row"))
}

// The options on the page are options of the driver.
func TestPageShowsOptionsOfTheDriver(t *testing.T) {
	t.Parallel()
	shown := blocks(t, "yaml")[1:]
	require.Len(t, shown, 2)
	for _, text := range shown {
		var read struct{ Options driver.Options }
		require.NoError(t, yaml.Unmarshal([]byte(text), &read))
		require.NotEmpty(t, read.Options)
		read.Options["kubeconfig"] = newCluster(t)
		d, err := driverkubernetes.Kind().Open("prod", read.Options, driver.Env{})
		require.NoError(t, err)
		require.NoError(t, d.Close(t.Context()))
	}
}
