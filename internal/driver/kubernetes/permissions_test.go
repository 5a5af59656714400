package kubernetes

import (
	"encoding/json"
	"iter"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// permissions returns what a target needs for objects with these manifests, and for what is remembered.
func (c *caller) permissions(t *testing.T, account string, manifests ...any) (text string, notes []string) {
	t.Helper()
	spec, err := json.Marshal(manifests)
	require.NoError(t, err)
	var all iter.Seq2[driver.Object, error] = func(yield func(driver.Object, error) bool) {
		if len(manifests) > 0 && !yield(driver.Object{Ref: driver.Ref{Resource: "apps", Key: "web"}, Spec: spec}, nil) {
			return
		}
		for key := range c.memory {
			if !yield(driver.Object{Ref: c.ref(key)}, nil) {
				return
			}
		}
	}
	yaml, notes, err := c.Driver.(driver.Permitter).Permissions(t.Context(), account, all)
	require.NoError(t, err)
	return string(yaml), notes
}

const rolesInOneNamespace = `apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: reconciler-prod
  namespace: NS
rules:
- apiGroups:
  - ""
  resources:
  - configmaps
  verbs:
  - list
  - watch
  - delete
- apiGroups:
  - ""
  resourceNames:
  - reconciler-prod
  resources:
  - configmaps
  verbs:
  - get
  - create
  - patch
- apiGroups:
  - apps
  resources:
  - deployments
  verbs:
  - get
  - list
  - watch
  - create
  - patch
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: reconciler-prod
  namespace: NS
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: reconciler-prod
subjects:
- kind: ServiceAccount
  name: robot
  namespace: system
`

func TestPermissionsInGivenNamespaces(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.open(t, "prod", driver.Options{"namespaces": []any{b.namespace}, "protected": []any{"Deployment.apps"}})
	text, notes := c.permissions(t, "system/robot", deployment("web", 1))
	require.Empty(t, notes)
	require.Equal(t, strings.Replace(strings.ReplaceAll(rolesInOneNamespace, "NS", b.namespace), `- apiGroups:
  - ""
  resources:
  - configmaps
  verbs:
  - list
  - watch
  - delete
`, "", 1), text)
	c.done(t, "old", configMap("a", one("1")))
	text, _ = c.permissions(t, "system/robot", deployment("web", 1))
	require.Equal(t, strings.Replace(strings.ReplaceAll(rolesInOneNamespace, "NS", b.namespace), "  - list\n  - watch\n  - delete\n", "  - get\n  - list\n  - watch\n  - delete\n", 1),
		strings.Replace(text, "  - create\n  - patch\n- apiGroups:\n  - apps", "  - get\n  - create\n  - patch\n- apiGroups:\n  - apps", 1),
		"what is remembered is only deleted")
}

// Listings and watches go through all namespaces; calls change objects where rows have them.
func TestPermissionsInAllNamespaces(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.open(t, "prod", nil)
	other := b.newNamespace(t)
	text, notes := c.permissions(t, "", within(other, deployment("web", 1)), namespace("made-"+b.namespace), within("made-"+b.namespace, configMap("a", one("1"))),
		definition("example.org"), widget("example.org", "w"), map[string]any{"apiVersion": "none.example/v1", "kind": "Thing", "metadata": map[string]any{"name": "t"}})
	require.Equal(t, []string{"the cluster has no kind Thing.none.example: its resource is guessed (things, in namespaces)"}, notes)
	short := strings.NewReplacer("apiVersion: rbac.authorization.k8s.io/v1\n", "", "\n  - ", " ", "- apiGroups:", "*", "\n  resources:", "", "\n  verbs:", ":").Replace(text)
	require.Contains(t, short, "kind: ClusterRole\nmetadata:\n  name: reconciler-prod\nrules:\n* \"\" configmaps: get list watch create patch delete\n* \"\" namespaces: get list watch create patch\n"+
		"* apiextensions.k8s.io customresourcedefinitions: get list watch create patch\n* apps deployments: list watch\n* example.org widgets: list watch\n* none.example things: list watch\n---\n")
	require.Contains(t, short, "kind: Role\nmetadata:\n  name: reconciler-prod\n  namespace: "+other+"\nrules:\n* apps deployments: get create patch delete\n---\n")
	require.Contains(t, short, "kind: Role\nmetadata:\n  name: reconciler-prod\n  namespace: "+b.namespace+"\nrules:\n* example.org widgets: get create patch delete\n* none.example things: get create patch delete\n---\n")
	require.Contains(t, short, "subjects:\n- kind: ServiceAccount\n  name: reconciler\n  namespace: "+b.namespace)
}

func TestPermissionsNoteWhatCannotBeUsed(t *testing.T) {
	t.Parallel()
	b := fakeBed(t)
	c := b.open(t, "prod", driver.Options{"kinds": []any{"ConfigMap"}})
	_, notes := c.permissions(t, "", deployment("web", 1))
	require.Equal(t, []string{"apps/web is left out: Deployment.apps web: this target may not touch the kind (options.kinds)"}, notes)
	_, _, err := c.Driver.(driver.Permitter).Permissions(t.Context(), "a/b/c", nil)
	require.Equal(t, driver.Problems{{Path: "account", Text: `"a/b/c" is not a service account: write NAMESPACE/NAME`}}, err)
}
