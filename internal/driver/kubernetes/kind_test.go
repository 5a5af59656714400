package kubernetes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
)

func problemsOf(t *testing.T, opts driver.Options) map[string]string {
	t.Helper()
	_, err := Kind().Open("prod", opts, driver.Env{})
	problems, ok := errors.AsType[driver.Problems](err)
	require.True(t, ok, "error: %v", err)
	texts := map[string]string{}
	for _, p := range problems {
		texts[p.Path] = p.Text
	}
	return texts
}

func TestEveryWrongOptionIsAProblem(t *testing.T) {
	t.Parallel()
	const kind = " is not a kind: write Deployment.apps, or ConfigMap for one of the core group"
	require.Equal(t, map[string]string{
		"options.kubeconfig":     "is required outside of a cluster: unable to load in-cluster configuration, KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT must be defined",
		"options.context":        "needs options.kubeconfig",
		"options.namespace":      `"A B" cannot be the name of a namespace`,
		"options.namespaces":     `must contain "A B", the namespace of the ApplySet and of manifests that name none (options.namespace)`,
		"options.kinds":          `"deployments"` + kind,
		"options.protected":      `"Name space"` + kind,
		"options.field_manager":  "must have 1 to 128 printable characters",
		"options.conflicts":      "must be one of refuse, force",
		"options.propagation":    "must be one of background, foreground, orphan",
		"options.ignore":         `"replicas": write a kind and a JSON pointer, such as Deployment.apps/spec/replicas`,
		"options.adopt":          "must be true or false, not this string",
		"options.force_managers": "must be a list of strings, not a number",
	}, problemsOf(t, driver.Options{
		"context": "x", "namespace": "A B", "namespaces": []any{"x"}, "kinds": []any{"deployments"}, "protected": []any{"Name space"},
		"field_manager": "a b", "conflicts": "maybe", "propagation": "never", "ignore": []any{"replicas"}, "adopt": "maybe", "force_managers": 1,
	}))
}

func TestKubeconfigIsReadAtStart(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "none")
	require.Contains(t, problemsOf(t, driver.Options{"kubeconfig": missing})["options.kubeconfig"], missing+" cannot be used: ")
	broken := filepath.Join(t.TempDir(), "config")
	require.NoError(t, os.WriteFile(broken, []byte("{"), 0o600))
	require.Contains(t, problemsOf(t, driver.Options{"kubeconfig": broken})["options.kubeconfig"], broken+" cannot be used: ")
	for field, value := range map[string]string{"server": "https://app:hun@ter2/x#1@host", "proxy-url": "app:hun/ter2@proxy"} {
		unclear := filepath.Join(t.TempDir(), "config")
		require.NoError(t, os.WriteFile(unclear, fmt.Appendf(nil, "clusters: [{name: c, cluster: {%s: '%s'}}]\n"+
			"contexts: [{name: x, context: {cluster: c}}]\ncurrent-context: x\n", field, value), 0o600))
		text := problemsOf(t, driver.Options{"kubeconfig": unclear})["options.kubeconfig"]
		require.Contains(t, text, "cannot be used: the "+field+` of cluster "c" holds an @, /, ? or # that is not percent-encoded`) // F136
		require.NotContains(t, text, "ter2")
	}
	b := newBed(t)
	require.Contains(t, problemsOf(t, driver.Options{"kubeconfig": b.kubeconfig, "context": "none"})["options.kubeconfig"], `context "none" does not exist`)
}
