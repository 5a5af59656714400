package kubernetes

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/drivertest"
	"github.com/pgreconciler/reconciler/internal/driver/kubernetes/fakeapi"
)

// The suite's specs are kept in ConfigMaps, one for each object.
func TestConformance(t *testing.T) {
	t.Parallel()
	drivertest.Exercise(t, func(t *testing.T) drivertest.Fixture {
		t.Helper()
		b := newBed(t)
		// A target without a memory of an object looks for it in all its namespaces: on one cluster, those of other tests too.
		c := b.open(t, "prod", driver.Options{
			"namespaces": []any{b.namespace}, "force_managers": []any{"kubectl-edit"}, "protected": []any{"Secret"},
		})
		touches := 0
		nameOf := func(resource, key string) string {
			return "object-" + objectMark(driver.Ref{Target: "prod", Resource: resource, Key: key})
		}
		f := drivertest.Fixture{
			Driver: c.Driver, Target: "prod", SpecMost: 900_000,
			Wrap: func(resource, key, spec string) string {
				text, err := json.Marshal(configMap(nameOf(resource, key), map[string]any{"spec": spec}))
				require.NoError(t, err)
				return string(text)
			},
			Read: func(t *testing.T, resource, key string) (string, bool) {
				t.Helper()
				data := b.data(t, nameOf(resource, key))
				spec, _ := data["spec"].(string)
				return spec, data != nil
			},
			Touch: func(t *testing.T, resource, key string) {
				t.Helper()
				touches++
				b.edit(t, configMaps, nameOf(resource, key), "kubectl-edit", fmt.Sprintf(`{"data": {"spec": "touched %d"}}`, touches))
			},
			Count: func(t *testing.T) int {
				t.Helper()
				list, err := b.admin.Resource(configMaps).Namespace(b.namespace).List(t.Context(), metav1.ListOptions{})
				require.NoError(t, err)
				n := 0
				for _, one := range list.Items {
					if strings.HasPrefix(one.GetName(), "object-") {
						n++
					}
				}
				return n
			},
			Guard: func(resource, key, spec string) string {
				name := nameOf(resource, key)
				text, err := json.Marshal([]any{configMap(name, map[string]any{"spec": spec}), map[string]any{
					"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": name},
				}})
				require.NoError(t, err)
				return string(text)
			},
			Hide: func(resource, key, secret string) string {
				text, err := json.Marshal(map[string]any{
					"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": nameOf(resource, key)}, "stringData": one(secret),
				})
				require.NoError(t, err)
				return string(text)
			},
		}
		if b.fake != nil {
			f.Away = func(*testing.T) func() {
				b.fake.Fail(func(*http.Request) *fakeapi.Failure { return &fakeapi.Failure{Abort: true} })
				return func() { b.fake.Fail(nil) }
			}
		}
		return f
	})
}
