package kubernetes_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/pgreconciler/reconciler/examples"
	"github.com/pgreconciler/reconciler/examples/internal/exampletest"
	"github.com/pgreconciler/reconciler/examples/kubernetes"
	"github.com/pgreconciler/reconciler/internal/driver/kubernetes/fakeapi"
	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// reconcilerBinary is the command as users run it, built by TestMain.
var reconcilerBinary string

func TestMain(m *testing.M) {
	os.Exit(exampletest.Main(&reconcilerBinary, func() int { return pgtest.Main(m) }))
}

// newCluster returns the kubeconfig of a new cluster: an API server in memory, or a real one with the build tag kubernetes.
var newCluster = func(t *testing.T) string {
	t.Helper()
	return fakeapi.New(t).Kubeconfig(t)
}

// These are nil on an API server in memory, which has neither controllers nor access control.
var (
	// startPods has the pods of an app report that they are ready.
	startPods func(t *testing.T, cluster dynamic.Interface, app string)
	// admitted waits for a pod of the daemon, and one of the agent.
	admitted func(t *testing.T, cluster dynamic.Interface)
	// restrict replaces the credentials in a kubeconfig file by those of a service account with these roles and no others.
	restrict func(t *testing.T, kubeconfig, roles string)
)

// world is the example at work: a daemon with the targets eu and us, and an agent of the target ap, each in a cluster.
type world struct {
	*exampletest.Database

	url, dir string
	clusters map[string]dynamic.Interface
}

var clusterNames = []string{"eu", "us", "ap"}

func example(t *testing.T) examples.Example {
	t.Helper()
	e, err := examples.Find("kubernetes")
	require.NoError(t, err)
	return e
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{url: pgtest.New(t).URL, dir: t.TempDir(), clusters: map[string]dynamic.Interface{}}
	w.Database = exampletest.New(t, w.url, example(t), nil)
	require.NoError(t, example(t).Fill(t.Context(), w.SQL))
	for _, name := range clusterNames {
		w.clusters[name] = w.addCluster(t, name)
	}
	if restrict != nil {
		w.restrictAll(t)
	}
	env := []string{"RECONCILER_LISTEN=off"}
	daemon := exampletest.Start(t, append(env, "RECONCILER_STREAMS_LISTEN=127.0.0.1:0"), reconcilerBinary, "run", "-c", w.config(t))
	address := daemon.Printed(t, `key=streams\.listen address=(\S+)`, patience)
	agent := strings.NewReplacer(kubernetes.Dir, w.dir, "127.0.0.1:8081", address).Replace(kubernetes.AgentConfig)
	file := filepath.Join(w.dir, "agent.yaml")
	require.NoError(t, os.WriteFile(file, []byte(agent), 0o600))
	exampletest.Start(t, env, reconcilerBinary, "agent", "--config", file)
	return w
}

// restrictAll has all clusters used with the roles that reconciler prints.
func (w *world) restrictAll(t *testing.T) {
	t.Helper()
	for _, name := range clusterNames {
		kubeconfig := filepath.Join(w.dir, name+".kubeconfig")
		prefix := "RECONCILER_TARGETS_" + strings.ToUpper(name)
		env := []string{prefix + "_DRIVER=kubernetes", prefix + `_OPTIONS={"kubeconfig": "` + kubeconfig + `"}`}
		restrict(t, kubeconfig, output(t, env, "kubernetes", "rbac", name, "-c", w.config(t)))
	}
}

// config writes the example's config for the world's database and clusters, and returns its path.
func (w *world) config(t *testing.T) string {
	t.Helper()
	text, err := example(t).Config(w.url, "")
	require.NoError(t, err)
	text = strings.ReplaceAll(text, kubernetes.Dir, w.dir)
	file := filepath.Join(w.dir, "reconciler.yaml")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

// addCluster starts a cluster, and puts its kubeconfig where the configs have it.
func (w *world) addCluster(t *testing.T, name string) dynamic.Interface {
	t.Helper()
	text, err := os.ReadFile(newCluster(t))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(w.dir, name+".kubeconfig"), text, 0o600))
	return clientOf(t, filepath.Join(w.dir, name+".kubeconfig"))
}

func clientOf(t *testing.T, kubeconfig string) dynamic.Interface {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	require.NoError(t, err)
	config.QPS = -1
	client, err := dynamic.NewForConfig(config)
	require.NoError(t, err)
	return client
}

// settled waits until every cluster has what the rows want.
func (w *world) settled(t *testing.T) {
	t.Helper()
	require.Empty(t, exampletest.Rows[string](t, w.Database, "SELECT w::text FROM reconciler.wait('2 minutes') AS w"))
}
