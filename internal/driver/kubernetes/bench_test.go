//go:build kubernetes

package kubernetes

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/pgreconciler/reconciler/internal/driver"
)

const (
	benchRounds = 5
	benchCalls  = 16 // at once
)

// each calls do for n objects, several at once, and returns how many a second.
func each(n int, do func(i int)) float64 {
	began := time.Now()
	var wg sync.WaitGroup
	work := make(chan int)
	for range benchCalls {
		wg.Go(func() {
			for i := range work {
				do(i)
			}
		})
	}
	for i := range n {
		work <- i
	}
	close(work)
	wg.Wait()
	return float64(n) / time.Since(began).Seconds()
}

// benchKinds are what is applied: the smallest manifest there is, and one as people have them.
var benchKinds = []struct {
	name     string
	objects  int
	at       schema.GroupVersionResource
	manifest func(name, value string) map[string]any
}{
	{"ConfigMap", 1000, configMaps, func(name, value string) map[string]any { return configMap(name, one(value)) }},
	{"Deployment", 300, deployments, func(name, value string) map[string]any { return fullDeployment(name, "example.org/app:"+value) }},
}

func fullDeployment(name, image string) map[string]any {
	labels := map[string]any{"app": name}
	probe := func(path string) map[string]any {
		return map[string]any{"httpGet": map[string]any{"path": path, "port": int64(8080)}, "periodSeconds": int64(5)}
	}
	return map[string]any{
		"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"name": name, "labels": labels},
		"spec": map[string]any{
			"replicas": int64(0), "selector": map[string]any{"matchLabels": labels},
			"strategy": map[string]any{"type": "RollingUpdate", "rollingUpdate": map[string]any{"maxSurge": int64(1), "maxUnavailable": int64(0)}},
			"template": map[string]any{
				"metadata": map[string]any{"labels": labels},
				"spec": map[string]any{
					"securityContext": map[string]any{"runAsNonRoot": true, "runAsUser": int64(1000)},
					"containers": []any{map[string]any{
						"name": "app", "image": image, "args": []any{"--listen=:8080", "--log=json"},
						"env": []any{
							map[string]any{"name": "REGION", "value": "eu"}, map[string]any{"name": "STAGE", "value": "prod"},
							map[string]any{"name": "GOMEMLIMIT", "value": "200MiB"},
						},
						"ports":          []any{map[string]any{"name": "http", "containerPort": int64(8080)}},
						"resources":      map[string]any{"requests": map[string]any{"cpu": "100m", "memory": "128Mi"}, "limits": map[string]any{"memory": "256Mi"}},
						"readinessProbe": probe("/readyz"), "livenessProbe": probe("/healthz"),
					}},
				},
			},
		},
	}
}

// BenchmarkApply compares the driver with bare loops of server-side applies of the same objects, in turns on one server: one
// of the manifests alone, and one of the manifests with the marks that the driver adds.
func BenchmarkApply(b *testing.B) {
	bed := realBed(b)
	for _, kind := range benchKinds {
		b.Run(kind.name, func(b *testing.B) {
			ratios := map[string][]float64{}
			for round := range benchRounds {
				bed.namespace = bed.newNamespace(b)
				c := bed.open(b, "prod", nil)
				bare := func(marked bool) func(value string) float64 {
					return func(value string) float64 {
						return each(kind.objects, func(i int) {
							body := &unstructured.Unstructured{Object: kind.manifest(fmt.Sprintf("bare-%t-%d", marked, i), value)}
							if marked {
								c.Driver.(*cluster).marksOf(c.ref(fmt.Sprint(i))).put(body, fmt.Sprintf("%032s", value))
							}
							_, err := bed.admin.Resource(kind.at).Namespace(bed.namespace).Apply(b.Context(), body.GetName(), body, metav1.ApplyOptions{FieldManager: "bare"})
							require.NoError(b, err)
						})
					}
				}
				memories := make([][]byte, kind.objects)
				ours := func(value string) float64 {
					return each(kind.objects, func(i int) {
						spec, err := json.Marshal(kind.manifest(fmt.Sprint("ours-", i), value))
						require.NoError(b, err)
						ref := c.ref(fmt.Sprint(i))
						ref.Memory = memories[i]
						out := c.Driver.Apply(b.Context(), driver.Object{Ref: ref, Spec: spec})
						require.Equal(b, driver.VerdictDone, out.Verdict, "%v", out.Err)
						memories[i] = out.Memory
					})
				}
				for _, step := range []struct{ name, value string }{{"create", "1"}, {"change", "2"}, {"unchanged", "2"}} {
					loops := []func(string) float64{ours, bare(false), bare(true)}
					rates := make([]float64, len(loops))
					for i := range loops {
						at := (i + round) % len(loops)
						rates[at] = loops[at](step.value)
					}
					b.Logf("%s: driver %.0f/s, bare loop %.0f/s, with the marks %.0f/s", step.name, rates[0], rates[1], rates[2])
					ratios[step.name] = append(ratios[step.name], rates[0]/rates[1])
					ratios[step.name+"-marked"] = append(ratios[step.name+"-marked"], rates[0]/rates[2])
				}
			}
			for name, all := range ratios {
				slices.Sort(all)
				b.ReportMetric(all[len(all)/2], name+"-ratio")
			}
		})
	}
}
