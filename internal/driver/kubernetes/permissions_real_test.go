//go:build kubernetes

package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	rbac "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/kubernetes/kubetest"
)

// right is one verb of a rule.
type right struct {
	manifest, rule int
	verb, resource string
}

// roles is a role or a binding.
type roles struct {
	metav1.TypeMeta
	metav1.ObjectMeta `json:"metadata"`

	Rules    []rbac.PolicyRule `json:"rules,omitzero"`
	Subjects []rbac.Subject    `json:"subjects,omitzero"`
	RoleRef  rbac.RoleRef      `json:"roleRef,omitzero"`
}

func readRoles(t *testing.T, text string) []roles {
	t.Helper()
	manifests := strings.Split(text, "---\n")
	all := make([]roles, len(manifests))
	for i, manifest := range manifests {
		require.NoError(t, yaml.UnmarshalStrict([]byte(manifest), &all[i]))
	}
	return all
}

// rightsIn returns each verb of each rule.
func rightsIn(all []roles) (rights []right) {
	for i, one := range all {
		for j, rule := range one.Rules {
			for _, verb := range rule.Verbs {
				rights = append(rights, right{manifest: i, rule: j, verb: verb, resource: rule.Resources[0]})
			}
		}
	}
	return rights
}

// robot makes a service account with roles but for one right, and returns the path of its kubeconfig.
func (b *bed) robot(t *testing.T, all []roles, without right) string {
	t.Helper()
	config, err := clientcmd.LoadFromFile(b.kubeconfig)
	require.NoError(t, err)
	admin, about := &kubetest.Client{Interface: b.admin}, metav1.ObjectMeta{Name: "robot", Namespace: b.namespace}
	_, err = admin.Create(t.Context(), map[string]any{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": about})
	require.NoError(t, err)
	if without.verb != "" {
		rules := all[without.manifest].Rules
		rules[without.rule].Verbs = slices.DeleteFunc(rules[without.rule].Verbs, func(verb string) bool { return verb == without.verb })
		all[without.manifest].Rules = slices.DeleteFunc(rules, func(rule rbac.PolicyRule) bool { return len(rule.Verbs) == 0 })
	}
	for _, one := range all {
		b.grant(t, admin, one)
	}
	token, err := admin.Token(t.Context(), b.namespace, "robot")
	require.NoError(t, err)
	for _, user := range config.AuthInfos {
		user.Token = token
	}
	path := filepath.Join(t.TempDir(), "robot")
	require.NoError(t, clientcmd.WriteToFile(*config, path))
	return path
}

// grant makes a role or a binding, and waits until the server knows what it allows.
func (b *bed) grant(t *testing.T, admin *kubetest.Client, read roles) {
	t.Helper()
	if strings.HasPrefix(read.Kind, "Cluster") {
		read.Name += "-" + b.namespace
		resource := rbac.SchemeGroupVersion.WithResource(strings.ToLower(read.Kind) + "s")
		t.Cleanup(func() { _ = admin.Resource(resource).Delete(context.Background(), read.Name, metav1.DeleteOptions{}) })
	}
	if read.Rules == nil {
		read.RoleRef.Name = read.Name
	}
	_, err := admin.Create(t.Context(), read)
	require.NoError(t, err)
	if read.Rules == nil {
		b.granted(t, admin, read)
	}
}

// granted waits until the server counts a binding.
func (b *bed) granted(t *testing.T, admin *kubetest.Client, binding roles) {
	t.Helper()
	resource := rbac.SchemeGroupVersion.WithResource(strings.ToLower(binding.RoleRef.Kind) + "s")
	live, err := admin.Resource(resource).Namespace(binding.Namespace).Get(t.Context(), binding.RoleRef.Name, metav1.GetOptions{})
	require.NoError(t, err)
	var role rbac.Role // a ClusterRole has these fields too
	require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(live.Object, &role))
	if len(role.Rules) == 0 {
		return
	}
	rule := role.Rules[0]
	asked := map[string]any{"namespace": binding.Namespace, "verb": rule.Verbs[0], "group": rule.APIGroups[0], "resource": rule.Resources[0]}
	if len(rule.ResourceNames) > 0 {
		asked["name"] = rule.ResourceNames[0]
	}
	require.Eventually(t, func() bool {
		review, err := admin.Create(t.Context(), map[string]any{
			"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
			"spec": map[string]any{"user": "system:serviceaccount:" + b.namespace + ":robot", "resourceAttributes": asked},
		})
		if err != nil {
			return false
		}
		allowed, _, _ := unstructured.NestedBool(review.Object, "status", "allowed")
		return allowed
	}, callPatience, 20*time.Millisecond)
}

// work does everything that a driver does, and returns the first error.
func (b *bed) work(t *testing.T, c *caller) error {
	t.Helper()
	if err := c.Driver.(driver.Checker).Check(t.Context()); err != nil {
		return err
	}
	for _, manifests := range [][]any{
		{deployment("web", 1), configMap("a", one("1"))}, {deployment("web", 2), configMap("a", one("1"))}, {deployment("web", 2)},
	} {
		if out := c.apply(t, "web", manifests...); out.Err != nil {
			return out.Err
		}
	}
	for _, err := range c.Driver.(driver.Lister).List(t.Context(), []string{"apps"}) {
		if err != nil {
			return err
		}
	}
	if err := b.watched(t, c); err != nil {
		return err
	}
	if _, err := c.Driver.(driver.Differ).DiffDelete(t.Context(), c.ref("web")); err != nil {
		return err
	}
	var out driver.Outcome
	require.Eventually(t, func() bool {
		out = c.delete(t, "web")
		return out.Verdict != driver.VerdictWaiting
	}, callPatience, 50*time.Millisecond)
	return out.Err
}

// watched edits a member, and returns why a watch does not name it.
func (b *bed) watched(t *testing.T, c *caller) error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	named, ended := make(chan string, 10), make(chan error, 1)
	go func() {
		ended <- c.Driver.(interface {
			Watch(context.Context, func(resource, key string)) error
		}).Watch(ctx, func(_, key string) { named <- key })
	}()
	deadline := time.After(callPatience)
	for replicas := '3'; ; replicas++ {
		select {
		case <-named:
			cancel()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				return err
			}
			return nil
		case err := <-ended:
			return err
		case <-time.After(100 * time.Millisecond): // it may not watch yet
			b.edit(t, deployments, "web", "editor", `{"spec": {"replicas": `+string('3'+replicas%5)+`}}`)
		case <-deadline:
			require.Fail(t, "the watch names nothing")
		}
	}
}

