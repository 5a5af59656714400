package kubernetes_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/pgreconciler/reconciler/examples/internal/exampletest"
	"github.com/pgreconciler/reconciler/internal/pgtest"
)

var update = flag.Bool("update", false, "write the roles in deploy/kubernetes anew")

const deploy = "../../deploy/kubernetes/"

// decode returns what a manifest has. Doubled fields are errors; the server knows the fields of its kind.
func decode(t *testing.T, manifest string) *unstructured.Unstructured {
	t.Helper()
	var object unstructured.Unstructured
	require.NoError(t, yaml.UnmarshalStrict([]byte(manifest), &object.Object), manifest)
	return &object
}

// manifests returns the manifests in a file of deploy/kubernetes.
func manifests(t *testing.T, name string) []string {
	t.Helper()
	text, err := os.ReadFile(deploy + name)
	require.NoError(t, err)
	return strings.Split(string(text), "\n---\n")
}

// apply applies a manifest as kubectl does.
func apply(t *testing.T, cluster dynamic.Interface, manifest string) {
	t.Helper()
	object := decode(t, manifest)
	resource, _ := meta.UnsafeGuessKindToResource(object.GroupVersionKind())
	_, err := cluster.Resource(resource).Namespace(object.GetNamespace()).Patch(t.Context(), object.GetName(), types.ApplyPatchType, []byte(manifest),
		metav1.PatchOptions{FieldManager: "kubectl", FieldValidation: metav1.FieldValidationStrict})
	require.NoError(t, err, manifest)
}

// configIn writes the config that a file of deploy/kubernetes holds, and returns its path.
func configIn(t *testing.T, name string) string {
	t.Helper()
	for _, one := range manifests(t, name) {
		object := decode(t, one)
		data, _, _ := unstructured.NestedStringMap(object.Object, "data")
		for key, text := range data {
			require.Equal(t, "ConfigMap", object.GetKind())
			path := filepath.Join(t.TempDir(), key)
			require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
			return path
		}
	}
	require.Fail(t, "no config in "+name)
	return ""
}

// output runs reconciler and returns what it prints.
func output(t *testing.T, env []string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), reconcilerBinary, args...)
	cmd.Env = append(os.Environ(), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	text, err := cmd.Output()
	require.NoError(t, err, "%s\n%s", cmd, &stderr)
	return string(text)
}

func TestDeployedManifests(t *testing.T) {
	t.Parallel()
	cluster := clientOf(t, newCluster(t))
	for _, name := range []string{"daemon.yaml", "rbac-eu.yaml", "agent.yaml", "rbac-ap.yaml"} {
		for _, manifest := range manifests(t, name) {
			apply(t, cluster, manifest)
		}
	}
	env := []string{"RECONCILER_DATABASE_URL=postgres://app@db/app"}
	require.Regexp(t, `targets\[1\]\.driver +kubernetes `, output(t, env, "config", "print", "--config", configIn(t, "daemon.yaml")))
	require.Regexp(t, `targets\[0\]\.driver +kubernetes `, output(t, nil, "agent", "config", "print", "--config", configIn(t, "agent.yaml")))
	if admitted != nil {
		admitted(t, cluster)
	}
}

// The roles in deploy/kubernetes are what the command prints for the example.
func TestDeployedRoles(t *testing.T) {
	t.Parallel()
	url := pgtest.New(t).URL
	require.NoError(t, example(t).Fill(t.Context(), exampletest.New(t, url, example(t), nil).SQL))
	kubeconfig := newCluster(t)
	for _, target := range []string{"eu", "ap"} {
		config := filepath.Join(t.TempDir(), "reconciler.yaml")
		text := fmt.Sprintf("database_url: %q\ntargets: [{name: %s, driver: kubernetes, options: {namespace: reconciler, kubeconfig: %q}}]\n",
			url, target, kubeconfig)
		require.NoError(t, os.WriteFile(config, []byte(text), 0o600))
		printed := output(t, nil, "kubernetes", "rbac", target, "--config", config)
		file := deploy + "rbac-" + target + ".yaml"
		want := "# Printed by `reconciler kubernetes rbac " + target + "` for examples/kubernetes.\n" + printed
		if *update {
			require.NoError(t, os.WriteFile(file, []byte(want), 0o600))
		}
		held, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, want, string(held), "%s: run go test ./examples/kubernetes -run TestDeployedRoles -update", file)
	}
}