func TestPermissionsAreEnoughAndNoneTooMany(t *testing.T) {
	t.Parallel()
	manifests := []any{deployment("web", 1), configMap("a", one("1"))}
	for _, everywhere := range []bool{true, false} {
		mode := "InGivenNamespaces"
		if everywhere {
			mode = "InAllNamespaces"
		}
		opened := func(t *testing.T, b *bed, more driver.Options) *caller {
			t.Helper()
			opts := driver.Options{}
			if !everywhere {
				opts["namespaces"] = []any{b.namespace}
			}
			maps.Copy(opts, more)
			return b.open(t, "prod", opts)
		}
		text, notes := opened(t, newBed(t), nil).permissions(t, "robot", manifests...)
		require.Empty(t, notes)
		for _, without := range append([]right{{}}, rightsIn(readRoles(t, text))...) {
			name := "WithAll"
			if without.verb != "" {
				name = fmt.Sprintf("Without%s%s%d.%d", capital(without.verb), capital(without.resource), without.manifest, without.rule)
			}
			t.Run(name+mode, func(t *testing.T) {
				t.Parallel()
				b := newBed(t)
				text, _ := opened(t, b, nil).permissions(t, "robot", manifests...)
				err := b.work(t, opened(t, b, driver.Options{"kubeconfig": b.robot(t, readRoles(t, text), without)}))
				if without.verb == "" {
					require.NoError(t, err)
					return
				}
				require.ErrorContains(t, err, `cannot `+without.verb+` resource "`+without.resource+`"`)
			})
		}
	}
}
